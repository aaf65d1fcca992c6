"""The role instance_storage on a booted host with loop devices for disks: never a byte written where something is.

Striping with mdadm is not run: it needs a kernel with md, and device nodes that udev makes. What is run of it is the
refusal on a kernel without md, which every host here appears to have.
"""

from __future__ import annotations

import hashlib
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.roles.gpu_host import GpuHost, Step, booted
from tests.roles.gpu_machines import NO_GPU

DISK_BYTES = 320 << 20  # mkfs.xfs makes nothing below 300 MiB
BLANK = ("blank-1", "blank-2", "blank-3")


@dataclass(frozen=True)
class Disks:
    """Loop devices by what is on them, and the files behind them."""

    devices: dict[str, Path]
    directory: Path

    def names(self, *which: str) -> list[str]:
        return [str(self.devices[name]) for name in which]

    def digest(self, *which: str) -> list[str]:
        subprocess.run(["sync"], check=True)
        return [hashlib.sha256((self.directory / name).read_bytes()).hexdigest() for name in which]


def fill(path: Path, content: str) -> None:
    with path.open("r+b") as disk:
        disk.truncate(DISK_BYTES)
        if content == "raw":
            disk.seek(DISK_BYTES // 64 * 40 + 4096)
            disk.write(b"somebody's data, without any filesystem")
        if content == "partitioned":  # an MBR with one Linux partition of 64 MiB
            disk.seek(446)
            disk.write(struct.pack("<B3sB3sII", 0, b"\0\0\0", 0x83, b"\0\0\0", 2048, 131072) + bytes(48) + b"\x55\xaa")
    if content == "ext4":
        subprocess.run(["mkfs.ext4", "-q", "-L", "precious", str(path)], check=True)


@pytest.fixture(scope="module")
def disks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Disks]:
    directory = tmp_path_factory.mktemp("disks")
    devices: dict[str, Path] = {}
    try:
        for name in (*BLANK, "ext4", "partitioned", "raw", "image"):
            (directory / name).touch()
            fill(directory / name, "ext4" if name == "image" else name)
            losetup = ["losetup", "--find", "--show", str(directory / name)]
            devices[name] = Path(subprocess.run(losetup, check=True, capture_output=True, text=True).stdout.strip())
        yield Disks(devices, directory)
    finally:
        for device in devices.values():
            subprocess.run(["losetup", "--detach", str(device)], check=True)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, disks: Disks) -> Iterator[GpuHost]:
    with booted(tmp_path_factory.mktemp("node"), NO_GPU, block_devices=list(disks.devices.values())) as started:
        yield started


def test_a_node_without_such_disks_is_left_alone(node: GpuHost) -> None:
    played = node.play("instance_storage")
    assert (played.status, played.changed) == (0, 0), played.output
    played.says("no disk calls itself instance storage and instance_storage_devices names none")


def test_disks_with_anything_on_them_are_refused_all_at_once(node: GpuHost, disks: Disks) -> None:
    which = ("blank-1", "ext4", "partitioned", "raw")
    before = disks.digest(*which)
    played = node.play("instance_storage", instance_storage_devices=[*disks.names(*which), "/dev/absent", "/etc/fstab"])
    assert played.status != 0 and played.changed == 0
    blank, ext4, partitioned, raw = disks.names(*which)
    played.says(
        f"{ext4}: not used", "ext4 signature 'precious'", f"{partitioned}: not used", "dos signature",
        f"{raw}: not used: expected blank disks or one filesystem, "
        f"found data without a signature at byte {DISK_BYTES // 64 * 40 + 4096}",
        "/dev/absent: not used", "/etc/fstab: not used", "not a block device",
    )  # fmt: skip
    assert f"{blank}: not used" not in played.output
    assert disks.digest(*which) == before


def test_a_workspace_that_would_be_hidden_is_refused(node: GpuHost, disks: Disks) -> None:
    node.run("mkdir -p /workspace/run && touch /workspace/run/results.jsonl")
    played = node.play("instance_storage", instance_storage_devices=disks.names("blank-1"))
    node.run("rm -r /workspace")
    assert played.status != 0 and played.changed == 0
    played.says("/workspace: not used: expected an empty place to mount on, found files that would be hidden: run")


def test_settings_that_cannot_work_stop_before_anything_changes(node: GpuHost, disks: Disks) -> None:
    before = disks.digest("blank-1", "blank-2")
    two = disks.names("blank-1", "blank-2")
    steps = {
        "no_md": Step("instance_storage", {"instance_storage_devices": two}),
        "long": Step(
            "instance_storage", {"instance_storage_devices": two[:1], "instance_storage_label": "thirteen-long"}
        ),
        "unknown": Step("instance_storage", {"instance_storage_stripe_tool": "lvm"}),
    }
    told = node.play_steps(steps, rescued=True)
    assert (told.status, told.changed) == (0, 0), told.output
    assert "instance_storage_stripe_tool: the kernel has no md" in told.tell("no_md")
    assert "run: set instance_storage_stripe_tool to btrfs" in told.tell("no_md")
    assert "instance_storage_label: not a label" in told.tell("long")
    told.says("value of instance_storage_stripe_tool must be one of: mdadm, btrfs, got: lvm")
    assert disks.digest("blank-1", "blank-2") == before


def test_blank_disks_become_one_workspace_that_a_reboot_keeps(node: GpuHost, disks: Disks) -> None:
    settings: dict[str, Any] = {
        "instance_storage_devices": disks.names("blank-1", "blank-2"),
        "instance_storage_stripe_tool": "btrfs",
    }
    before = disks.digest("blank-1", "blank-2")
    checked = node.play("instance_storage", check=True, **settings)
    assert checked.status == 0 and checked.changed > 0, checked.output
    checked.says("Would make btrfs over " + ", ".join(settings["instance_storage_devices"]))
    assert disks.digest("blank-1", "blank-2") == before

    # As in the first play of site.yml: what will be on these disks is not judged by the disk that is there now.
    demands = {"workspace_mount_required": True, "workspace_min_free_bytes": 100 << 20}
    size = {"model_source": "directory", "model_source_directory": "/etc", "model_size_bytes": 1 << 50}
    steps = {
        "look": Step("instance_storage", settings, "look"),
        "workspace": Step("workspace", demands, "preflight"),
        "model": Step("model", {**size, "model_directory": "/workspace/model"}, "preflight"),
        "elsewhere": Step("model", {**size, "model_directory": "/models/current"}, "preflight"),
    }
    waiting = node.play_steps(steps, rescued=True)
    assert (waiting.status, waiting.changed) == (0, 0), waiting.output
    assert all(waiting.tell(name).startswith("not refused") for name in ("look", "workspace", "model"))
    assert "/models/current: too little space" in waiting.tell("elsewhere")

    first = node.play("instance_storage", **settings)
    assert first.status == 0, first.output
    first.says("WARNING: /workspace is on instance storage", "a stop or an end of the node erases it")
    assert node.ask("findmnt -n -o FSTYPE,LABEL /workspace").split()[0] == "btrfs"
    # Both disks carry it: no single one has the room that the workspace shows.
    assert int(node.ask("df --block-size=1 --output=size /workspace | tail -1")) > 1.9 * DISK_BYTES
    there = node.play_steps(
        {**steps, "small": Step("workspace", {**demands, "workspace_min_free_bytes": 1 << 50}, "preflight")},
        rescued=True,
    )
    assert there.tell("workspace").startswith("not refused")
    assert "/workspace/model: too little space" in there.tell("model")
    assert "/workspace: too little space" in there.tell("small")
    assert node.ask("ls -A /workspace") == ""  # an evacuation answers for every entry in there
    node.write("/workspace/results.jsonl", "1\n")

    second = node.play("instance_storage", **settings)
    assert (second.status, second.changed) == (0, 0), second.output
    node.reboot()
    assert node.ask("cat /workspace/results.jsonl") == "1"

    # Unmounted and without its unit, it is known by its label, mounted, and not made again.
    node.run("systemctl disable -q --now workspace.mount && rm /etc/systemd/system/workspace.mount")
    again = node.play("instance_storage", **settings)
    assert again.status == 0, again.output
    assert node.ask("cat /workspace/results.jsonl") == "1"


def test_a_single_disk_gets_a_plain_filesystem(node: GpuHost, disks: Disks) -> None:
    settings: dict[str, Any] = {
        "instance_storage_devices": disks.names("blank-3"),
        "instance_storage_mount_point": "/scratch",
    }
    first = node.play("instance_storage", **settings)
    assert first.status == 0, first.output
    assert node.ask("findmnt -n -o FSTYPE,SOURCE /scratch").split() == ["xfs", *disks.names("blank-3")]
    second = node.play("instance_storage", **settings)
    assert (second.status, second.changed) == (0, 0), second.output


def test_the_filesystem_the_image_made_is_used_as_it_is(node: GpuHost, disks: Disks) -> None:
    (device,) = disks.names("image")
    node.run(f"mkdir -p /opt/dlami/nvme && mount {device} /opt/dlami/nvme && touch /opt/dlami/nvme/of-the-image")
    settings: dict[str, Any] = {"instance_storage_devices": [device], "instance_storage_mount_point": "/srv/work"}
    first = node.play("instance_storage", **settings)
    assert first.status == 0, first.output
    node.run("touch /srv/work/mine")
    assert node.ask("ls /opt/dlami/nvme").split() == ["lost+found", "of-the-image", "workspace"]
    assert node.ask("ls /opt/dlami/nvme/workspace") == "mine"
    second = node.play("instance_storage", **settings)
    assert (second.status, second.changed) == (0, 0), second.output
