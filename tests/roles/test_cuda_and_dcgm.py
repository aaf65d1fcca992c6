"""The roles for GPUs on a booted host without an NVSwitch: cuda_toolkit and dcgm work, nvidia_fabric keeps away."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.roles.gpu_host import STAND_IN, GpuHost, Step, booted
from tests.roles.gpu_machines import RTX_PRO_6000_X4
from tests.roles.nvidia_packages import DRIVER, Repository, install_as_images_do

REPORT = STAND_IN / "nvidia-smi-q.txt"
ROLES = ("nvidia_driver", "nvidia_fabric", "cuda_toolkit", "dcgm", "node_facts")  # in the order of site.yml


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuHost]:
    with booted(tmp_path_factory.mktemp("rtx"), RTX_PRO_6000_X4) as started:
        yield started


def test_both_ask_for_a_driver_first(node: GpuHost, repository: Repository) -> None:
    steps = {role: Step(role, repository.variables) for role in ("dcgm", "cuda_toolkit")}
    told = node.play_steps(steps, rescued=True)
    assert (told.status, told.changed) == (0, 0), told.output
    assert "no driver that answers" in told.tell("dcgm") and "nvidia-smi: not installed" in told.tell("dcgm")
    assert "run: the role nvidia_driver first" in told.tell("dcgm")
    assert "cuda_toolkit_version: newer than the driver" in told.tell("cuda_toolkit")
    assert "found no driver that answers" in told.tell("cuda_toolkit")


def test_both_install_work_and_change_nothing_again(node: GpuHost, repository: Repository) -> None:
    install_as_images_do(node, repository)
    first = node.play(*ROLES, **repository.variables)
    assert first.status == 0, first.output
    first.says("no NVSwitch is visible: no Fabric Manager is installed")
    assert node.ask("/usr/local/cuda-13.0/bin/nvcc --version | tail -1").startswith(
        "Cuda compilation tools, release 13.0"
    )
    assert node.ask("bash -lc 'command -v nvcc'") == "/usr/local/cuda-13.0/bin/nvcc"
    assert node.ask("systemctl is-active nvidia-dcgm; systemctl is-enabled nvidia-dcgm") == "active\nenabled"
    assert node.ask("dcgmi discovery -l") == "4 GPUs found."
    assert node.run("dpkg-query -W nvidia-fabricmanager nvlsm", check=False).stdout == ""
    record = json.loads(node.ask("cat /etc/decamp/node-facts.json"))
    assert (record["driver"]["loaded"], record["cuda"]["toolkits"][0]["version"]) == (DRIVER, "13.0.2")
    second = node.play(*ROLES, **repository.variables)
    assert (second.status, second.changed) == (0, 0), second.output


def test_check_mode_and_refusals(node: GpuHost, repository: Repository) -> None:
    packages = node.ask("dpkg -l | md5sum")
    room = {"cuda_toolkit_space_gib": 10**6, **repository.variables}
    steps = {
        # It is there already, so it needs no room.
        "full": Step("cuda_toolkit", {"cuda_toolkit_version": "13.0.2", **room}),
        "roomless": Step("cuda_toolkit", {"cuda_toolkit_version": "13.2.1", **room}),
        "newer": Step("cuda_toolkit", {"cuda_toolkit_version": "14.0.1", **repository.variables}),
        "absent": Step("dcgm", {"dcgm_version": "4.9.9", **repository.variables}),
    }
    told = node.play_steps(steps, rescued=True)
    assert (told.status, told.changed) == (0, 0), told.output
    assert told.tell("full").startswith("not refused")
    assert "/usr/local: too little space for the CUDA toolkit: expected 1000000 GiB free" in told.tell("roomless")
    assert "cuda_toolkit_version: newer than the driver: expected a driver for CUDA 14.0" in told.tell("newer")
    assert f"found driver {DRIVER} for CUDA 13.2" in told.tell("newer")
    missing = "datacenter-gpu-manager-4-cuda13: version not in the repository: expected 4.9.9, found 1:4.5.2-1"
    assert missing in told.tell("absent")
    would = node.play("cuda_toolkit", check=True, cuda_toolkit_version="13.2.1", **repository.variables)
    assert would.status == 0 and would.changed > 0, would.output
    assert node.ask("dpkg -l | md5sum") == packages


def test_what_driver_dcgm_and_fabric_do_not_have_is_named(node: GpuHost, repository: Repository) -> None:
    node.run("sed -i 's/^echo .*/echo \"3 GPUs found.\"/' /usr/bin/dcgmi")
    node.run(f"sed -i '/^GPU 00000000:C1:00.0/,$d' {REPORT}")
    node.run(f"sed -i '0,/: N\\/A/s/State .*: N\\/A/State                             : In Progress/' {REPORT}")
    steps = {role: Step(role, repository.variables) for role in ("dcgm", "nvidia_driver", "nvidia_fabric")}
    told = node.play_steps(steps, rescued=True)
    assert (told.status, told.changed) == (0, 0), told.output
    assert "DCGM does not see every GPU: expected 4, found '3 GPUs found.'" in told.tell("dcgm")
    driver = "the driver does not have every GPU: expected 4, found 3, without 0000:c1:00.0"
    assert driver in told.tell("nvidia_driver")
    waiting = told.tell("nvidia_fabric")
    assert "a GPU waits for a fabric and no NVSwitch is visible here" in waiting
    assert "In Progress on 0000:21:00.0" in waiting
