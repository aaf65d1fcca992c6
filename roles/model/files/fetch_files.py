"""Fetches files in parallel, each from where an earlier try ended, and puts a file in place once its content is proven.

A source (hub_source.py, store_source.py) says what there is; this knows nothing of where it is. Standard library alone.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

CHUNK_BYTES = 1 << 20  # a killed fetch loses at most this much of each file
WORKERS = 8
TRIES = 5  # in a row that brought no byte
SAY_EVERY_S = 5.0


class Refused(Exception):
    """The source said no, and will say no again: the text is for the operator."""


class Unsteady(Exception):
    """The source or the way to it failed now and may not the next time."""

    def __init__(self, text: str, wait_s: float = 0) -> None:
        super().__init__(text)
        self.wait_s = wait_s


class NoMore(Exception):
    """The source has nothing at this offset (HTTP status 416)."""


class Stream(Protocol):
    """Content from an offset on."""

    def __enter__(self) -> Stream: ...
    def __exit__(self, *reason: object) -> object: ...
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True)
class Remote:
    """One file of a source.

    Attributes:
        path: where it belongs, relative to the model's directory.
        size: its bytes.
        version: names this content, so that a part of another content is never continued.
        open_from: gives (stream, its offset) for the offset that is wanted; a source without ranges gives 0.
        find_fault: says what is wrong with the content of a local file of the right size; empty when it is right.
    """

    path: str
    size: int
    version: str
    open_from: Callable[[int], tuple[Stream, int]]
    find_fault: Callable[[Path], str]


def ask_patiently(ask: Callable[[], list[Remote]]) -> list[Remote]:
    """Returns what the source lists; raises Refused when it says no, or gives no answer in several tries."""
    last, wait_s = "", 0.0
    for attempt in range(TRIES):
        if attempt:
            time.sleep(wait_s)
        try:
            return ask()
        except (Unsteady, OSError, http.client.HTTPException) as error:
            last = str(error) or type(error).__name__
            wait_s = max(attempt, error.wait_s if isinstance(error, Unsteady) else 0)
    raise Refused(f"the source does not answer: expected its list of files, found after {TRIES} tries: {last}")


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def digest_file(path: Path, algorithm: str, start: bytes = b"") -> str:
    """Returns the hexadecimal digest of `start` followed by a file's content."""
    digest = hashlib.new(algorithm, start, usedforsecurity=False)
    with path.open("rb") as stream:
        while chunk := stream.read(CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


class Progress:
    """Says every few seconds how far all workers together are."""

    def __init__(self, total: int) -> None:
        self._lock = threading.Lock()
        self._total, self._done = total, 0
        self._begun = self._said = time.monotonic()

    def add(self, count: int) -> None:
        with self._lock:
            self._done += count
            now = time.monotonic()
            if now - self._said < SAY_EVERY_S:
                return
            self._said = now
            rate = self._done / (now - self._begun)
            left_s = (self._total - self._done) / max(rate, 1)
            say(f"{self._done / 1e9:.2f} of {self._total / 1e9:.2f} GB, {rate / 1e6:.0f} MB/s, {left_s:.0f} s left")


def check_space(target: Path, missing_bytes: int, free_after_bytes: int) -> None:
    """Raises Refused when the missing bytes do not fit."""
    state = os.statvfs(target)
    free = state.f_bavail * state.f_frsize
    if missing_bytes + free_after_bytes > free:
        raise Refused(
            f"{target}: too little space: expected {(missing_bytes + free_after_bytes) / 2**30:.1f} GiB free "
            f"({missing_bytes / 2**30:.1f} to fetch), found {free / 2**30:.1f} GiB; "
            "run: df -h, or set model_directory to a larger disk"
        )


def find_partial(path: Path, version: str) -> Path:
    return path.with_name(f".{path.name}.{version[:32]}.partial")


def is_in_place(remote: Remote, path: Path) -> bool:
    """Says whether a file is there and right; one that is not is removed, or its name would stay taken."""
    if path.is_file() and path.stat().st_size == remote.size and not remote.find_fault(path):
        return True
    path.unlink(missing_ok=True)
    return False


def fetch_content(remote: Remote, partial: Path, progress: Progress) -> None:
    """Brings the partial file to its full size; raises Refused when the source has no more to give."""
    without_progress, last = 0, "nothing"
    while (have := partial.stat().st_size if partial.exists() else 0) < remote.size:
        if without_progress == TRIES:
            raise Refused(f"{remote.path}: not got: expected {remote.size} bytes, found {have} ({last})")
        wait_s = float(without_progress)
        try:
            stream, start = remote.open_from(have)
            with stream, partial.open("r+b" if partial.exists() else "wb") as output:
                output.seek(start)
                output.truncate()
                while chunk := stream.read(CHUNK_BYTES):
                    output.write(chunk)
                    progress.add(len(chunk))
            last = "the source ended early"
        except NoMore:
            raise Refused(f"{remote.path}: not got: expected {remote.size} bytes, found {have} (no more)") from None
        except Unsteady as error:
            last, wait_s = str(error), max(wait_s, error.wait_s)
        except (OSError, http.client.HTTPException) as error:
            last = f"{type(error).__name__}: {error}"
        now = partial.stat().st_size if partial.exists() else 0
        without_progress = 0 if now > have else without_progress + 1
        if now < remote.size and without_progress < TRIES:
            time.sleep(wait_s)


def fetch_one(remote: Remote, target: Path, progress: Progress) -> None:
    """Puts one file in place; raises Refused with what is wrong with it."""
    path = target / remote.path
    partial = find_partial(path, remote.version)
    fetch_content(remote, partial, progress)
    found = partial.stat().st_size
    fault = f"expected {remote.size} bytes, found {found}" if found != remote.size else remote.find_fault(partial)
    if fault:
        partial.unlink()  # the next run fetches it anew
        raise Refused(f"{remote.path}: not what the source lists: {fault}")
    partial.replace(path)


def run_each(action: Callable[[Remote], object], remotes: Iterable[Remote]) -> list[object]:
    """Returns what an action gave or raised for each file; one file's trouble does not stop the others."""

    def attempt(remote: Remote) -> object:
        try:
            return action(remote)
        except (Refused, OSError) as error:
            return error

    with ThreadPoolExecutor(WORKERS) as pool:
        return list(pool.map(attempt, remotes))


def fetch(remotes: list[Remote], target: Path, free_after_bytes: int) -> None:
    """Makes the target hold all files; raises Refused with every problem, a line each."""
    for remote in remotes:
        if target.resolve() not in (target / remote.path).resolve().parents:
            raise Refused(f"{remote.path}: leaves the model's directory")
        (target / remote.path).parent.mkdir(parents=True, exist_ok=True)
    wanted = {find_partial(target / remote.path, remote.version) for remote in remotes}
    for left_over in set(target.rglob(".*.partial")) - wanted:  # parts of another content of the same name
        left_over.unlink()
    there = run_each(lambda remote: is_in_place(remote, target / remote.path), remotes)
    missing = [remote for remote, is_there in zip(remotes, there, strict=True) if is_there is not True]
    partials = [find_partial(target / remote.path, remote.version) for remote in missing]
    begun = sum(partial.stat().st_size for partial in partials if partial.exists())
    left = sum(remote.size for remote in missing) - begun
    check_space(target, left, free_after_bytes)
    say(f"{len(missing)} of {len(remotes)} files to fetch, {left / 1e6:.1f} MB" + (" (continued)" if begun else ""))
    progress = Progress(left)
    ends = run_each(lambda remote: fetch_one(remote, target, progress), missing)
    if problems := [str(end) for end in ends if isinstance(end, Exception)]:
        raise Refused("\n".join(problems))
