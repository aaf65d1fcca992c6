"""A command of the user's decides by its exit status, whatever the file's name, within its time."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from decamp.checks import CheckResult, run_check
from decamp.rules import Check


def command(path: Path, run: str | list[str], **parameters: Any) -> CheckResult:
    return run_check(Check("command", {"run": run, **parameters}), bytes(path))


def test_a_command_decides_by_its_exit_status(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_text("good")
    assert command(path, "grep good").passed
    assert command(path, ["grep", "-c", "good", "{path}"]) == CheckResult("command", True, found="1")
    result = command(path, "grep bad")
    assert (result.passed, result.found) == (False, "exit status 1")
    result = command(path, "sh -c 'echo out; echo err >&2; exit 7' x")
    assert result.found == "exit status 7: out err"


@pytest.mark.parametrize("name", [b"a b", b"-rf", b"$(touch x)", b"'\"", b"\xff\n", b"{path}", b"*", b"; exit 1"])
def test_a_strange_name_stays_one_word(tmp_path: Path, name: bytes) -> None:
    path = Path(os.fsdecode(bytes(tmp_path) + b"/" + name))
    path.write_text("x")
    assert command(path, "test -s").passed
    assert command(path, "test -s {path}").passed
    assert command(path, ["sh", "-c", 'test -s "$1" && test $# = 1', "sh"]).passed
    assert os.listdir(tmp_path) == [os.fsdecode(name)]


def test_a_command_that_does_not_exist_fails_the_check(tmp_path: Path) -> None:
    result = command(tmp_path, "no-such-command-here --now")
    assert not result.passed
    assert "no-such-command-here --now" in result.expected


@pytest.mark.parametrize(
    "run",
    [
        ["sh", "-c", "sleep 60"],
        "sh -c 'sleep 60; exit'",
        ["sh", "-c", "sleep 60 & sleep 60"],
        ["sh", "-c", "trap '' TERM; sleep 60"],
        ["setsid", "sh", "-c", "sleep 3 & exit 0"],
        ["sh", "-c", "setsid sleep 3 & sleep 60"],
    ],
)
def test_a_command_has_its_time(tmp_path: Path, run: str | list[str]) -> None:
    started = time.monotonic()
    result = command(tmp_path, run, timeout_s=0.3)
    assert time.monotonic() - started < 2.5
    if "exit 0" in run[-1]:
        assert result.passed
    else:
        assert (result.passed, result.found) == (False, "it did not end")
        assert "within 0.3 s" in result.expected


def test_a_commands_children_end_with_it(tmp_path: Path) -> None:
    noted = tmp_path / "pid"
    command(tmp_path, ["sh", "-c", f"sleep 60 & echo $! > {noted}; wait"], timeout_s=0.5)
    status = Path(f"/proc/{int(noted.read_text())}/stat")
    for _ in range(100):
        if not status.exists() or ") Z " in status.read_text():
            break
        time.sleep(0.02)
    else:
        pytest.fail("the child is still there")


def test_a_command_does_not_see_the_stores_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_SECRET_ACCESS_KEY", "AWS_ACCESS_KEY_ID", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "made-up-secret")
    result = command(tmp_path, ["sh", "-c", "env | grep -c made-up; cat"])
    assert result.found.startswith("exit status") or result.found.strip() == "0"
    assert "made-up-secret" not in result.found


def test_much_output_is_cut(tmp_path: Path) -> None:
    result = command(tmp_path, ["sh", "-c", "yes | head -c 3000000; exit 3"])
    assert not result.passed
    assert len(result.found) < 500
