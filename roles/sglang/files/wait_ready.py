#!/usr/bin/env python3
"""Waits until a server generates a token, and gives up early when its unit has; says in one line what it found."""

from __future__ import annotations

import subprocess
import sys
import time
import urllib.error
import urllib.request


def ask(url: str) -> str:
    """Returns "200", another status, or why there was no answer. The server itself allows a token 20 s."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310 - http to the node itself
            return str(answer.status)
    except urllib.error.HTTPError as error:
        return str(error.code)
    except (OSError, ValueError) as error:
        return str(getattr(error, "reason", error))


def show(unit: str, name: str) -> str:
    command = ["systemctl", "show", unit, "--property", name, "--value"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def main() -> int:
    url, unit, limit_s = sys.argv[1], sys.argv[2], float(sys.argv[3])
    started = time.monotonic()
    found = ""
    while time.monotonic() - started < limit_s:
        found = ask(f"{url}/health_generate")
        if found == "200":
            print(f"ready after {time.monotonic() - started:.1f} s")
            return 0
        state = show(unit, "ActiveState")
        if state == "failed" or (state == "inactive" and show(unit, "Result") != "success"):
            print(f"{unit}: not ready: expected /health_generate 200, found the unit {state} ({show(unit, 'Result')})")
            return 1
        time.sleep(0.25)
    models = ask(f"{url}/v1/models")
    print(
        f"{url}/health_generate: not ready after {limit_s:.0f} s: expected 200, found {found} "
        f"(/v1/models: {models}, unit {show(unit, 'ActiveState')}, restarts {show(unit, 'NRestarts')})"
    )
    return 1


if __name__ == "__main__":
    sys.exit(main())
