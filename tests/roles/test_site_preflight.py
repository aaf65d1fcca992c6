"""site.yml on a GPU host without a driver: what cannot work is refused before anything changes, the driver included.

Each node of the inventory is the same booted host with other settings, so one run of the playbook tries them all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from decamp.playbook import PlaybookResult, run_playbook
from tests.roles.gpu_host import CHECKOUT, STAND_IN, GpuHost, Step, booted
from tests.roles.gpu_machines import RTX_PRO_6000_X4
from tests.roles.nvidia_packages import DRIVER, Repository

OWN, OTHER = "qwen3.6-27b-fp8_rtxpro6000x4", "qwen3.6-27b-fp8_b200x8"
BY_PCI = "(by PCI id, as no driver answers yet)"
PLACES = "/etc /opt /srv /usr /var/lib/apt /var/lib/dpkg /models /workspace"
STATE = f"dpkg -l | md5sum; find {PLACES} -newer /run/before 2>/dev/null | sort"

REFUSED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "another-gpu": (
        {"sglang_preset": OTHER},
        [
            f"GPUs: expected 8 (dp 8 x tp 1), found 4 {BY_PCI}",
            f"wrong GPU: expected B200, found NVIDIA RTX PRO 6000 Blackwell Server Edition {BY_PCI}",
        ],
    ),
    "settings": (
        {
            "sglang_dp_size": 2,
            "sglang_attention_backend": "trtllm_mha",
            "sglang_weights_bytes": 200_000_000_000,
            "sglang_hicache": True,
            "sglang_hicache_size_gb": 100_000,
        },
        [
            f"GPUs: expected 2 (dp 2 x tp 1), found 4 {BY_PCI}; run: set sglang_dp_size and sglang_tp_size",
            "sglang_attention_backend trtllm_mha: expected B200 or B300, found NVIDIA RTX PRO 6000 Blackwell Server",
            f"GPU memory: too little for the model: expected more than 219.1 GiB on each GPU, found 95.6 GiB {BY_PCI}",
            "memory: too little for HiCache: expected 181.9 TiB (10.0 GiB of them SGLang leaves free), found",
        ],
    ),
    "port": ({"sglang_port": 30000}, [":30000: port taken: expected it free, found", "http.server"]),
    "disk": (
        {"sglang_min_free_bytes": 1 << 60},
        ["/opt/sglang: SGLang cannot be installed: expected 1048576.0 TiB free and glibc 2.34, found"],
    ),
    "driver": (
        {"nvidia_driver_version": "595.99.99"},
        ["nvidia-open: version not in the repository: expected 595.99.99, found", f"{DRIVER}-1"],
    ),
    "model": (
        {"model_size_bytes": 1 << 60},
        ["/models/current: too little space: expected 1048576.0 TiB (1048576.0 TiB of them to fetch), found"],
    ),
    "compiler": (
        {"cuda_toolkit_space_gib": 1 << 30},
        ["/usr/local: too little space for the CUDA toolkit: expected 1073741824 GiB free, found"],
    ),
    "storage": (
        {"instance_storage_devices": ["/dev/null"]},
        ["/dev/null: not used: expected blank disks or one filesystem, found"],
    ),
    "prompts": (
        {"job_prompts": "/srv/nowhere.jsonl"},
        ["job_prompts: no prompts: expected /srv/nowhere.jsonl on the node, found no such file"],
    ),
    "input": ({"job_inputs": [{"url": "s3://b/k", "path": "../k"}]}, ["job_inputs: expected s3://bucket/key", "../k"]),
}


def refused_by_what_the_node_has(node: GpuHost) -> dict[str, tuple[dict[str, Any], list[str]]]:
    """What is refused is measured on the node: each fits alone and not together, or fits without a reserve alone."""
    free = int(node.ask("df --block-size=1 --output=avail / | tail -1"))
    memory_gb = int(node.ask("sed -n 's/MemTotal: *\\([0-9]*\\) kB/\\1/p' /proc/meminfo")) * 1024 // 1_000_000_000
    share = int(free * 0.7)
    return {
        "together": (
            {"model_size_bytes": share, "sglang_min_free_bytes": share, "cuda_toolkit_space_gib": 1},
            ["too little space for all of it together: expected", "model ", "CUDA toolkit 1.0 GiB, server "],
        ),
        "reserve": (
            {"sglang_hicache": True, "sglang_hicache_size_gb": memory_gb // 4},
            ["memory: too little for HiCache: expected", "(10.0 GiB of them SGLang leaves free)"],
        ),
    }


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuHost]:
    with booted(tmp_path_factory.mktemp("rtx"), RTX_PRO_6000_X4) as started:
        yield started


def write_inventory(node: GpuHost, repository: Repository, nodes: dict[str, dict[str, Any]]) -> str:
    """An inventory of rented hosts that are all this one."""
    common = {
        "ansible_host": node.address, "ansible_user": "root", "ansible_ssh_private_key_file": str(node.private_key),
        "ansible_ssh_common_args": f"-o UserKnownHostsFile={node.directory}/known_hosts -o IdentitiesOnly=yes",
        "ansible_control_path": f"{node.directory}/cp", "stack_nodes": sorted(nodes),
        "stack_store": {"url": "s3://decamp/archive", "endpoint": "http://127.0.0.1:9", "region": "us-east-1"},
        "node_facts_count_shared_gpus": True, "workspace_min_free_bytes": 1, "model_repository": "maker/model",
        "model_hub_endpoint": "http://127.0.0.1:9",
        "model_revision": "0" * 40, "model_free_after_bytes": 1, "sglang_host": node.address, "sglang_port": 30001,
        "sglang_preset": OWN, "sglang_min_free_bytes": 1, **repository.variables,
    }  # fmt: skip
    path = node.directory / "rented.yml"
    path.write_text(json.dumps({"all": {"vars": common, "children": {"rented": {"hosts": nodes}}}}))
    return str(path)


def play(inventory: str, **options: Any) -> tuple[PlaybookResult, str]:
    lines: list[str] = []
    return run_playbook("site.yml", tell=lines.append, inventory=inventory, **options), "\n".join(lines)


def test_each_is_refused_and_nothing_changes(node: GpuHost, repository: Repository) -> None:
    server = f"python3 -m http.server --bind {node.address} --directory /run 30000"
    node.run(f"nohup {server} > /dev/null 2>&1 < /dev/null & echo $! > /run/server.pid; sleep 1; touch /run/before")
    before = node.ask(STATE)
    all_refused = {**REFUSED, **refused_by_what_the_node_has(node)}
    inventory = write_inventory(node, repository, {name: variables for name, (variables, _) in all_refused.items()})
    limited, told = play(inventory, limit="port")
    assert [failure.host for failure in limited.failures] == ["port"], told
    result, told = play(inventory)
    assert result.exit_status != 0
    assert result.changed == {}, told
    failed = {failure.host: " ".join(failure.message.split()) for failure in result.failures}
    missing = {
        name: (words, failed.get(name)) for name, (_, all_words) in all_refused.items() for words in all_words
        if words not in failed.get(name, "")
    }  # fmt: skip
    assert not missing, told
    assert all("run: " in message for message in failed.values())
    assert len(result.failures) == len(all_refused)
    assert node.ask(STATE) == before
    node.run("kill $(cat /run/server.pid)")


def test_check_mode_goes_through_on_a_bare_node_and_changes_nothing(node: GpuHost, repository: Repository) -> None:
    """What a first run would do is told without the driver that it would bring."""
    before = node.ask(f"touch /run/before; {STATE}")
    # The other roles in check mode are tested without a GPU.
    tags = ["node_facts", "nvidia_driver", "nvidia_fabric", "cuda_toolkit", "dcgm", "sglang"]
    result, told = play(write_inventory(node, repository, {"right": {}}), check=True, tags=tags)
    assert result.exit_status == 0, told
    assert result.changed["right"] > 10
    for package in (f"nvidia-open {DRIVER}", "cuda-toolkit-13-0 13.0.2", "datacenter-gpu-manager-4-cuda13 4.5.2"):
        assert f"Would install {package}" in told
    assert "changed | Write the server's unit and its environment file" in told
    assert node.ask(STATE) == before


def test_a_gpu_that_the_bus_does_not_name_is_judged_when_its_driver_answers(node: GpuHost) -> None:
    """Before the driver nothing is guessed of it but how many there are."""
    node.run(f"for f in {STAND_IN}/bus/pci/devices/*/device; do sed -i s/2bb5/2bff/ $f; done")
    common = {"sglang_host": node.address, "sglang_min_free_bytes": 1}
    steps = {
        "unknown": Step("sglang", {**common, "sglang_preset": OWN}, "preflight"),
        "count": Step("sglang", {**common, "sglang_preset": OTHER}, "preflight"),
    }
    told = node.play_steps(steps, rescued=True)
    assert (told.status, told.changed) == (0, 0), told.output
    assert told.tell("unknown").startswith("not refused")
    assert f"GPUs: expected 8 (dp 8 x tp 1), found 4 {BY_PCI}" in told.tell("count")
    assert "wrong GPU" not in told.tell("count")

    answer = RTX_PRO_6000_X4.format_smi("595.71.05", "13.2").replace("RTX PRO 6000 Blackwell", "RTX PRO 5000 Blackwell")
    node.write("/usr/local/bin/nvidia-smi", f"#!/bin/sh\ncat <<'END'\n{answer}\nEND\n", "0755")
    told = node.play_steps(steps, rescued=True)
    assert "wrong GPU: expected RTX PRO 6000, found NVIDIA RTX PRO 5000 Blackwell Server Edition;" in told.tell(
        "unknown"
    )


def test_sixteen_nodes_are_asked_at_once() -> None:
    """As ansible itself reads ansible.cfg, so that nobody has to remember --forks."""
    program = Path(sys.executable).with_name("ansible-config")
    command = [str(program), "dump", "--only-changed", "--format", "json"]
    shown = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, check=True, timeout=60)
    settings = {entry["name"]: entry["value"] for entry in json.loads(shown.stdout) if "name" in entry}
    assert settings["DEFAULT_FORKS"] == 16
