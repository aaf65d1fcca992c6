#!/usr/bin/python
"""Says what may be done with instance-store disks: use what is mounted, mount what is there, create, or nothing.

Only reads. A disk counts as blank when wipefs finds no signature on it, nothing in the kernel uses it, and every byte
looked at is zero: the first and last 16 MiB, and 1 MiB at each of 64 places between them.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from collections.abc import Callable
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: decamp_instance_disks
short_description: Decide what may be done with instance-store disks, without touching them
description:
  - Returns C(state), one of C(none), C(mounted), C(labelled), C(blank), C(refused).
author: Decamp
options:
  devices:
    description: Disks to use. Empty finds those that call themselves instance storage.
    type: list
    elements: path
    default: []
  label:
    description: Label of the filesystem that the role makes.
    type: str
    required: true
  mount_point:
    description: Where the filesystem is wanted.
    type: path
    required: true
"""

# Amazon EC2 User Guide, "Identify instance store volumes", 2025. EBS volumes have another model name.
INSTANCE_STORE_MODEL = "Amazon EC2 NVMe Instance Storage"
EDGE_BYTES, SAMPLE_BYTES, SAMPLES = 16 << 20, 1 << 20, 64

Run = Callable[[list[str]], tuple[int, str]]


def run_tool(command: list[str]) -> tuple[int, str]:
    done = subprocess.run(
        command, stdin=subprocess.DEVNULL, capture_output=True, check=False,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LC_ALL": "C"},
    )  # fmt: skip
    return done.returncode, done.stdout.decode("utf-8", "replace")


def read_text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def list_names(directory: Path) -> list[str]:
    try:
        return sorted(entry.name for entry in directory.iterdir())
    except OSError:
        return []


def find_instance_store(root: Path) -> list[str]:
    """Lists the disks that call themselves instance storage and have a device node here (a container has none)."""
    names = [name for name in list_names(root / "sys/block") if (root / "dev" / name).exists()]
    return [
        f"/dev/{n}"
        for n in names
        if read_text(root / "sys/block" / n / "device/model").startswith(INSTANCE_STORE_MODEL)
    ]


def read_mounts(root: Path) -> list[tuple[str, str]]:
    """Lists (source, target) of every mount of a block device, with the kernel's escapes undone."""
    mounts = []
    for line in read_text(root / "proc/self/mounts").splitlines():
        source, target = (re.sub(r"\\(\d{3})", lambda m: chr(int(m[1], 8)), part) for part in line.split()[:2])
        if source.startswith("/dev/"):
            mounts.append((os.path.realpath(source), target))
    return mounts


def find_disks_below(root: Path, device: str) -> set[str]:
    """Gives the whole disks that a block device lies on, through md, device-mapper, partitions and btrfs."""
    name = device.rpartition("/")[2]
    for member_list in (root / "sys/fs/btrfs").glob("*/devices"):
        members = list_names(member_list)
        if name in members:
            return {f"/dev/{disk}" for member in members for disk in lower_disks(root, member)}
    return {f"/dev/{disk}" for disk in lower_disks(root, name)}


def lower_disks(root: Path, name: str) -> set[str]:
    path = root / "sys/class/block" / name
    slaves = list_names(path / "slaves")
    if slaves:
        return {disk for slave in slaves for disk in lower_disks(root, slave)}
    if (path / "partition").exists():
        return {path.resolve().parent.name}
    return {name}


def find_users(root: Path, device: str, mounts: list[tuple[str, str]]) -> list[str]:
    """Lists what in the kernel uses a disk: mounts, swap, partitions, and devices built on it."""
    path = root / "sys/class/block" / device.rpartition("/")[2]
    users = [f"mounted at {target}" for source, target in mounts if device in find_disks_below(root, source)]
    users += [f"partition {name}" for name in list_names(path) if (path / name / "partition").exists()]
    users += [f"part of {name}" for name in list_names(path / "holders")]
    swaps = [line.split()[0] for line in read_text(root / "proc/swaps").splitlines()[1:]]
    return users + ["used as swap" for swap in swaps if os.path.realpath(swap) == device]


def find_signatures(device: str, run: Run) -> list[dict]:
    """Lists filesystem, RAID, LVM and partition-table signatures, as wipefs knows them; erases none."""
    status, output = run(["wipefs", "--no-act", "--json", device])
    if status != 0:
        return [{"type": "unreadable", "label": None}]
    return json.loads(output or "{}").get("signatures", [])


def find_nonzero_byte(device: str, size: int) -> int | None:
    """Gives the offset of a block that holds data, or None where every place looked at is zero."""
    places = [(0, EDGE_BYTES), (max(size - EDGE_BYTES, 0), EDGE_BYTES)]
    places += [(size // SAMPLES * number, SAMPLE_BYTES) for number in range(1, SAMPLES)]
    with open(device, "rb", buffering=0) as disk:
        for start, length in places:
            disk.seek(start)
            data = disk.read(length)
            if data.strip(b"\0"):
                return start + len(data) - len(data.lstrip(b"\0"))
    return None


def find_obstacles(root: Path, device: str, mounts: list[tuple[str, str]], run: Run) -> list[str]:
    """Lists every reason not to write to a disk."""
    try:
        is_block_device = stat.S_ISBLK(os.stat(device).st_mode)
    except OSError:
        is_block_device = False
    if not is_block_device:
        return ["not a block device on this node"]
    reasons = find_users(root, device, mounts)
    reasons += [f"{found['type']} signature" + (f" '{found['label']}'" if found.get("label") else "")
                for found in find_signatures(device, run)]  # fmt: skip
    if not reasons:
        with open(device, "rb") as disk:
            size = disk.seek(0, os.SEEK_END)
        offset = find_nonzero_byte(device, size)
        if offset is not None:
            reasons.append(f"data without a signature at byte {offset}")
    return reasons


def find_labelled(root: Path, devices: list[str], label: str, run: Run) -> str | None:
    """Gives the UUID of this role's own unmounted filesystem when it covers exactly these disks."""
    uuids = set()
    for device in devices:
        holders = list_names(root / "sys/class/block" / device.rpartition("/")[2] / "holders")
        top = f"/dev/{holders[0]}" if len(holders) == 1 else device
        status, output = run(["blkid", "--probe", "--output", "export", top])
        told = dict(line.partition("=")[::2] for line in output.splitlines()) if status == 0 else {}
        uuids.add(told.get("UUID") if told.get("LABEL") == label else None)
    return uuids.pop() if len(uuids) == 1 else None


def decide(root: Path, run: Run, devices: list[str], label: str, mount_point: str) -> dict:
    """Gives the state, the disks, and what goes with the state; `root` is / on a node."""
    disks = [os.path.realpath(device) for device in devices] or find_instance_store(root)
    answer: dict = {"state": "none", "devices": disks, "reasons": [], "mounted_at": None, "uuid": None}
    if not disks:
        return answer
    mounts = read_mounts(root)
    targets: dict[str, list[str]] = {}
    for source, target in mounts:
        if find_disks_below(root, source) <= set(disks):
            targets.setdefault(source, []).append(target)
    here = [source for source, places in targets.items() if mount_point in places]
    others = [
        f"{source} is mounted at {mount_point}" for source, target in mounts if target == mount_point and not here
    ]
    if not others and not here and os.path.ismount(mount_point):
        others = ["something else is mounted there"]
    hidden = [] if here or others or not os.path.isdir(mount_point) else list_names(Path(mount_point))[:5]
    if others or hidden:
        answer["reasons"] = [
            {"path": mount_point, "found": "; ".join(others) or "files that would be hidden: " + ", ".join(hidden)}
        ]
        return {**answer, "state": "refused"}
    if here or len(targets) == 1:
        places = targets[here[0]] if here else next(iter(targets.values()))
        return {**answer, "state": "mounted", "mounted_at": mount_point if here else min(places, key=len)}
    if len(targets) > 1:
        found = "; ".join(f"{source} at {places[0]}" for source, places in sorted(targets.items()))
        answer["reasons"] = [{"path": " ".join(disks), "found": f"more than one filesystem: {found}"}]
        return {**answer, "state": "refused"}
    uuid = find_labelled(root, disks, label, run)
    if uuid is not None:
        return {**answer, "state": "labelled", "uuid": uuid}
    answer["reasons"] = [
        {"path": disk, "found": ", ".join(obstacles)}
        for disk in disks
        if (obstacles := find_obstacles(root, disk, mounts, run))
    ]
    return {**answer, "state": "refused" if answer["reasons"] else "blank"}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "devices": {"type": "list", "elements": "path", "default": []},
            "label": {"type": "str", "required": True},
            "mount_point": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    answer = decide(Path("/"), run_tool, **module.params)
    module.exit_json(changed=False, **answer)


if __name__ == "__main__":
    main()
