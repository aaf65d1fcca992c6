"""Prints a receipt's time, verdict and census as JSON, or why there is none; runs on the operator's machine."""

from __future__ import annotations

import json
import sys

from decamp.errors import DecampError
from decamp.receipt import read_receipt
from decamp.store.client import Store
from decamp.store.location import StoreLocation


def main() -> None:
    url, endpoint, region = sys.argv[1:4]
    try:
        receipt = read_receipt(Store(StoreLocation.parse(url), endpoint_url=endpoint or None, region=region or None))
    except DecampError as error:
        print(json.dumps({"missing": str(error)}))
        return
    told = {"finished_at": receipt.finished_at, "verdict": receipt.verdict, "census_sha256": receipt.census_sha256}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
