"""SGLang itself is installed by uv on a host, its own parser judges the flags there, and its failure is told.

The lock file here leaves out SGLang's own packages (gigabytes of CUDA), so the server cannot start: that is the last
test. Everything before it is what a GPU node gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.roles.gpu_host import GpuHost, Played, booted
from tests.roles.gpu_machines import RTX_PRO_6000_X4

LOCK = Path(__file__).with_name("sglang_without_packages.txt")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuHost]:
    smi = RTX_PRO_6000_X4.format_smi("590.48", "13.1")
    with booted(tmp_path_factory.mktemp("rtx"), RTX_PRO_6000_X4, smi=smi) as started:
        answer = (
            "#!/bin/sh\ncase $* in *memory.used*) echo 0, 4 ;; *) cat /var/lib/stand-in-gpu/nvidia-smi-q.txt ;; esac\n"
        )
        started.write("/usr/local/bin/nvidia-smi", answer, "0755")
        yield started


def play(node: GpuHost, *roles: str, **others: Any) -> Played:
    settings: dict[str, Any] = {
        "workspace_min_free_bytes": 1,
        "sglang_preset": "qwen3.6-27b-fp8_rtxpro6000x4",
        "sglang_requirements": str(LOCK),
        "sglang_python": "/usr/bin/python3",
        "sglang_system_packages": [],
        "sglang_min_free_bytes": 1,
        "sglang_host": node.address,
        "sglang_ready_limit_s": 60,
    }
    return node.play(*roles, **{**settings, **others})


def test_a_flag_that_sglang_refuses_stops_before_anything_is_started(node: GpuHost) -> None:
    refused = play(node, "workspace", "sglang", sglang_extra_flags=["--no-such-flag"])
    assert refused.status != 0
    refused.says("would refuse its launch command, nothing was started: unknown flag: --no-such-flag")
    assert node.run("ls /etc/systemd/system/sglang.service", check=False).returncode != 0
    found = node.run("ls /opt/sglang").stdout
    assert "0.5.23-" in found


def test_the_environment_is_installed_once(node: GpuHost) -> None:
    again = play(node, "sglang", sglang_state="configured")
    assert again.status == 0, again.output
    assert again.changed <= 4  # the unit, its environment file and their directory; not the environment
    last = play(node, "sglang", sglang_state="configured")
    assert (last.status, last.changed) == (0, 0), last.output
    unit = node.run("cat /etc/systemd/system/sglang.service").stdout
    assert '"--dp-size" "4"' in unit


def test_a_server_that_cannot_start_is_told_with_the_journals_last_lines(node: GpuHost) -> None:
    dead = play(node, "sglang", sglang_ready_limit_s=8)
    assert dead.status != 0
    dead.says("not ready", "ModuleNotFoundError", "run: journalctl -u sglang.service")
