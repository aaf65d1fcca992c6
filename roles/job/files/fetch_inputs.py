#!/usr/bin/env python3
"""Fetches objects of the store into the workspace, continues where an earlier try ended, puts a file in place whole.

    fetch_inputs.py --workspace DIR [--endpoint-url U] [--region R] s3://bucket/key PATH ...

Keys are read from the environment. Progress and what went wrong go to standard error; it ends with 1 then.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from fetch_files import Progress, Refused, check_space, fetch_one, run_each, say
from store_source import ObjectStore


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--endpoint-url", default="")
    parser.add_argument("--region", default="")
    parser.add_argument("pairs", nargs="+", metavar="URL PATH")
    options = parser.parse_args()
    workspace: Path = options.workspace
    pairs = list(zip(options.pairs[::2], options.pairs[1::2], strict=True))
    try:
        remotes = [ObjectStore(url, options.endpoint_url, options.region).describe_object(path) for url, path in pairs]
        total = sum(remote.size for remote in remotes)
        check_space(workspace, total, 0)
    except Refused as refused:
        say(str(refused))
        return 1
    say(f"{len(remotes)} inputs to fetch, {total / 1e6:.1f} MB")
    for remote in remotes:
        (workspace / remote.path).parent.mkdir(parents=True, exist_ok=True)
    progress = Progress(total)
    ends = run_each(lambda remote: fetch_one(remote, workspace, progress), remotes)
    problems = [str(end) for end in ends if isinstance(end, Exception)]
    for problem in problems:
        say(problem)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
