"""The roles cuda_toolkit and dcgm on a booted host with a working driver."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.roles.gpu_host import STAND_IN, GpuHost, booted
from tests.roles.gpu_machines import RTX_PRO_6000_X4
from tests.roles.nvidia_packages import DRIVER, Repository, serve_repository


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with serve_repository(tmp_path_factory.mktemp("repository"), "127.0.78.13") as served:
        yield served


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuHost]:
    with booted(tmp_path_factory.mktemp("rtx"), RTX_PRO_6000_X4) as started:
        yield started


def test_both_ask_for_a_driver_first(node: GpuHost, repository: Repository) -> None:
    played = node.play("dcgm", **repository.variables)
    assert played.status != 0 and played.changed == 0
    played.says("no driver that answers", "nvidia-smi: not installed", "run: the role nvidia_driver first")
    played = node.play("cuda_toolkit", **repository.variables)
    assert played.status != 0 and played.changed == 0
    played.says("cuda_toolkit_version: newer than the driver", "found no driver that answers")


def test_both_install_work_and_change_nothing_again(node: GpuHost, repository: Repository) -> None:
    checked = node.play("nvidia_driver", "cuda_toolkit", "dcgm", **repository.variables)
    assert checked.status == 0, checked.output
    assert node.ask("/usr/local/cuda-13.0/bin/nvcc --version | tail -1").startswith(
        "Cuda compilation tools, release 13.0"
    )
    assert node.ask("bash -lc 'command -v nvcc'") == "/usr/local/cuda-13.0/bin/nvcc"
    assert node.ask("systemctl is-active nvidia-dcgm; systemctl is-enabled nvidia-dcgm") == "active\nenabled"
    assert node.ask("dcgmi discovery -l") == "4 GPUs found."
    second = node.play("nvidia_driver", "cuda_toolkit", "dcgm", **repository.variables)
    assert (second.status, second.changed) == (0, 0), second.output


def test_check_mode_and_refusals(node: GpuHost, repository: Repository) -> None:
    packages = node.ask("dpkg -l | md5sum")
    full = node.play(
        "cuda_toolkit", cuda_toolkit_version="13.0.2", cuda_toolkit_space_gib=10**6, **repository.variables
    )
    assert full.status == 0, full.output  # it is there already, so it needs no room
    roomless = node.play(
        "cuda_toolkit", cuda_toolkit_version="13.2.1", cuda_toolkit_space_gib=10**6, **repository.variables
    )
    roomless.says("/usr/local: too little space for the CUDA toolkit: expected 1000000 GiB free, found")
    newer = node.play("cuda_toolkit", cuda_toolkit_version="14.0.1", **repository.variables)
    newer.says(
        "cuda_toolkit_version: newer than the driver: expected a driver for CUDA 14.0",
        f"found driver {DRIVER} for CUDA 13.2",
    )
    absent = node.play("dcgm", dcgm_version="4.9.9", **repository.variables)
    absent.says("datacenter-gpu-manager-4-cuda13: version not in the repository: expected 4.9.9, found 1:4.5.2-1")
    would = node.play("cuda_toolkit", check=True, cuda_toolkit_version="13.2.1", **repository.variables)
    assert would.status == 0 and would.changed > 0, would.output
    assert all(played.status != 0 and played.changed == 0 for played in (roomless, newer, absent))
    assert node.ask("dpkg -l | md5sum") == packages


def test_a_gpu_that_dcgm_does_not_see_is_a_failure(node: GpuHost, repository: Repository) -> None:
    node.run("sed -i 's/^echo .*/echo \"3 GPUs found.\"/' /usr/bin/dcgmi")
    played = node.play("dcgm", **repository.variables)
    assert played.status != 0
    played.says("DCGM does not see every GPU: expected 4, found '3 GPUs found.'")


def test_a_gpu_the_driver_does_not_have_is_named(node: GpuHost, repository: Repository) -> None:
    node.run(f"sed -i '/^GPU 00000000:C1:00.0/,$d' {STAND_IN}/nvidia-smi-q.txt")
    played = node.play("nvidia_driver", **repository.variables)
    assert played.status != 0
    played.says("the driver does not have every GPU: expected 4, found 3, without 0000:c1:00.0")
