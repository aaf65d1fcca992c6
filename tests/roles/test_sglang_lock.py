"""The lock of SGLang's environment is whole: every package it needs is in it, with a wheel for the nodes.

uv decides as it does on a node, for the role's Python, but reads the packages' descriptions alone: no gigabytes.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROLE = Path(__file__).resolve().parents[2] / "roles/sglang"
LOCK = ROLE / "files/requirements.txt"
DEFAULTS = yaml.safe_load((ROLE / "defaults/main.yml").read_text())


def resolve(lock: Path, directory: Path, machine: str = "x86_64") -> subprocess.CompletedProcess[str]:
    # SGLang 0.5.23 asks for glibc 2.34; Ubuntu 22.04 and Debian 12 have newer ones.
    command = [str(Path(sys.executable).with_name("uv")), "pip", "install", "--dry-run", "--require-hashes"]
    command += ["--only-binary", ":all:", "--python-version", str(DEFAULTS["sglang_python"]), "--python-platform"]
    command += [f"{machine}-manylinux_2_34", "--target", str(directory / "target"), "--requirement", str(lock)]
    cache = {"UV_CACHE_DIR": str(directory / "cache"), "UV_SYSTEM_CERTS": "1", "UV_NO_PROGRESS": "1"}
    return subprocess.run(
        command, env={**os.environ, **cache}, capture_output=True, text=True, timeout=120, check=False
    )


def test_the_lock_holds_all_that_sglang_needs(tmp_path: Path) -> None:
    resolved = resolve(LOCK, tmp_path)
    assert resolved.returncode == 0, resolved.stderr
    chosen = resolved.stderr.split()
    assert f"sglang=={DEFAULTS['sglang_version']}" in chosen
    assert any(word.startswith("torch==2.") for word in chosen)


@pytest.mark.parametrize("package", ["xgrammar", "torch"])
def test_a_package_that_is_missing_from_a_lock_is_noticed(tmp_path: Path, package: str) -> None:
    lines = LOCK.read_text().split("\n")
    first = next(number for number, line in enumerate(lines) if line.startswith(f"{package}=="))
    last = next(number for number in range(first, len(lines)) if not lines[number].endswith("\\"))
    (tmp_path / "lock.txt").write_text("\n".join(lines[:first] + lines[last + 1 :]))
    resolved = resolve(tmp_path / "lock.txt", tmp_path)
    assert resolved.returncode != 0
    assert package in resolved.stderr
