"""A bundle holds exactly what its lock names for the host, installs with python3 alone, and refuses damage."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from decamp.bundle import build_bundle, select_requirements
from decamp.errors import BadInput

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"
HASH = "--hash=sha256:" + "0" * 64


def install(bundle: Path, target: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["/usr/bin/env", "-i", sys.executable, "-I", str(bundle), str(target)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def test_markers_are_decided_for_the_host_and_not_for_this_machine() -> None:
    lock = f'a==1 ; python_version < "3.11" \\\n    {HASH}\nb==2 ; platform_machine == "aarch64" {HASH}\nc==3 {HASH}\n'
    assert select_requirements(lock, "3.10", "x86_64") == f"a==1 {HASH}\nc==3 {HASH}\n"
    assert select_requirements(lock, "3.12", "aarch64") == f"b==2 {HASH}\nc==3 {HASH}\n"


@pytest.mark.parametrize("line", ["a==1", f"a>=1 {HASH}", f"not a name == {HASH}"])
def test_a_line_that_is_not_locked_is_refused(line: str) -> None:
    with pytest.raises(BadInput):
        select_requirements(line, "3.11", "x86_64")


def test_decamp_runs_from_its_bundle_beside_another(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/hello.txt").write_text("hello")
    (tmp_path / "source/.hidden").write_text("stays here")
    first = build_bundle("source", None, HERE, "x86_64", source=tmp_path / "source", cache=tmp_path / "cache")
    again = build_bundle("source", None, HERE, "x86_64", source=tmp_path / "source", cache=tmp_path / "cache")
    assert (first.cached, again.cached) == (False, True)
    own = build_bundle("own", None, HERE, "x86_64", with_decamp=True, uses=["side"], cache=tmp_path / "cache")
    assert install(first.path, tmp_path / "opt/a").stdout == "installed\n"
    assert install(first.path, tmp_path / "opt/a").stdout == "already there\n"
    assert [path.name for path in (tmp_path / "opt/a/src").iterdir()] == ["hello.txt"]
    assert install(own.path, tmp_path / "opt/own").returncode == 0
    side = tmp_path / "opt/side/lib"
    side.mkdir(parents=True)
    (side / "yaml.py").write_text("raise SystemExit('the package beside')")
    ran = subprocess.run(
        [sys.executable, "-S", str(tmp_path / "opt/own/bin/decamp")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    # -S hides this environment's packages, so what decamp imports first of them comes from the bundle beside.
    assert "decamp" in ran.stderr or "the package beside" in ran.stderr


def test_a_damaged_bundle_installs_nothing(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/hello.txt").write_text("hello")
    bundle = build_bundle("source", None, HERE, "x86_64", source=tmp_path / "source", cache=tmp_path / "cache")
    damaged = tmp_path / "damaged.pyz"
    with zipfile.ZipFile(bundle.path) as old, zipfile.ZipFile(damaged, "w") as new:
        for name in old.namelist():
            new.writestr(name, b"hallo" if name == "src/hello.txt" else old.read(name))
    refused = install(damaged, tmp_path / "opt")
    assert refused.returncode == 1
    assert "src/hello.txt: damaged on its way" in refused.stderr
    assert not (tmp_path / "opt").exists()


def test_a_bundle_for_another_python_is_refused_on_the_host(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    (tmp_path / "source/hello.txt").write_text("hello")
    other = "3.10" if HERE != "3.10" else "3.12"
    bundle = build_bundle("source", None, other, "x86_64", source=tmp_path / "source", cache=tmp_path / "cache")
    refused = install(bundle.path, tmp_path / "opt")
    assert f"expected {other}, found {HERE}" in refused.stderr
