"""The rehearsal starts only on a machine that can carry it; otherwise one error lists all that is missing."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from decamp.errors import BadInput

# Each command with the Debian package that brings it.
COMMANDS = {
    "apt-get": "apt",
    "debootstrap": "debootstrap",
    "mount": "mount",
    "setpriv": "util-linux",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "systemd-nspawn": "systemd-container",
    "unshare": "util-linux",
}


class MissingPrerequisite(BadInput):
    """This machine cannot run the rehearsal."""


def has_overlay() -> bool:
    """Says whether this kernel has overlay file systems, built in or as a module that loads."""
    if "\toverlay\n" in Path("/proc/filesystems").read_text(encoding="ascii"):
        return True
    modprobe = shutil.which("modprobe")
    return modprobe is not None and subprocess.run([modprobe, "-q", "overlay"], check=False).returncode == 0


def find_missing() -> list[str]:
    """Names everything the rehearsal needs and this machine lacks."""
    missing = []
    if not sys.platform.startswith("linux"):
        return [f"Linux (this is {sys.platform})"]
    if os.geteuid() != 0:
        missing.append(f"root (this is user id {os.geteuid()})")
    for command, package in COMMANDS.items():
        if shutil.which(command) is None:
            missing.append(f"the command {command} (Debian package {package})")
    if not has_overlay():
        missing.append("overlay file systems (kernel module overlay)")
    return missing


def check_machine() -> None:
    """Raises MissingPrerequisite, with all that is missing, unless this machine can boot rehearsal hosts."""
    missing = find_missing()
    if missing:
        raise MissingPrerequisite(
            "rehearsal",
            "this machine cannot boot hosts of its own; the target `rented` (hosts somebody else started) works here",
            expected="a Linux machine with root, debootstrap and systemd-nspawn",
            found="missing " + "; ".join(missing),
            run="make setup as root on Debian 12, or pulumi up on a stack with decamp:target rented",
        )
