"""Reads small files into pieces of packs; where there are many, processes of their own help with it.

Opening, reading and hashing a hundred thousand small files is work for the interpreter, which uses one core in each
process. A process that helps knows neither store nor index: it is given entries, and gives back what it read.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NamedTuple

from decamp.checking import check_entry
from decamp.entries import Entry
from decamp.packs import member_header, padding
from decamp.reading import EntryChanged, OpenedFile
from decamp.rules import Rule
from decamp.workers import Stopped

BATCH_FILES = 128
BATCH_BYTES = 2 << 20
WORTH_HELP_FILES = 1000  # below it, a process is not up before the work is done
MOST_HELPERS = 7
_MAIN = "import sys; sys.path[:] = {path!r}; from decamp.gathering import serve; serve()"


class Piece(NamedTuple):
    """A file that was read: which of the entries, where its tar header and its content begin in the body."""

    number: int
    start: int
    offset: int
    sha256: bytes
    checks: str | None


class Missed(NamedTuple):
    """A file that was not read: which of the entries, and the error; None when it changed meanwhile."""

    number: int
    error: OSError | None


class Gathered(NamedTuple):
    """What some entries came to: tar members one after the other, and whose they are."""

    body: bytearray
    pieces: list[Piece]
    missed: list[Missed]

    def ends(self) -> Iterator[tuple[Piece, int]]:
        """Yields each piece with where it ends in the body."""
        ends = [*(piece.start for piece in self.pieces), len(self.body)][1:]
        yield from zip(self.pieces, ends, strict=True)


def gather(entries: list[Entry], rules: tuple[Rule, ...]) -> Gathered:
    """Reads and checks small files, each confirmed to be what the census saw before and after."""
    gathered = Gathered(bytearray(), [], [])
    body = gathered.body
    for number, entry in enumerate(entries):
        try:
            with OpenedFile(entry) as file:
                checks = check_entry(entry, rules)
                content = file.read_all()
        except EntryChanged:
            gathered.missed.append(Missed(number, None))
            continue
        except OSError as error:
            gathered.missed.append(Missed(number, error))
            continue
        start = len(body)
        body += member_header(entry)
        gathered.pieces.append(Piece(number, start, len(body), hashlib.sha256(content).digest(), checks))
        body += content
        body += padding(len(content))
    return gathered


class Helper:
    """A process that gathers. One that ends before its time is missed by nobody: its work is done here then."""

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._is_stopped = False
        path = [str(Path(__file__).resolve().parent.parent), *sys.path]
        self._process: subprocess.Popen[bytes] | None = None
        with contextlib.suppress(OSError):  # this user may not run the interpreter, or there is no memory for it
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", "-c", _MAIN.format(path=path)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )

    def gather(self, entries: list[Entry]) -> Gathered:
        """As `gather`, in the other process; raises Stopped when that was stopped meanwhile."""
        process = self._process
        if process is not None:
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                pickle.dump((self._rules, entries), process.stdin, pickle.HIGHEST_PROTOCOL)
                process.stdin.flush()
                return _receive(process.stdout)
            except (OSError, EOFError, ValueError, pickle.UnpicklingError):
                self.close()
        if self._is_stopped:
            raise Stopped
        return gather(entries, self._rules)

    def stop(self) -> None:
        """Ends the process for good; what it has in hand is nobody's work any more."""
        self._is_stopped = True
        self.close()

    def close(self) -> None:
        """Ends the process, whatever it is doing."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    with contextlib.suppress(OSError):  # what was not sent yet has nobody to go to
                        pipe.close()


def _receive(source: IO[bytes]) -> Gathered:
    size, pieces, missed = pickle.load(source)  # noqa: S301 - from a process that we started
    body = bytearray(size)
    view = memoryview(body)
    while view:
        count = source.readinto(view)  # type: ignore[attr-defined]
        if not count:
            raise EOFError
        view = view[count:]
    return Gathered(body, pieces, missed)


def serve() -> None:
    """Gathers what standard input asks for until it ends; what a Helper's process runs."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the other process's to answer; it ends this one
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    try:
        while True:
            rules, entries = pickle.load(source)  # noqa: S301 - from the process that started this one
            gathered = gather(entries, rules)
            pickle.dump((len(gathered.body), gathered.pieces, gathered.missed), sink, pickle.HIGHEST_PROTOCOL)
            sink.write(gathered.body)
            sink.flush()
    except (EOFError, OSError):
        os._exit(0)  # the other process has ended


class Gathering:
    """The helpers of one run. Empty until there is enough to do, and on a machine with one core.

    Attributes:
        pool: threads in which `gather` may be called, one for each helper.
    """

    def __init__(self, rules: tuple[Rule, ...]) -> None:
        self._rules = rules
        self._idle: list[Helper] = []
        self._helpers: list[Helper] = []
        self._waiting = 0
        self.pool: ThreadPoolExecutor | None = None

    def call_help(self, files: int) -> None:
        """Starts helpers where so many files are worth it; once."""
        count = min(len(os.sched_getaffinity(0)) - 1, MOST_HELPERS, files // WORTH_HELP_FILES)
        if count > 0 and self.pool is None:
            self._helpers = [Helper(self._rules) for _ in range(count)]
            self._idle = list(self._helpers)
            self.pool = ThreadPoolExecutor(count, "gather")

    @property
    def is_busy(self) -> bool:
        """Says whether batches that were given are not back yet."""
        return self._waiting > 0

    def has_room(self) -> bool:
        """Says whether a helper would take another batch: each works on one and has the next one waiting."""
        return self._waiting < 2 * len(self._helpers)

    def expect(self, count: int) -> None:
        """Notes that batches were given (1) or taken back (-1); from the thread that gives them."""
        self._waiting += count

    def gather(self, entries: list[Entry]) -> Gathered:
        """Has an idle helper gather; in a thread of the pool."""
        helper = self._idle.pop()
        try:
            return helper.gather(entries)
        finally:
            self._idle.append(helper)

    def close(self) -> None:
        for helper in self._helpers:
            helper.stop()
        if self.pool is not None:
            self.pool.shutdown(wait=False, cancel_futures=True)
