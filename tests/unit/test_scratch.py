"""Directories for temporary files: gone afterwards, even when the command was killed; never another's."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from decamp.scratch import ScratchFailure, make_scratch

HOLD = "from decamp.scratch import make_scratch\nwith make_scratch('verify') as directory: print(directory); input()"


@pytest.fixture(autouse=True)
def own_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)


def test_a_directory_is_gone_afterwards(tmp_path: Path) -> None:
    with make_scratch("ls") as directory:
        (directory / "index").write_text("x")
        assert directory.parent == tmp_path
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_command_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    for name in ("decamp-of-a-person", "decamp-verify-notes"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "kept").touch()
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as other:
        assert other.stdout is not None
        held = Path(other.stdout.readline().strip())
        assert held.parent == tmp_path
        with make_scratch("restore"):
            assert held.is_dir()
        other.send_signal(signal.SIGKILL)
        other.wait(timeout=10)
        assert held.is_dir()
        with make_scratch("restore"):
            assert not held.exists()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["decamp-of-a-person", "decamp-verify-notes"]


def test_no_room_is_one_message(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "nowhere"))
    with pytest.raises(ScratchFailure, match="directory for temporary files"), make_scratch("ls"):
        pass
