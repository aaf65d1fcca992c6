"""The two modules that look at a node, against trees that look like its /sys and /proc."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from tests.roles.gpu_machines import B200_X8, H100_X8, NO_GPU, RTX_PRO_6000_X4, Machine

ROLES = Path(__file__).resolve().parents[2] / "roles"
OPEN = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.71.05  Release Build  (dvs-builder@U22)  Mon\n"
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 06:54:38 UTC 2025\n"

Answers = dict[str, tuple[int, str]]


def load(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROLES / path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


facts = load("node_facts/library/decamp_node_facts.py")
disks = load("instance_storage/library/decamp_instance_disks.py")


def write(root: Path, files: dict[str, str]) -> None:
    for name, content in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)


def answer(answers: Answers) -> Callable[[list[str]], tuple[int, str]]:
    """Gives a way to run tools that knows these command lines and finds no other tool installed."""
    return lambda command: answers.get(" ".join(command), (127, f"{command[0]}: not installed"))


@pytest.fixture
def machine_root(tmp_path: Path) -> Callable[[Machine], Path]:
    def make(machine: Machine) -> Path:
        (tmp_path / "sys").mkdir()
        machine.write_pci(tmp_path / "sys/bus")
        return tmp_path

    return make


def test_b200_with_a_completed_fabric(machine_root: Callable[[Machine], Path]) -> None:
    root = machine_root(B200_X8)
    write(root, {"proc/driver/nvidia/version": OPEN, "sys/module/ib_umad/refcnt": "0"})
    record = facts.collect(root, answer({
        "nvidia-smi -q": (0, B200_X8.format_smi("595.71.05", "13.2")),
        "modinfo -F version nvidia": (0, "595.71.05\n"),
        "modinfo -F license nvidia": (0, "Dual MIT/GPL\n"),
        "nv-fabricmanager --version": (0, "Fabric Manager version is : 595.71.05\n"),
        "dpkg-query -W -f ${db:Status-Status} ${Version} nvlsm": (0, "installed 2025.10.11-1"),
    }))  # fmt: skip
    assert len(record["gpus"]) == 8
    assert record["gpus"][0] == {
        "pci_address": "0000:1b:00.0", "pci_id": "10de:2901", "name": "NVIDIA B200",
        "uuid": "GPU-6ab1f6c5-0000-4000-8000-000000000000", "memory_bytes": 183359 << 20,
        "known_name": "NVIDIA B200", "known_memory_bytes": 183359 << 20,
        "fabric_state": "Completed", "fabric_status": "Success",
    }  # fmt: skip
    assert record["driver"] == {
        "loaded": "595.71.05", "loaded_flavour": "open", "installed": "595.71.05", "installed_flavour": "open",
        "installed_by": "package", "answers": True, "answer": None, "nouveau_loaded": False,
    }  # fmt: skip
    assert record["cuda"]["driver_supports"] == "13.2"
    assert record["fabric"] == {"manager_version": "595.71.05", "nvlsm_version": "2025.10.11-1", "ib_umad_loaded": True}
    assert json.loads(json.dumps(record)) == record


@pytest.mark.parametrize(
    ("machine", "expected"),
    [
        (B200_X8, {"present": True, "nvlink5": True, "devices": ["0000:05:00.0", "0000:05:00.1"]}),
        (H100_X8, {"present": True, "nvlink5": False, "devices": [f"0000:0{n}:00.0" for n in (5, 6, 7, 8)]}),
        # The same network card as the one that manages switches elsewhere, without the mark.
        (RTX_PRO_6000_X4, {"present": False, "nvlink5": False, "devices": []}),
        (NO_GPU, {"present": False, "nvlink5": False, "devices": []}),
    ],
)
def test_nvswitch(machine: Machine, expected: dict[str, object], machine_root: Callable[[Machine], Path]) -> None:
    root = machine_root(machine)
    record = facts.collect(root, answer({}))
    assert record["nvswitch"] == expected
    assert len(record["gpus"]) == len(machine.gpus)  # sound functions and switches are not GPUs
    write(root, {"etc/hostname": "p6-b200-48xlarge\n"})
    assert facts.collect(root, answer({})) == record


@pytest.mark.parametrize(("state", "status"), [("In Progress", "N/A"), ("Completed", "Timeout"), ("N/A", "N/A")])
def test_fabric_states_are_told_as_they_are(state: str, status: str) -> None:
    report = facts.parse_smi(B200_X8.format_smi("595.71.05", "13.2", state, status))
    gpus = facts.find_gpus(
        [{"address": "0000:df:00.0", "vendor": "0x10de", "device": "0x2901", "class": "0x0302"}], report
    )
    assert (gpus[0]["fabric_state"], gpus[0]["fabric_status"]) == (state, status)


def test_a_driver_that_does_not_fit_its_module(tmp_path: Path) -> None:
    write(tmp_path, {"proc/driver/nvidia/version": PROPRIETARY, "usr/bin/nvidia-uninstall": ""})
    driver, smi = facts.find_driver(tmp_path, answer({
        "nvidia-smi -q": (
            18, "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 595.71",
        ),
        "modinfo -F version nvidia": (0, "595.71.05\n"), "modinfo -F license nvidia": (0, "NVIDIA\n"),
    }))  # fmt: skip
    assert (driver["loaded"], driver["loaded_flavour"]) == ("580.65.06", "proprietary")
    assert (driver["installed"], driver["installed_flavour"]) == ("595.71.05", "proprietary")
    assert driver["installed_by"] == "runfile" and driver["answers"] is False
    assert driver["answer"] == "Failed to initialize NVML: Driver/library version mismatch NVML library version: 595.71"
    assert smi == {"driver": None, "cuda": None, "gpus": {}}


def test_a_tool_that_hangs_counts_as_broken() -> None:
    status, output = facts.run_tool(["sleep", "30"], timeout_s=1)
    assert (status, output) == (124, "sleep: no answer within 1 s")


def test_disks_cuda_secure_boot_and_network(tmp_path: Path) -> None:
    write(tmp_path, {
        "sys/block/nvme0n1/size": "204800",
        "sys/block/nvme0n1/device/model": "Amazon Elastic Block Store              ",
        "sys/block/nvme1n1/size": "7421875000",
        "sys/block/nvme1n1/device/model": "Amazon EC2 NVMe Instance Storage        ",
        "sys/block/nvme1n1/queue/rotational": "0\n", "sys/block/loop0/size": "99", "sys/block/sda/size": "0",
        "sys/class/block/nvme0n1/nvme0n1p1/partition": "1", "sys/class/block/nvme0n1p1/size": "1",
        "sys/class/block/nvme1n1/holders/dm-0": "", "sys/class/block/dm-0/dm/name": "vg.01-lv_ephemeral\n",
        "proc/self/mounts": "/dev/nvme0n1p1 / ext4 rw 0 0\n"
        "/dev/mapper/vg.01-lv_ephemeral /opt/dlami/nvme ext4 rw 0 0\n",
        "usr/local/cuda-13.0/bin/nvcc": "", "usr/local/cuda-13.0/version.json": '{"cuda": {"version": "13.0.2"}}',
        "usr/local/cuda-12.8/bin/nvcc": "", "usr/local/cuda-12.8/version.json": "[]", "usr/local/cuda-11.8/README": "",
        "sys/class/net/ens5/device/vendor": "", "sys/class/net/ens5/speed": "-1\n", "sys/class/net/ens5/mtu": "9001\n",
        "sys/class/net/veth12/mtu": "1500\n", "sys/class/infiniband/rdmap0/hca_type": "",
        facts.SECURE_BOOT: "\x06\0\0\0\x01",
    })  # fmt: skip
    record = facts.collect(tmp_path, answer({}))
    assert [(d["path"], d["instance_store"], d["mounted_at"]) for d in record["disks"]] == [
        ("/dev/nvme0n1", False, ["/"]), ("/dev/nvme1n1", True, ["/opt/dlami/nvme"]),
    ]  # fmt: skip
    assert record["disks"][1]["size_bytes"] == 3_800_000_000_000
    assert record["cuda"]["toolkits"] == [
        {"version": "12.8", "path": "/usr/local/cuda-12.8"}, {"version": "13.0.2", "path": "/usr/local/cuda-13.0"},
    ]  # fmt: skip
    assert record["secure_boot"] is True
    assert record["network"]["interfaces"] == [{"name": "ens5", "driver": None, "speed_mbps": None, "mtu": 9001}]
    assert record["network"]["rdma_devices"] == ["rdmap0"]


def test_a_container_and_what_it_sees(machine_root: Callable[[Machine], Path]) -> None:
    root = machine_root(B200_X8)
    assert facts.collect(root, answer({}))["container"] is None
    write(root, {"run/systemd/container": "systemd-nspawn\n"})
    record = facts.collect(root, answer({}))
    assert (record["container"], record["gpus"], record["nvswitch"]["present"]) == ("systemd-nspawn", [], False)
    assert len(facts.collect(root, answer({}), count_shared_gpus=True)["gpus"]) == 8


def test_instance_store_needs_a_device_node(tmp_path: Path) -> None:
    models = {
        "nvme0n1": "Amazon Elastic Block Store",
        "nvme1n1": disks.INSTANCE_STORE_MODEL,
        "nvme2n1": disks.INSTANCE_STORE_MODEL,
    }
    write(tmp_path, {f"sys/block/{name}/device/model": f"{model:40}\n" for name, model in models.items()})
    write(tmp_path, {"dev/nvme0n1": "", "dev/nvme1n1": ""})
    assert disks.find_instance_store(tmp_path) == ["/dev/nvme1n1"]


def build_stack(root: Path) -> None:
    """Two disks under md under one device-mapper volume, a partitioned disk, and a btrfs over two more."""
    write(root, {
        "sys/class/block/dm-0/slaves/md127": "", "sys/class/block/md127/slaves/nvme1n1": "",
        "sys/class/block/md127/slaves/nvme2n1": "", "sys/class/block/nvme1n1/holders/md127": "",
        "sys/block/nvme0n1/nvme0n1p1/partition": "1",
        "sys/fs/btrfs/9fd0/devices/nvme3n1": "", "sys/fs/btrfs/9fd0/devices/nvme4n1": "",
    })  # fmt: skip
    (root / "sys/class/block/nvme0n1p1").symlink_to(root / "sys/block/nvme0n1/nvme0n1p1")


@pytest.mark.parametrize(
    ("device", "below"),
    [
        ("/dev/dm-0", {"/dev/nvme1n1", "/dev/nvme2n1"}),
        ("/dev/nvme0n1p1", {"/dev/nvme0n1"}),
        ("/dev/nvme3n1", {"/dev/nvme3n1", "/dev/nvme4n1"}),
        ("/dev/sdz", {"/dev/sdz"}),
    ],
)
def test_what_lies_below_a_block_device(tmp_path: Path, device: str, below: set[str]) -> None:
    build_stack(tmp_path)
    assert disks.find_disks_below(tmp_path, device) == below


def test_everything_that_uses_a_disk_is_named(tmp_path: Path) -> None:
    build_stack(tmp_path)
    write(tmp_path, {"proc/swaps": "Filename Type Size Used Priority\n/dev/nvme1n1 partition 1 0 -2\n"})
    users = disks.find_users(tmp_path, "/dev/nvme1n1", [("/dev/dm-0", "/opt/dlami/nvme"), ("/dev/nvme0n1p1", "/")])
    assert users == ["mounted at /opt/dlami/nvme", "part of md127", "used as swap"]


def test_the_image_s_filesystem_over_md_is_adopted_and_two_are_not(tmp_path: Path) -> None:
    build_stack(tmp_path)
    four = [f"/dev/nvme{n}n1" for n in (1, 2, 3, 4)]
    write(tmp_path, {"proc/self/mounts": "/dev/dm-0 /opt/dlami/nvme ext4 rw 0 0\n/dev/nvme0n1p1 / ext4 rw 0 0\n"})
    decided = disks.decide(tmp_path, answer({}), four[:2], "decamp", "/nowhere")
    assert (decided["state"], decided["mounted_at"]) == ("mounted", "/opt/dlami/nvme")
    # Mounted on one disk of two: the other may be blank, but the first is not ours to make anything on.
    assert disks.decide(tmp_path, answer({}), four[:1], "decamp", "/nowhere")["state"] == "refused"
    with (tmp_path / "proc/self/mounts").open("a") as mounts:
        mounts.write("/dev/nvme3n1 /data btrfs rw 0 0\n")
    decided = disks.decide(tmp_path, answer({}), four, "decamp", "/nowhere")
    assert decided["state"] == "refused"
    assert (
        decided["reasons"][0]["found"]
        == "more than one filesystem: /dev/dm-0 at /opt/dlami/nvme; /dev/nvme3n1 at /data"
    )


@pytest.mark.parametrize("offset", [0, 511, (16 << 20) - 1, 64 << 20, (256 << 20) - 1])
def test_a_single_byte_where_it_looks_is_found(tmp_path: Path, offset: int) -> None:
    disk = tmp_path / "disk"
    with disk.open("wb") as writing:
        writing.truncate(256 << 20)
    assert disks.find_nonzero_byte(str(disk), 256 << 20) is None
    with disk.open("r+b") as writing:
        writing.seek(offset)
        writing.write(b"x")
    assert disks.find_nonzero_byte(str(disk), 256 << 20) == offset


def test_a_disk_that_wipefs_cannot_read_is_not_blank() -> None:
    assert disks.find_signatures("/dev/x", answer({})) == [{"type": "unreadable", "label": None}]


def test_a_gpu_is_known_by_the_bus_until_its_driver_says_more(machine_root: Callable[[Machine], Path]) -> None:
    root = machine_root(RTX_PRO_6000_X4)
    name = "NVIDIA RTX PRO 6000 Blackwell Server Edition"
    bare = facts.collect(root, answer({}))["gpus"]
    assert {(gpu["name"], gpu["known_name"]) for gpu in bare} == {(None, name)}
    assert {(gpu["memory_bytes"], gpu["known_memory_bytes"]) for gpu in bare} == {(None, 97887 << 20)}
    other = RTX_PRO_6000_X4.format_smi("595.71.05", "13.2").replace("97887 MiB", "48000 MiB")
    told = facts.collect(root, answer({"nvidia-smi -q": (0, other)}))["gpus"]
    assert {gpu["known_memory_bytes"] for gpu in told} == {48000 << 20}
    (root / "sys/bus/pci/devices/0000:21:00.0/device").write_text("0x2bff\n")
    assert facts.collect(root, answer({}))["gpus"][0]["known_name"] is None
