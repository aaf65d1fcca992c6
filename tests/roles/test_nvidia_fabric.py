"""The role nvidia_fabric on booted hosts: exactly the driver's version, and ready only when the fabric is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.roles.gpu_host import STAND_IN, GpuHost, booted
from tests.roles.gpu_machines import B200_X8
from tests.roles.nvidia_packages import DRIVER, NEWER_DRIVER, Repository, install_as_images_do


@pytest.fixture(scope="module")
def b200(tmp_path_factory: pytest.TempPathFactory, repository: Repository) -> Iterator[GpuHost]:
    """Eight B200 whose fabric nobody manages yet; Fabric Manager of another version is installed."""
    smi = B200_X8.format_smi("@DRIVER@", "13.2", fabric_state="In Progress")
    with booted(tmp_path_factory.mktemp("b200"), B200_X8, smi=smi) as node:
        install_as_images_do(node, repository)
        yield node


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
