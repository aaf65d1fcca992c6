"""The completions job: prompts to completions to training data to a checkpoint; started again it continues exactly.

    job.py --workspace /workspace --server http://127.0.0.1:30000 --model NAME --prompts /workspace/data/my.jsonl

What is done is read from the outputs themselves, so a kill at any moment loses at most the requests in flight.
SIGTERM stops it cleanly: requests in flight are finished and written, then it exits 0.
"""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
import threading
import time
from pathlib import Path
from types import FrameType
from typing import Any

from checkpoint import write_checkpoint
from completions import CompletionError, Server, Shard
from dataset import read_tokens, write_shard
from files import write_atomically
from prompts import FORTUNES_LIMIT, PromptsError, digest_prompts, keep_prompts

log = logging.getLogger("completions")
BAD_INPUT = 2  # starting it again is of no use


class Throughput:
    """Logs completions and tokens per second and the time left, at most every few seconds."""

    def __init__(self, done: int, total: int, every_s: float = 2.0) -> None:
        self.done, self.total, self.every_s = done, total, every_s
        self.tokens = self.new = 0
        self.started = self.said = time.monotonic()

    def add(self, tokens: int) -> None:
        self.done, self.new, self.tokens = self.done + 1, self.new + 1, self.tokens + tokens
        if time.monotonic() - self.said >= self.every_s:
            self.said = time.monotonic()
            log.info("%s", self)

    def __str__(self) -> str:
        elapsed_s = max(time.monotonic() - self.started, 0.001)
        rate = self.new / elapsed_s
        left = f"{(self.total - self.done) / rate:.0f} s left" if rate else "no rate yet"
        return f"{self.done}/{self.total} completions, {rate:.1f}/s, {self.tokens / elapsed_s:.0f} tokens/s, {left}"


def write_stale_hidden_states(directory: Path) -> None:
    """Leaves what a replaced drafter would have left: a tree that nobody needs and that an evacuation should skip."""
    for number in range(8):
        path = directory / f"layer_{number}" / "states.bin"
        if not path.exists():
            write_atomically(path, bytes([number]) * 65536)


def write_report(workspace: Path, shards: list[Shard], checkpoint: str) -> None:
    lines = ["# Progress", "", "| shard | done | of | tokens |", "| --- | --- | --- | --- |"]
    for shard in shards:
        tokens = sum(row["tokens"] for row in shard.rows.values())
        lines.append(f"| {shard.number} | {len(shard.rows)} | {len(shard.prompts)} | {tokens} |")
    lines += ["", f"Last checkpoint: {checkpoint or 'none yet'}", ""]
    write_atomically(workspace / "PROGRESS.md", "\n".join(lines))


def finish_shard(workspace: Path, shard: Shard) -> str:
    """Makes a complete shard's training data and a checkpoint unless they are there; returns the checkpoint's name."""
    tokenized = workspace / "data" / "tokenized"
    arrow = tokenized / f"shard_{shard.number:05d}.arrow"
    checkpoint = workspace / "checkpoints" / f"step_{shard.number + 1}"
    if not arrow.exists():
        counted = write_shard(list(shard.rows.values()), arrow)
        log.info("shard %d: %s, %d tokens in the loss", shard.number, arrow.name, counted)
    if not (checkpoint / "config.json").exists():
        write_checkpoint(read_tokens(tokenized), shard.number + 1, checkpoint.parent)
        log.info("shard %d: checkpoint %s", shard.number, checkpoint.name)
    return checkpoint.name


def run(options: argparse.Namespace, stop: threading.Event) -> int:
    workspace: Path = options.workspace
    prompts = keep_prompts(options.prompts, options.fortunes, options.limit, workspace / "data" / "prompts.jsonl")
    settings = {
        "model": options.model,
        "max_tokens": options.max_tokens,
        "shard_size": options.shard_size,
        "prompts_sha256": digest_prompts(prompts),
    }
    settings_file = workspace / "config" / "completions.json"
    if settings_file.exists() and (was := json.loads(settings_file.read_text())) != settings:
        others = ", ".join(
            f"{name} {was.get(name)}, now {now}" for name, now in settings.items() if was.get(name) != now
        )
        log.error(
            "%s: results would not fit together: they are of %s; run: with a new workspace", settings_file, others
        )
        return BAD_INPUT
    if not settings_file.exists():
        write_atomically(settings_file, json.dumps(settings, indent=2) + "\n")
    write_stale_hidden_states(workspace / "data" / "hidden_states")
    size, directory = options.shard_size, workspace / "data" / "completions"
    slices: list[list[dict[str, Any]]] = [prompts[at : at + size] for at in range(0, len(prompts), size)]
    shards = [Shard(number, rows, directory) for number, rows in enumerate(slices)]
    already = sum(len(shard.rows) for shard in shards)
    log.info("%d prompts in %d shards, %d done before", len(prompts), len(shards), already)
    server = Server(options.server, options.model, options.max_tokens)
    server.wait_until_ready(options.ready_limit_s, stop)
    throughput, checkpoint = Throughput(already, len(prompts)), ""
    failures: list[CompletionError] = []
    for shard in shards:
        if stop.is_set():
            break
        failures += shard.run(server, options.concurrency, stop, throughput.add)
        if shard.is_done:
            checkpoint = finish_shard(workspace, shard)
        write_report(workspace, shards, checkpoint)
    log.info("%s", throughput)
    for failure in failures[:10]:
        log.error("%s", failure)
    if failures:
        log.error("%d prompts have no completion; start the job again to try them", len(failures))
        return 1
    log.info("stopped; start again to continue" if stop.is_set() else "all done")
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workspace", type=Path, required=True)
    parser.add_argument("--server", required=True)
    parser.add_argument("--model", required=True)
    parser.add_argument("--fortunes", type=Path, default=Path("/usr/share/games/fortunes"))
    parser.add_argument("--prompts", type=Path, help="JSONL file, each line with a text `prompt` (default: fortunes)")
    parser.add_argument(
        "--limit", type=int, help=f"prompts at most (default: all of a file, {FORTUNES_LIMIT} fortunes)"
    )
    parser.add_argument("--shard-size", type=int, default=200)
    parser.add_argument("--concurrency", type=int, default=8)
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--ready-limit-s", type=float, default=1800.0)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stdout)
    stop = threading.Event()

    def finish(_number: int, _frame: FrameType | None) -> None:
        stop.set()

    signal.signal(signal.SIGTERM, finish)
    signal.signal(signal.SIGINT, finish)
    try:
        return run(options, stop)
    except PromptsError as error:
        log.error("%s", error)
        return BAD_INPUT
    except (CompletionError, ValueError) as error:
        log.error("%s", error)
        return 1


if __name__ == "__main__":
    sys.exit(main())
