"""A pidfile is believed only while it names the very process that wrote it; a recycled pid is never signalled."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from decamp.rehearsal import supervisor

POLL_S = 0.05


@dataclass(frozen=True)
class ProcessRecord:
    """One process for ever: a pid with the time it started and the boot it belongs to."""

    pid: int
    start_ticks: int
    boot_id: str

    def is_alive(self) -> bool:
        """Says whether this very process still holds anything: a zombie does only while it has threads left."""
        if self.boot_id != supervisor.read_boot_id():
            return False
        # A child of ours that has ended stays a zombie until somebody waits for it.
        with contextlib.suppress(ChildProcessError, OSError):
            os.waitpid(self.pid, os.WNOHANG)
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8", errors="surrogateescape")
            fields = stat.rpartition(")")[2].split()
            if int(fields[19]) != self.start_ticks:
                return False
            # The first thread of a killed program is a zombie while others still hold its files and ports.
            return fields[0] not in "ZX" or len(os.listdir(f"/proc/{self.pid}/task")) > 1
        except (FileNotFoundError, ProcessLookupError):
            return False

    def send(self, signal_number: int) -> None:
        """Sends the signal if the process is still this one."""
        if self.is_alive():
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal_number)


def read_record(pidfile: Path) -> ProcessRecord | None:
    """Returns what the pidfile says, or None when there is none or it is not a record."""
    try:
        told = json.loads(pidfile.read_text(encoding="ascii"))
        return ProcessRecord(int(told["pid"]), int(told["start_ticks"]), str(told["boot_id"]))
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None


def find_running(pidfile: Path) -> ProcessRecord | None:
    """Returns the record of the process that wrote the pidfile while that process runs, else None."""
    record = read_record(pidfile)
    return record if record and record.is_alive() else None


def launch(
    program: Sequence[str],
    *,
    pidfile: Path,
    log: Path,
    directory: Path,
    prefix: Sequence[str] = (),
    options: Sequence[str] = (),
) -> subprocess.Popen[bytes]:
    """Starts a program that outlives this process and whose pidfile exists before it runs.

    Args:
        program: the program and its arguments.
        pidfile: where the program's identity is written.
        log: file that gets its output, emptied first.
        directory: working directory of the program.
        prefix: a command that runs the supervisor by exec, such as `unshare --mount`.
        options: options of supervisor.py.
    """
    pidfile.unlink(missing_ok=True)
    supervised = [sys.executable, "-I", supervisor.__file__, str(pidfile), *options, "--", *program]
    with log.open("wb") as output:
        return subprocess.Popen(
            [*prefix, *supervised],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            start_new_session=True,
        )


def wait_until_gone(record: ProcessRecord, timeout_s: float) -> bool:
    """Waits for the process to end; returns whether it did."""
    deadline = time.monotonic() + timeout_s
    while record.is_alive():
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_S)
    return True


def end(record: ProcessRecord, grace_s: float) -> None:
    """Ends the process: SIGTERM, then SIGKILL once `grace_s` seconds have passed."""
    if grace_s > 0:
        record.send(signal.SIGTERM)
        if wait_until_gone(record, grace_s):
            return
    record.send(signal.SIGKILL)
    wait_until_gone(record, 10)


@contextlib.contextmanager
def lock(path: Path) -> Iterator[None]:
    """Holds an exclusive lock on the file; it ends with this process, so no stale lock can remain."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        yield


def read_tail(log: Path, lines: int = 15) -> str:
    """Returns the last lines of a log for an error message."""
    try:
        return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return ""
