#!/usr/bin/env python3
"""Says whether a model's directory is whole: every safetensors file complete, every tensor of the index where it says.

Prints one problem a line and exits 1, or nothing and exits 0. Standard library alone; reads headers, not weights.
"""

from __future__ import annotations

import json
import struct
import sys
from pathlib import Path
from typing import Any

MARKER = ".decamp-model.json"
BEGUN = ".decamp-model.begun"
# safetensors README, "Format": an 8-byte little-endian length, the JSON header, then the tensors without gaps.
LENGTH = struct.Struct("<Q")
HEADER_LIMIT_BYTES = 100_000_000


def read_header(path: Path) -> dict[str, Any]:
    """Returns the header of a safetensors file; raises ValueError when the file is not whole."""
    size = path.stat().st_size
    with path.open("rb") as stream:
        start = stream.read(LENGTH.size)
        if len(start) < LENGTH.size:
            raise ValueError(f"cut off: expected at least 8 bytes, found {size}")
        length = LENGTH.unpack(start)[0]
        if length > min(HEADER_LIMIT_BYTES, size - LENGTH.size):
            raise ValueError(f"cut off: expected a header of {length} bytes, found a file of {size}")
        try:
            header: dict[str, Any] = json.loads(stream.read(length))
        except ValueError:
            raise ValueError("damaged: its header is not JSON") from None
    end = max((tensor["data_offsets"][1] for name, tensor in header.items() if name != "__metadata__"), default=0)
    if LENGTH.size + length + end != size:
        raise ValueError(f"not whole: expected {LENGTH.size + length + end} bytes, found {size}")
    return header


def find_problems(directory: Path, identity: str | None = None) -> list[str]:
    """Returns every problem of a model's directory; with an identity, also that it is another model's."""
    problems: list[str] = []
    if not directory.is_dir() or not any(directory.iterdir()):
        return [f"{directory}: no model: expected its files, found nothing"]
    tensors: dict[str, set[str]] = {}
    for path in sorted(directory.rglob("*.safetensors")):
        name = path.relative_to(directory).as_posix()
        try:
            tensors[name] = set(read_header(path)) - {"__metadata__"}
        except (ValueError, OSError, KeyError, TypeError) as error:
            problems.append(f"{path}: {error}")
    for index in sorted(directory.glob("*.safetensors.index.json")):
        problems += find_index_problems(index, tensors)
    marker = directory / MARKER
    if identity is not None:
        try:
            saved = json.loads(marker.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return [*problems, f"{marker}: the fetch has not ended"]
        if saved.get("identity") != identity:
            problems.append(f"{directory}: another model: expected {identity}, found {saved.get('identity')}")
        for name, (size, mtime_ns) in saved.get("files", {}).items():
            path = directory / name
            if not path.is_file():
                problems.append(f"{path}: expected {size} bytes, found nothing")
            elif path.stat().st_size != size:
                problems.append(f"{path}: expected {size} bytes, found {path.stat().st_size}")
            elif path.stat().st_mtime_ns != mtime_ns:
                problems.append(f"{path}: written to since it was fetched")
    return problems


def find_index_problems(index: Path, tensors: dict[str, set[str]]) -> list[str]:
    try:
        weight_map: dict[str, str] = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
    except (OSError, ValueError, KeyError) as error:
        return [f"{index}: cannot be read: {error}"]
    problems = []
    for name in sorted(set(weight_map.values())):
        wanted = {tensor for tensor, file in weight_map.items() if file == name}
        missing = wanted - tensors.get(name, set())
        if not (index.parent / name).exists():
            problems.append(f"{index.parent / name}: missing: {len(wanted)} tensors of {index.name} are in it")
        elif name in tensors and missing:
            problems.append(f"{index.parent / name}: {len(missing)} tensors missing, such as {min(missing)}")
    return problems


def main() -> int:
    if len(sys.argv) not in (2, 3):
        sys.exit("usage: verify_model.py DIRECTORY [IDENTITY]")
    problems = find_problems(Path(sys.argv[1]), sys.argv[2] if len(sys.argv) == 3 else None)
    print("\n".join(problems))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
