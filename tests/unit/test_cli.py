"""Every ending of a command has its exit code and one message; with --json there is one document, whatever happens."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from decamp import cli, errors

STORE = ["--store", "s3://bucket/prefix/node"]


@pytest.fixture(autouse=True)
def _signals_as_they_were() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


class Ended:
    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def document(self) -> Any:
        assert self.out.count("\n") == 1
        return json.loads(self.out)


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    def call(*words: str) -> Ended:
        with pytest.raises(SystemExit) as ended:
            cli.main(list(words))
        out, err = capsys.readouterr()
        assert "Traceback" not in out + err
        assert "a defect" not in out + err
        return Ended(int(ended.value.code or 0), out, err)

    return call


@pytest.fixture
def spec(tmp_path: Path) -> str:
    (tmp_path / "w").mkdir()
    (tmp_path / "w/a").write_text("x")
    path = tmp_path / "spec.yml"
    path.write_text(f"root: {tmp_path}/w\n")
    return str(path)


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["evacuate"],
        ["evacuate", "spec.yml"],
        ["evacuate", *STORE],
        ["nonsense"],
        ["--nonsense"],
        ["verify"],
        ["verify", "s3://b/x", "more"],
        ["restore", "s3://bucket/x"],
        ["ls", "--store"],
        ["census"],
        ["evacuate", "x", *STORE, "--dry-rum"],
        ["evacuate", "/nonexistent/spec.yml", *STORE],
        ["evacuate", "/", *STORE],
        ["verify", "bucket/prefix"],
        ["verify", "s3://B/prefix"],
        ["verify", "s3://bucket/a//b"],
        ["restore", "s3://bucket/../x", "/tmp/x"],
        ["ls", "http://bucket/x"],
    ],
)
def test_wrong_arguments_are_told_in_one_line_and_change_nothing(run: Any, words: list[str]) -> None:
    ended = run(*words)
    assert ended.code == 2
    assert ended.err.startswith("decamp: ")
    assert ended.err.count("\n") == 1
    assert ended.out == ""
    if words[:1] not in ([], ["nonsense"], ["--nonsense"]):
        with_json = run(*words, "--json")
        assert with_json.code == 2
        assert with_json.document["exit_code"] == 2
        assert with_json.document["error"]["what"]
        assert with_json.err == ended.err


def test_a_wrong_spec_tells_every_problem(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "spec.yml"
    path.write_text("root: here\nrules: [{match: '!x', tier: dear}]\n")
    ended = run("evacuate", str(path), *STORE)
    assert ended.code == 2
    assert ended.err.count("\n") == 4
    for part in ("root:", "rules[0].match", "rules[0].tier"):
        assert part in ended.err


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["evacuate", "--help"], ["restore", "--help"]])
def test_help_and_version_are_no_failure(run: Any, words: list[str]) -> None:
    ended = run(*words)
    assert (ended.code, ended.err) == (0, "")
    assert "decamp" in ended.out


FAILURES = {
    errors.BadInput: 2,
    errors.NotSafe: 3,
    errors.DecampError: 3,
    errors.StoreFailure: 4,
    errors.DamagedArchive: 5,
}


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_ends_with_its_code_and_its_message(
    run: Any, monkeypatch: pytest.MonkeyPatch, kind: type[errors.DecampError]
) -> None:
    def fail(_options: object) -> int:
        raise kind("s3://b/k", "broke", expected="x", found="y", run="z")

    monkeypatch.setitem(cli._COMMANDS, "verify", fail)
    ended = run("verify", "s3://bucket/x")
    assert (ended.code, ended.err, ended.out) == (
        FAILURES[kind],
        "decamp: s3://b/k: broke: expected x, found y; run: z\n",
        "",
    )
    with_json = run("verify", "s3://bucket/x", "--json")
    assert with_json.code == FAILURES[kind]
    assert with_json.document == {
        "error": {"where": "s3://b/k", "what": "broke", "expected": "x", "found": "y", "run": "z"},
        "exit_code": FAILURES[kind],
    }


def test_a_defect_is_one_line_and_never_safe(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(_options: object) -> int:
        raise RuntimeError("surprise")

    monkeypatch.setitem(cli._COMMANDS, "verify", fail)
    monkeypatch.delenv("DECAMP_DEBUG", raising=False)
    with pytest.raises(SystemExit) as ended:
        cli.main(["verify", "s3://bucket/x"])
    err = capsys.readouterr().err
    assert ended.value.code == 3
    assert "surprise" in err
    assert err.count("\n") == 1


def test_census_counts_without_a_store(run: Any, spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "")
    ended = run("census", spec, "--json")
    assert ended.code == 0
    assert set(ended.document) == {"machine_id", "host_keys", "census_sha256", "entries", "findings", "writers"}
    assert ended.document["entries"] == 2
    plain = run("census", spec)
    assert ended.document["census_sha256"] in plain.out


def test_census_names_writers(run: Any, spec: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", f"f = open('{tmp_path}/w/a', 'a'); print(1, flush=True); input()"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        document = run("census", spec, "--json").document
        assert [(found["pid"], found["path"]) for found in document["writers"]] == [(writer.pid, f"{tmp_path}/w/a")]
        assert f"process {writer.pid} (" in run("census", spec).out
        writer.kill()


def test_census_tells_what_hinders_it(run: Any, tmp_path: Path) -> None:
    path = tmp_path / "spec.yml"
    path.write_text(f"root: {tmp_path}/missing\n")
    document = run("census", str(path), "--json").document
    assert [finding["what"] for finding in document["findings"]] == ["the root is missing"]


def start(*words: str, **environment: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "decamp", *words]
    return subprocess.Popen(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )


def test_strange_names_are_printed_whatever_the_terminal_takes(tmp_path: Path) -> None:
    root = tmp_path / "wörk\udcff"
    root.mkdir()
    os.mkfifo(root / "ü")
    path = tmp_path / "spec.yml"
    path.write_text(json.dumps({"root": [str(root), str(tmp_path / "ü")]}))
    for coding in ("ascii", "utf-8", "latin-1"):
        process = start("census", str(path), PYTHONIOENCODING=coding)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, err) == (0, b"")
        assert b"the root is missing" in out


def test_a_reader_that_goes_away_is_no_failure(spec: str) -> None:
    process = start("census", spec, "--json")
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert (process.wait(timeout=60), err) == (0, b"")
