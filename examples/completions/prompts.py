"""Where the prompts come from: a file of the user's, or fortune files; the job keeps them in one file of its own."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from files import write_atomically

FORTUNES_LIMIT = 1200


class PromptsError(Exception):
    """The prompts are not what a job can be made of: the text is for the user."""


def read_fortunes(directory: Path) -> Iterator[tuple[str, str]]:
    """Yields (name of the file, text) for each entry (divided by a line with one percent sign).

    Indexes and the UTF-8 links beside the files are left out.
    """
    for path in sorted(directory.iterdir()):
        if path.suffix or not path.is_file():
            continue
        for entry in path.read_text(encoding="utf-8", errors="replace").split("\n%\n"):
            text = " ".join(entry.split())
            if 40 <= len(text) <= 600:
                yield path.name, text


def choose_fortunes(directory: Path, limit: int) -> list[dict[str, Any]]:
    """Returns `limit` prompts in the order of their texts' hashes: always the same ones."""
    texts = {text: name for name, text in read_fortunes(directory)} if directory.is_dir() else {}
    chosen = sorted(texts, key=lambda text: hashlib.sha256(text.encode()).digest())[:limit]
    if not chosen:
        raise PromptsError(
            f"{directory}: no prompts: expected fortune files, found none; "
            "run: apt-get install fortunes, or give --prompts"
        )
    return [{"id": number, "source": texts[text], "prompt": text} for number, text in enumerate(chosen)]


def read_prompts(path: Path) -> list[dict[str, Any]]:
    """Returns the rows of a prompts file (JSONL), each with a text `prompt` and an integer `id` of its own.

    Where no row has an `id`, a row's is its place in the file, from 0. The last line needs no line end. Other fields
    are kept.

    Raises:
        PromptsError: the file is not there or a line is not such a row.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except (OSError, UnicodeDecodeError) as error:
        raise PromptsError(f"{path}: no prompts: expected a JSONL file, found {error}") from None
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise PromptsError(f"{path}: line {number}: not JSON: {error}") from None
        if not isinstance(row, dict) or not isinstance(row.get("prompt"), str) or not row["prompt"].strip():
            raise PromptsError(f'{path}: line {number}: expected an object with a text "prompt", found {line[:80]}')
        rows.append(row)
    if not rows:
        raise PromptsError(f"{path}: no prompts: expected a line for each, found none")
    if not any("id" in row for row in rows):
        return [{"id": place, **row} for place, row in enumerate(rows)]
    ids: set[int] = set()
    for place, row in enumerate(rows, 1):
        number = row.get("id")
        if type(number) is not int or number in ids:
            found = json.dumps(number) + (" again" if number in ids else "")
            raise PromptsError(f'{path}: prompt {place}: expected an integer "id" of its own, found {found}')
        ids.add(number)
    return rows


def keep_prompts(source: Path | None, fortunes: Path, limit: int | None, kept: Path) -> list[dict[str, Any]]:
    """Returns the job's prompts; the first time they are taken from `source`, or else from the fortune files.

    What is kept stays as it is: the completions beside it belong to its numbering. The source may be gone later.

    Raises:
        PromptsError: there are no prompts, or the source has other ones than those that are kept.
    """
    if not kept.exists():
        rows = read_prompts(source)[:limit] if source else choose_fortunes(fortunes, limit or FORTUNES_LIMIT)
        write_atomically(kept, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
        return rows
    rows = read_prompts(kept)
    if source and source.exists() and digest_prompts(read_prompts(source)[:limit]) != digest_prompts(rows):
        raise PromptsError(
            f"{source}: other prompts than the job was begun with: expected those of {kept} ({len(rows)}); "
            "run: with a new workspace, or with the prompts as they were"
        )
    return rows


def digest_prompts(rows: list[dict[str, Any]]) -> str:
    """Returns a SHA-256 that is another one when a prompt, its number or their order is another."""
    text = json.dumps([[row["id"], row["prompt"]] for row in rows])
    return hashlib.sha256(text.encode()).hexdigest()
