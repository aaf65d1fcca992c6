"""The role nvidia_driver on a booted host whose image brought a driver: kept where it will do, replaced where not."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import pytest

from tests.roles.gpu_host import GpuHost, booted
from tests.roles.gpu_machines import RTX_PRO_6000_X4
from tests.roles.nvidia_packages import DRIVER, OLD_DRIVER, Repository, build_module, install_as_images_do


@pytest.fixture(scope="module")
def image_node(tmp_path_factory: pytest.TempPathFactory, repository: Repository) -> Iterator[GpuHost]:
    with booted(tmp_path_factory.mktemp("rtx"), RTX_PRO_6000_X4) as node:
        node.write("/etc/modprobe.d/image.conf", "blacklist nouveau\n")
        install_as_images_do(node, repository, OLD_DRIVER)
        yield node


def test_a_good_driver_of_the_image_is_kept_and_only_held(image_node: GpuHost, repository: Repository) -> None:
    boot, before = image_node.boot_id(), image_node.ask("dpkg-query -W")

    unheld = image_node.play("nvidia_driver", nvidia_driver_hold=False, **repository.variables)
    assert (unheld.status, unheld.changed) == (0, 0), unheld.output
    unheld.says(f"driver {OLD_DRIVER} with open kernel modules is installed and at least {OLD_DRIVER}: it is kept")

    held = image_node.play("nvidia_driver", **repository.variables)
    assert (held.status, held.changed) == (0, 1), held.output
    assert "nvidia-kernel-open-dkms" in image_node.ask("apt-mark showhold").split()
    assert image_node.ask("dpkg-query -W") == before and image_node.boot_id() == boot


def test_an_image_with_the_wrong_modules(image_node: GpuHost, repository: Repository) -> None:
    # As if the image had NVIDIA's proprietary modules of a version that is otherwise good enough.
    module = base64.b64encode(build_module(OLD_DRIVER, "NVIDIA")).decode()
    image_node.run("base64 -d > /lib/modules/$(uname -r)/updates/dkms/nvidia.ko", stdin=module)
    image_node.run("touch /usr/bin/nvidia-uninstall")
    before = image_node.ask("dpkg-query -W")
    refused = image_node.play("nvidia_driver", **repository.variables)
    assert refused.status != 0 and refused.changed == 0
    refused.says(f"driver {OLD_DRIVER} came from a .run file", "(proprietary)", "run: nvidia-uninstall")
    assert image_node.ask("dpkg-query -W") == before

    # Images are made small: the source is there, and what it has is not.
    image_node.run("rm -r /usr/bin/nvidia-uninstall /var/lib/apt/lists/*")
    replaced = image_node.play("nvidia_driver", **repository.variables)
    assert replaced.status == 0, replaced.output
    # The image's own source serves; a second one for the same address would break apt.
    assert image_node.run("test -e /etc/apt/sources.list.d/decamp-nvidia.sources", check=False).returncode == 1
    replaced.says(f"4 x NVIDIA RTX PRO 6000 Blackwell Server Edition, driver {DRIVER} (open)")


def test_a_part_of_the_role_runs_alone(image_node: GpuHost, repository: Repository) -> None:
    image_node.run("systemctl disable -q --now nvidia-persistenced")
    loaded = image_node.play("nvidia_driver", tags="nvidia_driver_load", **repository.variables)
    assert (loaded.status, loaded.changed) == (0, 1), loaded.output
    assert image_node.ask("systemctl is-active nvidia-persistenced") == "active"
