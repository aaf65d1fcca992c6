"""The system of the node, as its own tools tell it: what somebody needs who has to build the like of it again."""

from __future__ import annotations

import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

_TIMEOUT_S = 20
_LIMIT_BYTES = 4 << 20
# None of these shows environments or command lines, where tokens may be.
_COMMANDS = {
    "uname.txt": ["uname", "-a"],
    "gpu.txt": ["nvidia-smi", "-q"],
    "gpu-topology.txt": ["nvidia-smi", "topo", "-m"],
    "cuda.txt": ["nvcc", "--version"],
    "pci.txt": ["lspci", "-nn"],
    "cpu.txt": ["lscpu"],
    "memory.txt": ["free", "-b"],
    "disks.json": ["lsblk", "--json", "--bytes", "-o", "NAME,TYPE,SIZE,FSTYPE,MOUNTPOINT,MODEL"],
    "filesystems.txt": ["df", "-B1", "-T"],
    "mounts.txt": ["findmnt", "--noheadings", "-o", "TARGET,SOURCE,FSTYPE"],
    "addresses.txt": ["ip", "-brief", "address"],
    "packages.txt": ["dpkg-query", "-W", "-f", "${Package} ${Version} ${Architecture}\\n"],
    "services.txt": ["systemctl", "list-units", "--all", "--no-pager", "--plain", "--type=service"],
    "kernel-modules.txt": ["lsmod"],
}
_FILES = {
    "os-release.txt": "/etc/os-release",
    "driver.txt": "/proc/driver/nvidia/version",
    "node-facts.json": "/etc/decamp/node-facts.json",
}


def record_system() -> dict[str, bytes]:
    """Returns file name to content for every tool and file that this machine has; missing ones are left out."""
    with ThreadPoolExecutor(4) as pool:
        outputs = dict(zip(_COMMANDS, pool.map(_run, _COMMANDS.values()), strict=True))
    for name, path in _FILES.items():
        try:
            outputs[name] = Path(path).read_bytes()[:_LIMIT_BYTES]
        except OSError:
            continue
    return {name: output for name, output in outputs.items() if output}


def _run(command: list[str]) -> bytes | None:
    try:
        done = subprocess.run(command, capture_output=True, timeout=_TIMEOUT_S, check=False, stdin=subprocess.DEVNULL)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout[:_LIMIT_BYTES] if done.returncode == 0 else None
