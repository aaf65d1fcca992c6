"""The role nvidia_fabric on booted hosts: exactly the driver's version, and ready only when the fabric is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.roles.gpu_host import STAND_IN, GpuHost, booted
from tests.roles.gpu_machines import B200_X8, RTX_PRO_6000_X4
from tests.roles.nvidia_packages import DRIVER, NEWER_DRIVER, Repository, serve_repository

REPORT = STAND_IN / "nvidia-smi-q.txt"


def install_driver(node: GpuHost, repository: Repository, version: str = DRIVER) -> None:
    """Gives the host a driver as an image would bring it: from a source of the image's own."""
    node.write("/etc/apt/sources.list.d/cuda.list", f"deb [trusted=yes] {repository.base_url}/debian12/x86_64/ /\n")
    node.run(
        f"apt-get update -qq && apt-get install -qq -y nvidia-driver-pinning-{version}"
        " && apt-get install -qq -y nvidia-open && systemctl restart stand-in-gpu && nvidia-smi -q >/dev/null"
    )


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Repository]:
    with serve_repository(tmp_path_factory.mktemp("repository"), "127.0.78.12") as served:
        yield served


@pytest.fixture(scope="module")
def b200(tmp_path_factory: pytest.TempPathFactory, repository: Repository) -> Iterator[GpuHost]:
    """Eight B200 whose fabric nobody manages yet; Fabric Manager of another version is installed."""
    smi = B200_X8.format_smi("@DRIVER@", "13.2", fabric_state="In Progress")
    with booted(tmp_path_factory.mktemp("b200"), B200_X8, smi=smi) as node:
        install_driver(node, repository)
        yield node


@pytest.fixture(scope="module")
def rtx(tmp_path_factory: pytest.TempPathFactory, repository: Repository) -> Iterator[GpuHost]:
    with booted(tmp_path_factory.mktemp("rtx"), RTX_PRO_6000_X4) as node:
        install_driver(node, repository)
        yield node


def test_nothing_is_done_where_no_switch_is(rtx: GpuHost, repository: Repository) -> None:
    before = rtx.ask("dpkg -l | md5sum")
    played = rtx.play("nvidia_fabric", **repository.variables)
    assert (played.status, played.changed) == (0, 0), played.output
    played.says("no NVSwitch is visible: no Fabric Manager is installed")
    assert rtx.ask("dpkg -l | md5sum") == before


def test_a_gpu_that_waits_for_somebody_elses_fabric_is_named(rtx: GpuHost, repository: Repository) -> None:
    rtx.run(f"sed -i '0,/: N\\/A/s/State .*: N\\/A/State                             : In Progress/' {REPORT}")
    played = rtx.play("nvidia_fabric", **repository.variables)
    assert played.status != 0 and played.changed == 0
    played.says("a GPU waits for a fabric and no NVSwitch is visible here", "In Progress on 0000:21:00.0")


def test_stops_before_anything_changes_when_no_driver_is_loaded(b200: GpuHost, repository: Repository) -> None:
    b200.run("mv /run/stand-in-gpu/driver/nvidia /run/stand-in-gpu/unloaded")
    before = b200.ask("dpkg -l | md5sum")
    played = b200.play("nvidia_fabric", **repository.variables)
    b200.run("mv /run/stand-in-gpu/unloaded /run/stand-in-gpu/driver/nvidia")
    assert played.status != 0 and played.changed == 0
    played.says("no driver that Fabric Manager could match", f"found none loaded and {DRIVER} installed")
    assert b200.ask("dpkg -l | md5sum") == before


def test_a_wrong_version_is_named_in_check_mode_and_left(b200: GpuHost, repository: Repository) -> None:
    b200.run(
        f"apt-get install -qq -y --allow-downgrades nvidia-fabricmanager={NEWER_DRIVER}-1"
        " && apt-mark hold nvidia-fabricmanager"
    )
    refused_by_itself = b200.run("nv-fabricmanager", check=False)
    assert f"version {NEWER_DRIVER} don't match with driver version {DRIVER}" in refused_by_itself.stdout
    played = b200.play("nvidia_fabric", check=True, **repository.variables)
    assert played.status == 0 and played.changed > 0, played.output
    played.says(f"Fabric Manager is {NEWER_DRIVER}, the driver is {DRIVER}")
    assert b200.ask("nv-fabricmanager --version").endswith(NEWER_DRIVER)
    assert b200.run("test -e /etc/modules-load.d/decamp-ib_umad.conf", check=False).returncode == 1


def test_a_fabric_that_stays_in_progress_is_not_ready(b200: GpuHost, repository: Repository) -> None:
    b200.run(f"touch {STAND_IN}/fabric-stuck")
    played = b200.play("nvidia_fabric", nvidia_fabric_ready_timeout_s=5, **repository.variables)
    b200.run(f"rm {STAND_IN}/fabric-stuck")
    assert played.status != 0
    played.says(
        "the fabric is not ready after 5 s: expected Fabric State Completed, Status Success on every GPU",
        "00000000:1B:00.0, In Progress, N/A", "00000000:DF:00.0", "error 802", "Successfully configured",
    )  # fmt: skip


def test_the_fabric_becomes_ready_and_a_second_run_changes_nothing(b200: GpuHost, repository: Repository) -> None:
    b200.run("systemctl stop nvidia-fabricmanager")
    first = b200.play("nvidia_fabric", **repository.variables)
    assert first.status == 0, first.output
    first.says(f"fabric Completed, Success on 8 GPUs; Fabric Manager {DRIVER}, NVLSM 2025.10.11-1")
    assert b200.ask("nv-fabricmanager --version").endswith(DRIVER)
    assert b200.ask("dpkg-query -W -f '${Package} ' nvlsm libibumad3 infiniband-diags").split() == [
        "infiniband-diags", "libibumad3", "nvlsm",
    ]  # fmt: skip
    assert {"nvidia-fabricmanager", "nvlsm"} <= set(b200.ask("apt-mark showhold").split())
    assert b200.ask("cat /var/log/modprobe-calls") == "ib_umad"
    assert b200.ask("systemctl is-enabled nvidia-fabricmanager") == "enabled"

    second = b200.play("nvidia_fabric", **repository.variables)
    assert (second.status, second.changed) == (0, 0), second.output


def test_a_manager_that_does_not_run_is_reported_with_its_journal(b200: GpuHost, repository: Repository) -> None:
    b200.write("/usr/bin/nv-fabricmanager", (
        "#!/bin/sh\n[ \"$1\" = --version ] && echo 'Fabric Manager version is : " + DRIVER + "' && exit 0\n"
        "echo 'NVLSM is not running, exiting'; exit 1\n"
    ), "0755")  # fmt: skip
    b200.run("systemctl stop nvidia-fabricmanager")
    played = b200.play("nvidia_fabric", **repository.variables)
    assert played.status != 0
    played.says(
        "nvidia-fabricmanager.service: not running: expected active, found failed", "NVLSM is not running, exiting"
    )
