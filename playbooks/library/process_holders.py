#!/usr/bin/python
"""Names every process that writes below a path, listens on a port or lives in a unit's cgroup, and ends those it may.

It looks at /proc, not at pidfiles or parents, so a worker that escaped its launcher is found all the same.
"""

from __future__ import annotations

import os
import pwd
import re
import signal
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: process_holders
short_description: Find, and if asked end, the processes that hold paths, a port or a unit
description:
  - A process holds a path when it has a file below it open for writing or mapped shared and writable.
  - Only processes of O(end_users), and those in the cgroup of O(units), are ended; by pid, SIGTERM first.
  - In check mode nothing is ended.
author: Decamp
options:
  paths:
    description: Directories whose writers count.
    type: list
    elements: str
    default: []
  port:
    description: TCP port whose listener counts; 0 for none.
    type: int
    default: 0
  address:
    description: Address the port is wanted on; a listener on another address does not count.
    type: str
    default: 0.0.0.0
  units:
    description: systemd units whose cgroups count.
    type: list
    elements: str
    default: []
  end:
    description: End the holders that may be ended.
    type: bool
    default: false
  end_users:
    description: Users whose processes may be ended.
    type: list
    elements: str
    default: []
  grace_s:
    description: Seconds between SIGTERM and SIGKILL, and again until a killed process must be gone.
    type: int
    default: 10
"""

RETURN = r"""
ended:
  description: The holders that were ended (or would be, in check mode), with pid, user, command, unit and why.
  returned: always
  type: list
  elements: dict
holders:
  description: The holders that are left.
  returned: always
  type: list
  elements: dict
"""

ANYWHERE = ("0.0.0.0", "::", "")  # noqa: S104 - compared with, not bound
LISTEN_STATE = "0A"  # Linux include/net/tcp_states.h


def own_line() -> set[int]:
    """Returns this process and its ancestors: they hold nothing that matters and must not be ended."""
    line, pid = set(), os.getpid()
    while pid > 1 and pid not in line:
        line.add(pid)
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
        except (OSError, IndexError, ValueError):
            break
    return line


def decode_address(field: str) -> tuple[str, int]:
    """Returns (address, port) of /proc/net/tcp's `0100007F:7530`; IPv6 other than :: is given as hex."""
    host, port = field.split(":")
    if len(host) == 8:
        return ".".join(str(byte) for byte in reversed(bytes.fromhex(host))), int(port, 16)
    if host == "0" * 32:
        return "::", int(port, 16)
    mapped = re.fullmatch(r"0{16}0000FFFF([0-9A-F]{8})", host)
    return (decode_address(f"{mapped[1]}:{port}")[0] if mapped else host), int(port, 16)


def find_listeners(address: str, port: int) -> dict[str, str]:
    """Returns {socket inode: address} of listeners that would keep a server from binding address:port."""
    found = {}
    for table in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            host, number = decode_address(fields[1])
            clash = host == address or host in ANYWHERE or address in ANYWHERE
            if fields[3] == LISTEN_STATE and number == port and clash:
                found[fields[9]] = f"{host}:{number}"
    return found


class Process:
    """One entry of /proc; it may vanish at any moment, and then holds nothing."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.directory = Path(f"/proc/{pid}")

    def read(self, name: str) -> str:
        try:
            return (self.directory / name).read_bytes().decode("utf-8", "replace")
        except OSError:
            return ""

    @property
    def is_alive(self) -> bool:
        status = self.read("stat").rsplit(")", 1)
        return len(status) == 2 and status[1].split()[0] not in "ZX"

    @property
    def started(self) -> str:
        status = self.read("stat").rsplit(")", 1)
        return status[1].split()[19] if len(status) == 2 else ""

    @property
    def user(self) -> str:
        try:
            return pwd.getpwuid(self.directory.stat().st_uid).pw_name
        except KeyError:
            return str(self.directory.stat().st_uid)
        except OSError:
            return ""

    @property
    def unit(self) -> str:
        names = re.findall(r"/([^/\n]+\.(?:service|scope))", self.read("cgroup"))
        return names[-1] if names else ""

    def reasons(self, paths: list[str], sockets: dict[str, str], units: list[str]) -> list[str]:
        reasons = [f"belongs to {self.unit}"] if self.unit in units else []
        try:
            descriptors = list((self.directory / "fd").iterdir())
        except OSError:
            descriptors = []
        for descriptor in descriptors:
            try:
                target = str(descriptor.readlink())
            except OSError:
                continue
            socket = re.fullmatch(r"socket:\[(\d+)\]", target)
            if socket and socket[1] in sockets:
                reasons.append(f"listens on {sockets[socket[1]]}")
            elif is_below(target, paths):
                flags = re.search(r"^flags:\s*(\d+)", self.read(f"fdinfo/{descriptor.name}"), re.MULTILINE)
                if flags and int(flags[1], 8) & os.O_ACCMODE:
                    reasons.append(f"writes {target}")
        for line in self.read("maps").splitlines():
            fields = line.split(maxsplit=5)
            if len(fields) == 6 and fields[1][1] == "w" and fields[1][3] == "s" and is_below(fields[5], paths):
                reasons.append(f"maps {fields[5]} for writing")
        return sorted(set(reasons))

    def describe(self, why: list[str]) -> dict[str, object]:
        command = self.read("cmdline").replace("\0", " ").strip()[:200]
        return {"pid": self.pid, "user": self.user, "command": command, "unit": self.unit, "why": why}


def is_below(path: str, roots: list[str]) -> bool:
    return any(path == root or path.startswith(f"{root}/") for root in roots)


def find_holders(
    paths: list[str], sockets: dict[str, str], units: list[str], ignored: set[int]
) -> list[tuple[Process, list[str]]]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) not in ignored:
            process = Process(int(entry.name))
            why = process.reasons(paths, sockets, units)
            if why and process.is_alive:
                found.append((process, why))
    return sorted(found, key=lambda holder: holder[0].pid)


def end_processes(processes: list[Process], grace_s: int) -> None:
    """Ends by SIGTERM, then SIGKILL; a pid that was given to another process meanwhile is left alone."""
    known = {process.pid: process.started for process in processes}
    for number in (signal.SIGTERM, signal.SIGKILL):
        for process in processes:
            if process.is_alive and process.started == known[process.pid]:
                try:
                    os.kill(process.pid, number)
                except ProcessLookupError:
                    continue
        deadline = time.monotonic() + grace_s
        while time.monotonic() < deadline:
            if not any(process.is_alive and process.started == known[process.pid] for process in processes):
                return
            time.sleep(0.05)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "paths": {"type": "list", "elements": "str", "default": []},
            "port": {"type": "int", "default": 0},
            "address": {"type": "str", "default": "0.0.0.0"},  # noqa: S104 - compared with, not bound
            "units": {"type": "list", "elements": "str", "default": []},
            "end": {"type": "bool", "default": False},
            "end_users": {"type": "list", "elements": "str", "default": []},
            "grace_s": {"type": "int", "default": 10},
        },
        supports_check_mode=True,
    )
    given = module.params
    paths = sorted({os.path.realpath(path) for path in given["paths"]})
    ignored = own_line()

    def look() -> tuple[list[tuple[Process, list[str]]], dict[str, str]]:
        listeners = find_listeners(given["address"], given["port"]) if given["port"] else {}
        return find_holders(paths, listeners, given["units"], ignored), listeners

    holders, listeners = look()
    may_end = [
        (process, why)
        for process, why in holders
        if given["end"] and (process.user in given["end_users"] or process.unit in given["units"])
    ]
    ended = [process.describe(why) for process, why in may_end]
    if may_end and not module.check_mode:
        end_processes([process for process, _ in may_end], given["grace_s"])
        holders, listeners = look()
    elif may_end:
        holders = [holder for holder in holders if holder[0].pid not in {process.pid for process, _ in may_end}]
    left = [process.describe(why) for process, why in holders]
    held = {reason for holder in left + ended for reason in holder["why"]}
    # A listener without a visible process: it is in another PID namespace, or the kernel is still closing the socket.
    left.extend(
        {"pid": 0, "user": "", "command": "unknown", "unit": "", "why": [f"listens on {address}"]}
        for address in sorted(set(listeners.values()))
        if f"listens on {address}" not in held
    )
    module.exit_json(changed=bool(ended), ended=ended, holders=left)


if __name__ == "__main__":
    main()
