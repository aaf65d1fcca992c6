"""A model as its makers publish it, small: shards of safetensors with an index, and the files beside them."""

from __future__ import annotations

import json
import random
import struct

SHARDS = ("model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors")
VOCABULARY = "tokenizer/vocabulary of all.json"
INDEX = "model.safetensors.index.json"


def make_shard(name: str, size: int, seed: int) -> bytes:
    """Gives a safetensors file with one tensor of `size` bytes."""
    header = json.dumps({name: {"dtype": "U8", "shape": [size], "data_offsets": [0, size]}}).encode()
    return struct.pack("<Q", len(header)) + header + random.Random(seed).randbytes(size)


def make_model(shard_bytes: int = 6_000_000) -> dict[str, bytes]:
    """Gives {path: content}; the second shard is a little smaller than the first."""
    tensors = {"layers.0.weight": SHARDS[0], "layers.1.weight": SHARDS[1]}
    files = {
        shard: make_shard(name, shard_bytes - 100_000 * number, number)
        for number, (name, shard) in enumerate(tensors.items())
    }
    files[INDEX] = json.dumps({"metadata": {}, "weight_map": tensors}).encode()
    files["config.json"] = b'{"architectures": ["Qwen3_5ForConditionalGeneration"]}\n'
    files[VOCABULARY] = json.dumps({str(n): n for n in range(3000)}).encode()
    files["README.md"] = b"# a model\n"
    return files
