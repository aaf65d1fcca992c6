"""A bundle holds exactly what its lock names for the host, installs with python3 alone, and refuses damage."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import zipfile
from pathlib import Path

import pytest

from decamp.bundle import build_bundle, select_requirements
from decamp.bundle_installer import prune
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


def make_bundle(root: Path, name: str, version: str, age_s: int, uses: tuple[str, ...] = ()) -> Path:
    """Puts a directory as an installed bundle leaves it."""
    directory = root / version
    (directory / "lib").mkdir(parents=True)
    (directory / ".complete").write_text(json.dumps({"name": name, "digest": version, "uses": list(uses)}))
    now = time.time()
    os.utime(directory / ".complete", (now - age_s, now - age_s))
    return directory


def test_old_bundles_go_and_what_is_needed_stays(tmp_path: Path) -> None:
    root, host = tmp_path / "opt/decamp", tmp_path
    make_bundle(root, "packages", "p1", 500)
    make_bundle(root, "packages", "p2", 400)
    make_bundle(root, "packages", "p3", 300)
    make_bundle(root, "packages", "p4", 200)
    new = make_bundle(root, "packages", "p5", 100)
    make_bundle(root, "decamp", "d1", 500, uses=("p1",))
    make_bundle(root, "other", "o1", 900)
    (root / "not-a-bundle").mkdir()
    (host / "etc/systemd/system").mkdir(parents=True)
    (host / "etc/systemd/system/job.service").write_text(f"ExecStart=/usr/bin/python3 {root}/p2/src/job.py\n")
    assert prune(new, host) == ["p3"]
    left = sorted(path.name for path in root.iterdir())
    assert left == ["d1", "not-a-bundle", "o1", "p1", "p2", "p4", "p5"]

    # What was current before and is again is not the oldest by its place in time.
    (host / "usr/local/bin").mkdir(parents=True)
    (host / "usr/local/bin/decamp").symlink_to(root / "p4/bin/decamp")
    (host / "etc/systemd/system/job.service").unlink()
    assert prune(make_bundle(root, "packages", "p6", 0), host) == ["p2"]
    assert prune(make_bundle(root, "packages", "p7", -100), host) == ["p5"]
    assert (root / "p4").is_dir()


def test_an_install_keeps_the_bundle_before_it_and_no_older_one(tmp_path: Path) -> None:
    (tmp_path / "source").mkdir()
    digests = []
    for content in ("one", "two", "three"):
        (tmp_path / "source/hello.txt").write_text(content)
        bundle = build_bundle("source", None, HERE, "x86_64", source=tmp_path / "source", cache=tmp_path / "cache")
        assert install(bundle.path, tmp_path / "opt" / bundle.digest).returncode == 0
        digests.append(bundle.digest)
    assert sorted(path.name for path in (tmp_path / "opt").iterdir()) == sorted(digests[1:])
