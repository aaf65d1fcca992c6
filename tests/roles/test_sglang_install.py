"""SGLang itself is installed by uv on a host, its own parser judges the flags there, and its failure is told.

The lock file here leaves out SGLang's own packages (gigabytes of CUDA), so the server cannot start: that is the last
test. Everything before it is what a GPU node gets.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.roles.gpu_host import GpuHost, Played, Step, booted
from tests.roles.gpu_machines import RTX_PRO_6000_X4

LOCK = Path(__file__).with_name("sglang_without_packages.txt")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuHost]:
    smi = RTX_PRO_6000_X4.format_smi("590.48", "13.1")
    with booted(tmp_path_factory.mktemp("rtx"), RTX_PRO_6000_X4, smi=smi) as started:
        answer = (
            "#!/bin/sh\ncase $* in *memory.used*) printf '0, 4\\n1, '; cat /run/used-mib 2>/dev/null || echo 4 ;;"
            " *) cat /var/lib/stand-in-gpu/nvidia-smi-q.txt ;; esac\n"
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
        "sglang_restart_s": 0,
    }
    return node.play(*roles, **{**settings, **others})


def test_a_node_without_a_cuda_toolkit_is_told_before_anything_is_started(node: GpuHost) -> None:
    told = play(node, "workspace", "sglang")
    assert told.status != 0
    told.says("/usr/local/cuda-13.0: no CUDA toolkit", "run: the role cuda_toolkit, or set sglang_cuda_home")
    assert node.run("ls /etc/systemd/system/sglang.service", check=False).returncode != 0
    node.run("mkdir -p /usr/local/cuda-13.0/bin && ln -s /bin/true /usr/local/cuda-13.0/bin/nvcc")


def test_a_flag_that_sglang_refuses_stops_before_anything_is_started(node: GpuHost) -> None:
    refused = play(node, "workspace", "sglang", sglang_extra_flags=["--no-such-flag"])
    assert refused.status != 0
    refused.says("would refuse its launch command, nothing was started: unknown flag: --no-such-flag")
    assert node.run("ls /etc/systemd/system/sglang.service", check=False).returncode != 0
    found = node.run("ls /opt/sglang").stdout
    assert "0.5.23-" in found


def test_the_environment_is_installed_once(node: GpuHost) -> None:
    stored = {
        "sglang_hicache": True, "sglang_hicache_size_gb": 1, "sglang_hicache_storage_backend": "file",
        "sglang_hicache_storage_directory": "/workspace/hicache", "sglang_state": "configured",
    }  # fmt: skip
    old, used = "/opt/sglang/0.5.20-0123456789ab", "/opt/sglang/0.5.21-ba9876543210"
    node.run(f"mkdir -p {old}/bin {used}/bin && cp /bin/sleep {used}/bin/python")
    node.run(f"setsid {used}/bin/python 900 > /dev/null 2>&1 < /dev/null & echo $! > /run/used.pid")
    again = play(node, "sglang", **stored)
    assert again.status == 0, again.output
    # The unit, its environment file and their directory, and one old environment; not the new one.
    assert again.changed <= 5
    assert node.ask(f"ls -d {old} {used} 2>/dev/null || true") == used
    node.run(f"kill $(cat /run/used.pid); rm -r {used}")
    last = play(node, "sglang", **stored)
    assert (last.status, last.changed) == (0, 0), last.output
    unit = node.run("cat /etc/systemd/system/sglang.service").stdout
    assert '"--dp-size" "4"' in unit
    assert '"--hicache-size" "1"' in unit and '"--hicache-storage-backend" "file"' in unit
    environment = node.run("cat /etc/decamp/sglang.env; stat -c %a /etc/decamp/sglang.env").stdout
    assert 'SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR="/workspace/hicache"\n600' in environment
    assert 'CUDA_HOME="/usr/local/cuda-13.0"\n' in environment
    assert 'HOME="/var/cache/sglang"\n' in environment


def test_a_server_that_cannot_start_is_told_with_the_journals_last_lines(node: GpuHost) -> None:
    dead = play(node, "sglang")
    assert dead.status != 0
    dead.says("not ready", "ModuleNotFoundError", "run: journalctl -u sglang.service")
    assert node.ask("stat -c '%U %a' /var/cache/sglang") == "decamp 750"


def test_a_stop_says_which_gpu_memory_is_still_held(node: GpuHost) -> None:
    stop = {
        "sglang": Step("sglang", {"service_stop_gpu_timeout_s": 2, "sglang_host": node.address}, "stop"),
    }
    node.run("echo 151234 > /run/used-mib")
    held = node.play_steps(stop, rescued=True)
    assert held.status == 0, held.output
    expected = "sglang.service: stopped, but GPU memory is still held after 2 s: expected at most 600 MiB on each GPU"
    assert f"{expected}, found GPU 1: 151234 MiB; run: nvidia-smi on the node" in held.tell("sglang")
    tolerant = {"sglang": Step("sglang", {**stop["sglang"].variables, "service_stop_tolerant": True}, "stop")}
    named = node.play_steps(tolerant, rescued=True)
    assert named.tell("sglang").startswith("not refused")
    named.says(expected)
    node.run("rm /run/used-mib")
    assert node.play_steps(stop, rescued=True).tell("sglang").startswith("not refused")


def test_a_stop_says_that_the_driver_does_not_answer(node: GpuHost) -> None:
    wanted = {"service_stop_smi_timeout_s": 1, "sglang_host": node.address}
    stop = {"sglang": Step("sglang", wanted, "stop")}
    node.run("mv /usr/local/bin/nvidia-smi /usr/local/bin/nvidia-smi.good")
    expected = "GPU memory cannot be seen: expected an answer of nvidia-smi, found"
    words = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    node.write("/usr/local/bin/nvidia-smi", f'#!/bin/sh\necho "{words}"; exit 9\n', "0755")
    assert f"{expected} {words}; run: nvidia-smi on the node" in node.play_steps(stop, rescued=True).tell("sglang")
    node.write("/usr/local/bin/nvidia-smi", "#!/bin/sh\nexec sleep 60\n", "0755")
    assert f"{expected} none within 1 s" in node.play_steps(stop, rescued=True).tell("sglang")
    node.run("rm /usr/local/bin/nvidia-smi")
    gone = node.play_steps(stop, rescued=True)
    assert gone.tell("sglang").startswith("not refused"), gone.output
    node.run("mv /usr/local/bin/nvidia-smi.good /usr/local/bin/nvidia-smi")
