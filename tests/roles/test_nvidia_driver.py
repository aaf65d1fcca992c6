"""The role nvidia_driver on a booted host without a driver: installing, holding, really rebooting, and refusing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.roles.gpu_host import STAND_IN, GpuHost, Step, booted
from tests.roles.gpu_machines import B200_X8
from tests.roles.nvidia_packages import DRIVER, NEWER_DRIVER, Repository

STATE = "dpkg -l | md5sum; find /etc/apt /etc/modprobe.d -type f | sort"


@pytest.fixture(scope="module")
def bare_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuHost]:
    with booted(tmp_path_factory.mktemp("b200"), B200_X8) as node:
        yield node


def version_of(node: GpuHost, package: str) -> str:
    return node.run(f"dpkg-query -W -f '${{Version}}' {package}", check=False).stdout


def test_check_mode_says_what_would_change_and_changes_nothing(bare_node: GpuHost, repository: Repository) -> None:
    before = bare_node.ask(STATE)
    played = bare_node.play("nvidia_driver", check=True, **repository.variables)
    assert played.status == 0 and played.changed > 0, played.output
    played.says(f"Would install nvidia-open {DRIVER}")
    assert bare_node.ask(STATE) == before


def test_bad_settings_and_sources_stop_before_any_package_changes(bare_node: GpuHost, repository: Repository) -> None:
    before = bare_node.ask(STATE)
    unpublished = {"nvidia_driver_version": "595.99.99", **repository.variables}
    early = {
        "low": Step("nvidia_driver", {"nvidia_driver_version": "570.86.15", **repository.variables}),
        # Noticed by the repository's list alone: apt has read nothing of it, and the key is not there yet.
        "unpublished": Step("nvidia_driver", unpublished),
        # Where the list cannot be read so, it is left to apt, here to find that the key cannot be had either.
        "unreachable": Step(
            "nvidia_driver", {**unpublished, "nvidia_repository_base_url": "http://127.0.0.1:9"}, "preflight"
        ),
    }
    told = bare_node.play_steps(early, rescued=True)
    assert (told.status, told.changed) == (0, 0), told.output
    assert "nvidia_driver_version: below the minimum: expected at least 580.65.06, found 570.86.15" in told.tell("low")
    words = "nvidia-open: version not in the repository: expected 595.99.99, found"
    assert words in told.tell("unpublished")
    assert f"{DRIVER}-1" in told.tell("unpublished") and f"{NEWER_DRIVER}-1" in told.tell("unpublished")
    assert told.tell("unreachable").startswith("not refused")
    assert bare_node.ask(STATE) == before

    forged = {**repository.variables, "nvidia_repository_key_fingerprint": "0" * 40}
    wrong_key = bare_node.play("nvidia_driver", **forged)
    assert wrong_key.status != 0
    wrong_key.says("3bf863cc.pub: wrong signing key: expected " + "0" * 40, f"found {repository.fingerprint}")
    left = bare_node.ask("ls /etc/apt/sources.list.d/ /etc/apt/keyrings/; find /etc/modprobe.d /tmp -name 'decamp*'")
    assert left.split() == [
        "/etc/apt/keyrings/:", "/etc/apt/sources.list.d/:",
    ]  # fmt: skip
    assert bare_node.ask("dpkg -l | grep -c nvidia || true") == "0"


def test_installs_the_pinned_driver_reboots_and_changes_nothing_again(
    bare_node: GpuHost, repository: Repository
) -> None:
    bare_node.run(f"touch {STAND_IN}/has-nouveau; mkdir /run/stand-in-gpu/module/nouveau")
    boot = bare_node.boot_id()
    first = bare_node.play("nvidia_driver", **repository.variables)
    assert first.status == 0, first.output
    first.says(f"8 x NVIDIA B200, driver {DRIVER} (open), CUDA up to 13.2")

    assert bare_node.boot_id() != boot
    assert version_of(bare_node, "nvidia-driver-cuda") == f"{DRIVER}-1"  # and not the newer branch
    assert bare_node.ask("modinfo -F version nvidia") == DRIVER
    assert DRIVER in bare_node.ask("cat /proc/driver/nvidia/version")
    # The initramfs was made again after the rule was written, or nouveau would come back from it.
    assert "blacklist nouveau" in bare_node.ask("cat /var/log/initramfs-updates")
    assert bare_node.run("test -d /sys/module/nouveau", check=False).returncode == 1
    assert (
        bare_node.ask("systemctl is-active nvidia-persistenced; systemctl is-enabled nvidia-persistenced")
        == "active\nenabled"
    )
    assert set(bare_node.ask("apt-mark showhold").split()) == {
        "nvidia-open", "nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced",
    }  # fmt: skip

    boot = bare_node.boot_id()
    second = bare_node.play("nvidia_driver", **repository.variables)
    assert (second.status, second.changed) == (0, 0), second.output
    assert bare_node.boot_id() == boot


def test_an_upgrade_behind_its_back_leads_to_a_reboot_unless_somebody_works(
    bare_node: GpuHost, repository: Repository
) -> None:
    bare_node.run(
        "DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --allow-change-held-packages "
        f"nvidia-driver-cuda={NEWER_DRIVER}-1 nvidia-kernel-open-dkms={NEWER_DRIVER}-1"
    )
    assert "Driver/library version mismatch" in bare_node.run("nvidia-smi", check=False).stdout
    boot = bare_node.boot_id()

    put_off = bare_node.play("nvidia_driver", nvidia_driver_reboot=False, **repository.variables)
    assert put_off.status == 0, put_off.output
    put_off.says("REBOOT NEEDED", f"driver {NEWER_DRIVER} is installed and {DRIVER} is loaded")

    bare_node.run("touch /dev/nvidia0; nohup sh -c 'exec sleep 300 < /dev/nvidia0' >/dev/null 2>&1 &")
    refused = bare_node.play("nvidia_driver", **repository.variables)
    assert refused.status != 0
    refused.says("a reboot is needed and processes use the GPU", "sleep")
    assert bare_node.boot_id() == boot

    bare_node.run("for p in $(pidof sleep); do if ls -l /proc/$p/fd | grep -q nvidia0; then kill $p; fi; done")
    played = bare_node.play("nvidia_driver", **repository.variables)
    assert played.status == 0, played.output
    assert bare_node.boot_id() != boot
    assert NEWER_DRIVER in bare_node.ask("cat /proc/driver/nvidia/version")
