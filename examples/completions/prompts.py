"""Turns fortune files (entries divided by a line with one percent sign) into a prompts file, always the same one."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from files import write_atomically


def read_fortunes(directory: Path) -> Iterator[tuple[str, str]]:
    """Yields (name of the file, text) for each entry; indexes and the UTF-8 links beside the files are left out."""
    for path in sorted(directory.iterdir()):
        if path.suffix or not path.is_file():
            continue
        for entry in path.read_text(encoding="utf-8", errors="replace").split("\n%\n"):
            text = " ".join(entry.split())
            if 40 <= len(text) <= 600:
                yield path.name, text


def write_prompts(directory: Path, output: Path, limit: int) -> int:
    """Writes `limit` prompts, in the order of their texts' hashes, unless the file is there; returns how many it has.

    A prompts file that is there stays as it is: the completions beside it belong to its numbering.
    """
    if output.exists():
        return sum(1 for _ in output.open(encoding="utf-8"))
    texts = {text: name for name, text in read_fortunes(directory)}
    chosen = sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest())[:limit]
    if not chosen:
        raise SystemExit(f"{directory}: no prompts: expected fortune files, found none; run: apt-get install fortunes")
    rows = ({"id": number, "source": texts[text], "prompt": text} for number, text in enumerate(chosen))
    write_atomically(output, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    return len(chosen)
