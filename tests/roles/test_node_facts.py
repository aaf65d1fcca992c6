"""The role node_facts on booted hosts: what it records, that it records the same twice, and what check mode does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.roles.gpu_host import GpuHost, booted
from tests.roles.gpu_machines import B200_X8, NO_GPU

RECORD = "/etc/decamp/node-facts.json"


@pytest.fixture(scope="module")
def bare_gpu_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuHost]:
    with booted(tmp_path_factory.mktemp("b200"), B200_X8) as node:
        yield node


@pytest.fixture(scope="module")
def node_without_gpu(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuHost]:
    with booted(tmp_path_factory.mktemp("none"), NO_GPU) as node:
        yield node


def test_records_the_hardware_of_a_node_without_a_driver(bare_gpu_node: GpuHost) -> None:
    checked = bare_gpu_node.play("node_facts", check=True)
    assert checked.status == 0 and checked.changed > 0
    assert bare_gpu_node.run(f"test -e {RECORD}", check=False).returncode == 1

    first = bare_gpu_node.play("node_facts")
    assert first.status == 0, first.output
    first.says("8 x 10de:2901", "driver loaded none, installed none", "NVSwitch yes")
    record = json.loads(bare_gpu_node.ask(f"cat {RECORD}"))
    assert [gpu["pci_address"] for gpu in record["gpus"]][:2] == ["0000:1b:00.0", "0000:43:00.0"]
    assert record["nvswitch"] == {"present": True, "nvlink5": True, "devices": ["0000:05:00.0", "0000:05:00.1"]}
    assert record["driver"]["installed"] is None and record["driver"]["answer"] == "nvidia-smi: not installed"
    assert record["kernel"] == bare_gpu_node.ask("uname -r")
    assert record["memory_bytes"] == int(bare_gpu_node.ask("awk '/MemTotal/{print $2}' /proc/meminfo")) * 1024
    assert record["os"]["id"] == "debian"
    assert bare_gpu_node.ask(f"stat -c '%a %U' {RECORD}") == "644 root"

    second = bare_gpu_node.play("node_facts")
    assert (second.status, second.changed) == (0, 0), second.output


def test_a_container_counts_no_gpu_unless_told_to(bare_gpu_node: GpuHost) -> None:
    """Or a rehearsal on a machine with GPUs would install a driver into its hosts."""
    settings: dict[str, Any] = {"node_facts_count_shared_gpus": False}
    played = bare_gpu_node.play("nvidia_driver", "nvidia_fabric", "dcgm", **settings)
    assert (played.status, played.changed) == (0, 0), played.output
    played.says("no NVIDIA GPU on the PCI bus: no driver is installed", "no Fabric Manager", "DCGM is not installed")


def test_says_that_there_is_no_gpu(node_without_gpu: GpuHost) -> None:
    played = node_without_gpu.play("node_facts", node_facts_record_path="/srv/facts/node.json")
    assert played.status == 0, played.output
    played.says("no NVIDIA GPU", "NVSwitch no")
    record = json.loads(node_without_gpu.ask("cat /srv/facts/node.json"))
    assert record["gpus"] == [] and record["nvswitch"]["present"] is False


def test_refuses_a_relative_path_before_writing_anything(node_without_gpu: GpuHost) -> None:
    played = node_without_gpu.play("node_facts", node_facts_record_path="facts.json")
    assert played.status != 0 and played.changed == 0
    played.says("node_facts_record_path: not usable: expected an absolute path")


def test_gpu_roles_do_nothing_without_a_gpu_and_say_so(node_without_gpu: GpuHost) -> None:
    seen = "find /etc /usr/local /var/lib/dpkg -newer /proc/1 -type f | sort; dpkg -l | md5sum"
    before = node_without_gpu.ask(seen)
    played = node_without_gpu.play("nvidia_driver", "nvidia_fabric", "cuda_toolkit", "dcgm")
    assert (played.status, played.changed) == (0, 0), played.output
    for words in ("no driver is", "no Fabric Manager is", "no CUDA toolkit is", "DCGM is not"):
        played.says(f"no NVIDIA GPU on the PCI bus: {words} installed")
    assert node_without_gpu.ask(seen) == before
