#!/usr/bin/env python3
"""Prints the versions of a package that a flat apt repository lists, a line each; exits 1 when its list cannot be read.

Nothing is trusted on the word of this list: what is installed later comes through apt with its signatures.
"""

from __future__ import annotations

import gzip
import sys
import urllib.error
import urllib.request

TIMEOUT_S = 20


def read_list(url: str) -> str:
    """Returns the text of Packages.gz, or of Packages where there is no compressed one."""
    for name in ("Packages.gz", "Packages"):
        try:
            with urllib.request.urlopen(url + name, timeout=TIMEOUT_S) as answer:  # noqa: S310 - as the role names it
                content = answer.read()
        except urllib.error.HTTPError:
            continue
        return (gzip.decompress(content) if name.endswith(".gz") else content).decode(errors="replace")
    raise OSError(f"{url}: no list of packages")


def find_versions(text: str, package: str) -> list[str]:
    versions = []
    for stanza in text.split("\n\n"):
        fields = dict(line.split(": ", 1) for line in stanza.splitlines() if ": " in line and line[0] != " ")
        if fields.get("Package") == package:
            versions.append(fields.get("Version", ""))
    return versions


def main() -> int:
    url, package = sys.argv[1:3]
    try:
        print("\n".join(find_versions(read_list(url), package)))
    except (OSError, ValueError, EOFError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
