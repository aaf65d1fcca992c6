"""A program started through this file has its identity on disk before its first instruction runs.

Run as a script, by path, with nothing but the standard library, so that it works from any directory:

    supervisor.py PIDFILE [--overlay LOWER UPPER WORK MERGED] [--restart-on CODE] -- PROGRAM ARGUMENT...

The pidfile is JSON: pid, start time in clock ticks since boot, boot id. Together they name one process for ever; a pid
alone is soon another's. Whoever started us may be killed at any moment: there is no time at which the program runs and
the pidfile does not name it.

Without --restart-on the script becomes the program. With it, it stays as the parent and starts the program again when
it ends with CODE: systemd-nspawn ends with 133 when its container reboots. A SIGTERM is passed on, a death of this
process takes the program with it.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import FrameType

MAX_RESTARTS = 10
RESTART_WINDOW_S = 60.0


def read_start_ticks(pid: int) -> int:
    """Returns the start time of a process in clock ticks since boot (proc(5), /proc/PID/stat, field 22)."""
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="surrogateescape")
    return int(stat.rpartition(")")[2].split()[19])


def read_boot_id() -> str:
    return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


def write_own_record(pidfile: Path) -> None:
    """Writes the record of this process so that a reader sees all of it or nothing."""
    pid = os.getpid()
    record = {"pid": pid, "start_ticks": read_start_ticks(pid), "boot_id": read_boot_id()}
    partial = pidfile.with_name(f"{pidfile.name}.{pid}")
    partial.write_text(json.dumps(record) + "\n", encoding="ascii")
    partial.replace(pidfile)


def mount_overlay(lower: str, upper: str, work: str, merged: str) -> None:
    """Mounts the overlay in this process's own mount namespace, where it ends with the last process that uses it."""
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", merged], check=True)


def run_again_while(code: int, program: list[str]) -> int:
    """Runs the program, and again each time it ends with `code`; returns the code of its last end."""
    child: subprocess.Popen[bytes] | None = None
    asked_to_stop = False

    def pass_on(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked_to_stop
        asked_to_stop = True
        if child is not None:
            child.send_signal(signal.SIGTERM)

    signal.signal(signal.SIGTERM, pass_on)
    starts: list[float] = []
    while True:
        now = time.monotonic()
        starts = [start for start in starts if now - start < RESTART_WINDOW_S] + [now]
        if len(starts) > MAX_RESTARTS:
            print(f"{program[0]}: ended {MAX_RESTARTS} times in {RESTART_WINDOW_S:.0f} s: given up", flush=True)
            return 1
        # The kernel ends the program when this process dies, however it dies.
        child = subprocess.Popen(["setpriv", "--pdeathsig", "KILL", "--", *program])
        if asked_to_stop:
            child.send_signal(signal.SIGTERM)
        ended_with = child.wait()
        if ended_with != code or asked_to_stop:
            return ended_with


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("pidfile", type=Path)
    parser.add_argument("--overlay", nargs=4)
    parser.add_argument("--restart-on", type=int)
    own, program = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    chosen = parser.parse_args(own)
    write_own_record(chosen.pidfile)
    if chosen.overlay:
        mount_overlay(*chosen.overlay)
    if chosen.restart_on is None:
        os.execvp(program[0], program)
    return run_again_while(chosen.restart_on, program)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
