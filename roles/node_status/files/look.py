#!/usr/bin/env python3
"""Prints what a node does as one JSON document; changes nothing and needs the standard library alone."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from datetime import datetime
from pathlib import Path
from typing import Any

FIGURES = ("gen_throughput", "num_running_reqs", "num_queue_reqs", "cache_hit_rate", "num_requests_total")


def run(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def look_at_units(units: list[str]) -> list[str]:
    lines = []
    for unit in units:
        told = dict(
            line.split("=", 1)
            for line in run(
                "systemctl", "show", unit, "-p", "LoadState,ActiveState,SubState,NRestarts,StateChangeTimestamp"
            ).splitlines()
            if "=" in line
        )
        if told.get("LoadState") in (None, "not-found"):
            lines.append(f"{unit}: not installed")
            continue
        state = f"{told.get('ActiveState')} ({told.get('SubState')})"
        lines.append(
            f"{unit}: {state} since {told.get('StateChangeTimestamp') or 'never'}, restarts {told.get('NRestarts')}"
        )
    return lines


def look_at_server(url: str) -> list[str]:
    found: dict[str, str] = {}
    for path in ("/health", "/metrics"):
        try:
            with urllib.request.urlopen(url + path, timeout=5) as answer:  # noqa: S310 - http to the node itself
                found[path] = answer.read().decode(errors="replace") or "ok"
        except urllib.error.HTTPError as error:
            found[path] = f"status {error.code}"
        except (OSError, ValueError) as error:
            found[path] = f"no answer ({getattr(error, 'reason', error)})"
    if not found["/health"].startswith(("status", "no answer")):
        found["/health"] = "healthy"
    figures = []
    for name in FIGURES:
        values = re.findall(rf"^sglang:{name}(?:{{[^}}]*}})? ([0-9.e+-]+)$", found["/metrics"], re.MULTILINE)
        figures += [f"{name} {sum(map(float, values)):g}"] if values else []
    return [f"server {url}: {found['/health']}" + (f"; {', '.join(figures)}" if figures else "")]


def look_at_gpus() -> list[str]:
    query = "index,name,utilization.gpu,memory.used,memory.total,temperature.gpu,power.draw"
    told = run("nvidia-smi", f"--query-gpu={query}", "--format=csv,noheader") if shutil.which("nvidia-smi") else ""
    return [f"GPU {line}" for line in told.splitlines()] or ["GPU: none"]


def look_at_disk(workspace: str) -> list[str]:
    if not Path(workspace).is_dir():
        return [f"{workspace}: not there"]
    state = os.statvfs(workspace)
    free, size = state.f_bavail * state.f_frsize / 2**30, state.f_blocks * state.f_frsize / 2**30
    return [f"disk of {workspace}: {free:.1f} of {size:.1f} GiB free"]


def count_changes(workspace: str, since: str) -> list[str]:
    """Counts what is newer than a time; what was deleted since then shows in the census alone."""
    moment = datetime.fromisoformat(since.replace("Z", "+00:00")).timestamp()
    count = size = 0
    newest: tuple[float, str] = (0.0, "")
    for directory, _, names in os.walk(workspace):
        for name in names:
            try:
                state = os.lstat(os.path.join(directory, name))
            except OSError:
                continue
            if max(state.st_mtime, state.st_ctime) > moment:
                count, size = count + 1, size + state.st_size
                newest = max(newest, (state.st_mtime, f"{directory}/{name}"))
    if not count:
        return [f"no file changed since {since}"]
    return [f"{count} files, {size / 2**20:.1f} MiB changed since {since}, newest {newest[1]}"]


def last_lines(log: Path) -> list[str]:
    try:
        with log.open("rb") as stream:
            stream.seek(max(0, log.stat().st_size - 4096))
            lines = [line for line in stream.read().decode(errors="replace").splitlines() if "left" in line]
    except OSError:
        return []
    return [f"{log.name}: {lines[-1]}"] if lines else []


def main() -> None:
    options: dict[str, Any] = json.loads(sys.argv[1])
    workspace = options["workspace"]
    lines = look_at_units(options["units"]) + look_at_server(options["url"]) + look_at_gpus() + look_at_disk(workspace)
    for log in sorted(Path(workspace, "logs").glob("*.log")):
        lines += last_lines(log)
    if options.get("since"):
        lines += count_changes(workspace, options["since"])
    print(json.dumps({"lines": lines, "at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())}))


if __name__ == "__main__":
    main()
