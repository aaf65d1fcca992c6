"""Launch commands are accepted or refused by the argument classes in SGLang's real wheel, for every preset."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).resolve().parents[2]
CHECKER = CHECKOUT / "roles" / "sglang" / "files" / "check_flags.py"
PRESETS = sorted(path.stem for path in (CHECKOUT / "roles/sglang/vars/presets").glob("*.yml"))
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decamp" / "sglang-0.5.23"


@pytest.fixture(scope="session")
def packages() -> Path:
    """SGLang 0.5.23's Python files and msgspec in one directory, downloaded once."""
    target = CACHE / "packages"
    if not (CACHE / ".complete").exists():
        CACHE.mkdir(parents=True, exist_ok=True)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*pip, "--dest", str(CACHE), "sglang==0.5.23", "msgspec==0.21.1"], check=True, timeout=300)
        for wheel in CACHE.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(target, [n for n in archive.namelist() if n.endswith((".py", ".so"))])
        (CACHE / ".complete").touch()
    return target


def check(packages: Path, *flags: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(CHECKER), str(packages), "--", *flags]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(packages)}
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)


def render(preset: str, directory: Path, **variables: object) -> list[str]:
    """Returns the flags that the role makes of a preset, by Ansible itself."""
    output = directory / "flags.json"
    play = {
        "hosts": "localhost",
        "gather_facts": False,
        "vars": {"sglang_preset": preset, **variables},
        "tasks": [
            {"include_role": {"name": "sglang", "tasks_from": "command"}},
            {"copy": {"content": "{{ sglang_launch_arguments | to_json }}", "dest": str(output), "mode": "0600"}},
        ],
    }
    (directory / "play.yml").write_text(json.dumps([play]))
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", "localhost,", "-c", "local"]
    command += ["-e", f"ansible_python_interpreter={sys.executable}", str(directory / "play.yml")]
    ended = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=120, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    flags: list[str] = json.loads(output.read_text())
    return flags


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_are_accepted(packages: Path, preset: str, tmp_path: Path) -> None:
    flags = render(preset, tmp_path)
    accepted = check(packages, *flags)
    assert accepted.returncode == 0, f"{flags}\n{accepted.stdout}{accepted.stderr}"
    replicas = {"qwen3.6-27b-fp8_b200x8": "8", "qwen3.6-27b-fp8_rtxpro6000x4": "4"}[preset]
    assert flags[flags.index("--dp-size") + 1] == replicas


def test_a_variable_wins_over_the_preset(packages: Path, tmp_path: Path) -> None:
    flags = render(PRESETS[0], tmp_path, sglang_mtp=False, sglang_hicache=True, sglang_hicache_size_gb=64)
    assert "--speculative-algorithm" not in flags
    assert flags[flags.index("--hicache-size") + 1] == "64"
    assert "--hicache-ratio" not in flags
    assert check(packages, *flags).returncode == 0


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--no-such-flag"], "unknown flag: --no-such-flag"),
        (["--mamba-scheduler-strategy", "x"], "unknown flag: --mamba-scheduler-strategy"),
        (["--kv-cache-dtype", "fp9"], "invalid choice: 'fp9'"),
        (["--dp-size", "eight"], "invalid int value: 'eight'"),
        (["--reasoning-parser", "qwen33"], "invalid choice: 'qwen33'"),
        (["--dp-siz", "8"], "unknown flag: --dp-siz"),
        (["--speculative-algorithm", "EAGEL"], "unknown: expected one of DFLASH"),
        (["--dp-size", "2", "--nnodes", "2"], "refused together with --nnodes"),
        (["--port", "1", "--port", "2"], "given more than once: --port"),
    ],
)
def test_what_sglang_would_refuse_is_refused(packages: Path, flags: list[str], words: str) -> None:
    refused = check(packages, "--model-path", "m", *flags)
    assert refused.returncode == 2, refused.stdout + refused.stderr
    assert words in refused.stdout
