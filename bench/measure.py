"""Wall time, CPU time and peak memory of one command and everything it starts, and of nothing else."""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from dataclasses import dataclass
from pathlib import Path

SAMPLE_EVERY_S = 0.05
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True)
class Figures:
    """One run. `peak_mb` is in 10^6 bytes of resident memory, summed over the processes alive at one moment."""

    wall_s: float
    cpu_s: float
    peak_mb: float
    returncode: int
    output: str


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += [int(text) for text in (task / "children").read_text().split()]
    except OSError:
        return found
    return found


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and all below it; pages that they share count once for each."""
    total, waiting = 0, [pid]
    while waiting:
        current = waiting.pop()
        try:
            total += int(Path(f"/proc/{current}/statm").read_text().split()[1]) * PAGE_BYTES
        except (OSError, IndexError):
            continue
        waiting += _children(current)
    return total


def high_water_bytes(pid: int) -> int:
    """The most that one process has held since it became the program it is (VmHWM); 0 when it is gone.

    Not getrusage's ru_maxrss: that counts the memory of the process that started it as well.
    """
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:")), 0)


class _PeakWatch(threading.Thread):
    def __init__(self, pid: int) -> None:
        super().__init__(daemon=True)
        self.pid = pid
        self.peak_bytes = 0
        self.over = threading.Event()

    def run(self) -> None:
        while not self.over.wait(SAMPLE_EVERY_S):
            self.peak_bytes = max(self.peak_bytes, resident_bytes(self.pid), high_water_bytes(self.pid))


def measure(command: list[str], environment: dict[str, str], directory: Path, timeout_s: float) -> Figures:
    """Runs a command to its end and returns what it took.

    CPU is user plus system time of the command and of every descendant that its parents waited for (wait4).
    Memory is sampled every 50 ms over the process tree, and is never below what the kernel recorded for the command's
    own process up to the last sample. A command over its limit is killed with its group and has the return code -9.
    """
    log_path = directory / "output.log"
    with log_path.open("wb") as log:
        started = time.monotonic()
        process = subprocess.Popen(
            command, env=environment, cwd=directory, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            start_new_session=True,
        )  # fmt: skip
        watch = _PeakWatch(process.pid)
        watch.start()
        limit = threading.Timer(timeout_s, os.killpg, (process.pid, signal.SIGKILL))
        limit.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            limit.cancel()
        wall_s = time.monotonic() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    watch.over.set()
    watch.join()
    output = log_path.read_text(errors="replace")[-4000:]
    return Figures(wall_s, usage.ru_utime + usage.ru_stime, watch.peak_bytes / 1e6, process.returncode, output)
