"""Files of the job are whole or absent: a reader never sees half of one, and a torn line at the end of a log is cut."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: str | bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("wb") as stream:
        stream.write(content.encode() if isinstance(content, str) else content)
        stream.flush()
        os.fsync(stream.fileno())
    partial.replace(path)


def read_lines_cutting_torn(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a JSONL file that was being appended to, and cuts what a kill left after the last whole line.

    Raises ValueError when a line before the end is not JSON: that is damage, not an interrupted write.
    """
    if not path.exists():
        return []
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole != len(content):
        with path.open("r+b") as stream:
            stream.truncate(whole)
    rows: list[dict[str, Any]] = []
    try:
        rows.extend(json.loads(line) for line in content[:whole].splitlines())
    except ValueError as error:
        raise ValueError(f"{path}: line {len(rows) + 1} is not JSON: {error}") from None
    return rows
