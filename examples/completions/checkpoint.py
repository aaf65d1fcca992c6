"""A checkpoint after each shard: bigram statistics of all training data so far, safetensors with a config beside it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from dataset import VOCABULARY
from files import write_atomically
from safetensors.numpy import save

FREQUENT = 512


def write_checkpoint(tokens: list[list[int]], step: int, directory: Path) -> Path:
    """Writes checkpoints/step_N: log-probabilities of each token, and of each pair among the most frequent ones."""
    flat = np.array([token for row in tokens for token in row], dtype=np.int64)
    counts = np.bincount(flat, minlength=VOCABULARY)
    frequent = np.argsort(-counts, kind="stable")[:FREQUENT]
    place = np.full(VOCABULARY, -1)
    place[frequent] = np.arange(FREQUENT)
    pairs = np.ones((FREQUENT, FREQUENT), dtype=np.float32)
    for row in tokens:
        places = place[np.array(row, dtype=np.int64)]
        both = (places[:-1] >= 0) & (places[1:] >= 0)
        np.add.at(pairs, (places[:-1][both], places[1:][both]), 1.0)
    tensors = {
        "unigram.log_probability": np.log((counts + 1) / (counts + 1).sum()).astype(np.float32),
        "bigram.log_probability": np.log(pairs / pairs.sum(axis=1, keepdims=True)),
        "bigram.tokens": frequent.astype(np.int32),
    }
    target = directory / f"step_{step}"
    write_atomically(target / "model.safetensors", save(tensors, metadata={"format": "np", "step": str(step)}))
    config = {"kind": "bigram", "vocabulary": VOCABULARY, "frequent": FREQUENT, "tokens": int(flat.size), "step": step}
    write_atomically(target / "config.json", json.dumps(config, indent=2) + "\n")
    return target
