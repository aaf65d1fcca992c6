"""Training data of a shard: Arrow with the tokens and a loss_mask that is 1 on what the model wrote and 0 elsewhere."""

from __future__ import annotations

import zlib
from pathlib import Path
from typing import Any

import pyarrow as pa

VOCABULARY = 4096
SCHEMA = pa.schema(
    [("id", pa.int64()), ("input_ids", pa.list_(pa.int32())), ("loss_mask", pa.list_(pa.int8()))],
    metadata={"tokenizer": f"crc32 of each word modulo {VOCABULARY}"},
)


def tokenize(text: str) -> list[int]:
    """Returns one token a word; it needs no vocabulary file, so every node and every rerun gives the same."""
    return [zlib.crc32(word.encode()) % VOCABULARY for word in text.split()]


def write_shard(rows: list[dict[str, Any]], output: Path) -> int:
    """Writes the rows in the order of their ids, whole or not at all, and returns how many tokens count in the loss."""
    columns: dict[str, list[Any]] = {"id": [], "input_ids": [], "loss_mask": []}
    for row in sorted(rows, key=lambda row: int(row["id"])):
        prompt, completion = tokenize(row["prompt"]), tokenize(row["completion"])
        columns["id"].append(row["id"])
        columns["input_ids"].append(prompt + completion)
        columns["loss_mask"].append([0] * len(prompt) + [1] * len(completion))
    output.parent.mkdir(parents=True, exist_ok=True)
    partial = output.with_name(f".{output.name}.partial")
    with pa.OSFile(str(partial), "wb") as sink, pa.ipc.new_file(sink, SCHEMA) as writer:
        writer.write_table(pa.table(columns, schema=SCHEMA))
    partial.replace(output)
    return sum(sum(mask) for mask in columns["loss_mask"])


def read_tokens(directory: Path) -> list[list[int]]:
    tokens: list[list[int]] = []
    for path in sorted(directory.glob("shard_*.arrow")):
        with pa.memory_map(str(path)) as source:
            tokens += pa.ipc.open_file(source).read_all()["input_ids"].to_pylist()
    return tokens
