"""Ends with 0 once a unit has been active for some seconds, or has ended well; with 1 and its state when it did not.

    watch_job.py UNIT SECONDS

A job that fails at its first line is active for a moment, and again after each restart.
"""

from __future__ import annotations

import subprocess
import sys
import time

PROPERTIES = ("ActiveState", "SubState", "Result", "NRestarts", "ActiveEnterTimestampMonotonic")
POLL_S = 0.25


def ask(unit: str) -> dict[str, str]:
    command = ["systemctl", "show", unit, "--property", ",".join(PROPERTIES)]
    told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    return dict(line.split("=", 1) for line in told.splitlines())


def main() -> int:
    unit, settle_s = sys.argv[1], float(sys.argv[2])
    state = ask(unit)
    restarts = state["NRestarts"]
    while True:
        if state["ActiveState"] != "active" or state["NRestarts"] != restarts:
            print(" ".join(f"{name}={state[name]}" for name in PROPERTIES[:4]))
            return 1
        active_s = time.clock_gettime(time.CLOCK_MONOTONIC) - int(state["ActiveEnterTimestampMonotonic"]) / 1e6
        if state["SubState"] == "exited" or active_s >= settle_s:
            return 0
        time.sleep(POLL_S)
        state = ask(unit)


if __name__ == "__main__":
    sys.exit(main())
