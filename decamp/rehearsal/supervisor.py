"""A program started through this file has its identity on disk before its first instruction runs.

Run as a script, by path, with nothing but the standard library, so that it works from any directory:

    supervisor.py PIDFILE -- PROGRAM ARGUMENT...
    supervisor.py PIDFILE --container NAME --overlay LOWER UPPER WORK MERGED -- PROGRAM ARGUMENT...

The pidfile is JSON: pid, start time in clock ticks since boot, boot id. Together they name one process for ever; a pid
alone is soon another's. Whoever started us may be killed at any moment: there is no time at which the program runs and
the pidfile does not name it.

In its first form the script becomes the program. In its second it mounts the overlay and stays as the parent of
systemd-nspawn, which gets control groups and a process namespace of its own: without the first, two hosts would share
their service groups and a `systemctl stop` in one could reach into the other; through the second the kernel ends
everything in the host with systemd-nspawn, and that with this process, however they die. When the container reboots,
it is started again. A SIGTERM is passed on as an orderly shutdown.
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
# systemd-nspawn 252 with --keep-unit ends with this when its container asked for a reboot (EXIT_FORCE_RESTART).
NSPAWN_REBOOT = 133
# Joins each group named before the `--`, then becomes the program behind it. 0 is the process that writes it.
JOIN_GROUPS = 'while [ "$1" != -- ]; do echo 0 >"$1/cgroup.procs" || exit; shift; done; shift; exec "$@"'


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


def find_groups(name: str) -> list[Path]:
    """Returns the control group `name` in each hierarchy that systemd uses: cgroup2, and name=systemd of version 1."""
    groups = []
    for line in Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines():
        _, mount_point, kind, options = line.split()[:4]
        if kind == "cgroup2" or (kind == "cgroup" and "name=systemd" in options.split(",")):
            groups.append(Path(mount_point) / name)
    return groups


def mount_overlay(lower: str, upper: str, work: str, merged: str) -> None:
    """Mounts the overlay in this process's own mount namespace, where it ends with the last process that uses it."""
    options = f"lowerdir={lower},upperdir={upper},workdir={work}"
    subprocess.run(["mount", "-t", "overlay", "-o", options, "overlay", merged], check=True)


def read_children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()]
    except FileNotFoundError:
        return []


def run_container(name: str, program: list[str]) -> int:
    """Runs systemd-nspawn, and again each time its container reboots; returns the code of its last end."""
    child: subprocess.Popen[bytes] | None = None
    asked_to_stop = False

    def pass_on(_signal: int, _frame: FrameType | None) -> None:
        nonlocal asked_to_stop
        asked_to_stop = True
        # `unshare --fork` keeps signals to itself; systemd-nspawn is its child.
        for nspawn in read_children(child.pid) if child else []:
            os.kill(nspawn, signal.SIGTERM)

    signal.signal(signal.SIGTERM, pass_on)
    groups = find_groups(name)
    for group in groups:
        group.mkdir(exist_ok=True)
    isolate = [
        "setpriv",
        "--pdeathsig",
        "KILL",
        "--",
        "unshare",
        "--pid",
        "--fork",
        "--kill-child",
        "--mount-proc",
        "--",
    ]
    join = ["sh", "-c", JOIN_GROUPS, "sh", *map(str, groups), "--"]
    starts: list[float] = []
    while not asked_to_stop:
        now = time.monotonic()
        starts = [start for start in starts if now - start < RESTART_WINDOW_S] + [now]
        if len(starts) > MAX_RESTARTS:
            print(f"{name}: rebooted {MAX_RESTARTS} times in {RESTART_WINDOW_S:.0f} s: given up", flush=True)
            return 1
        child = subprocess.Popen([*isolate, *join, *program])
        ended_with = child.wait()
        if ended_with != NSPAWN_REBOOT:
            return ended_with
    return 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("pidfile", type=Path)
    parser.add_argument("--container")
    parser.add_argument("--overlay", nargs=4)
    own, program = arguments[: arguments.index("--")], arguments[arguments.index("--") + 1 :]
    chosen = parser.parse_args(own)
    write_own_record(chosen.pidfile)
    if not chosen.container:
        os.execvp(program[0], program)
    mount_overlay(*chosen.overlay)
    return run_container(chosen.container, program)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
