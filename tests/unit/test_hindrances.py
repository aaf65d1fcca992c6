"""What stands in the way besides the copying: rules that name nothing, and files that somebody can still write to."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from decamp.findings import Finding
from decamp.hindrances import rule_findings, writer_findings
from decamp.index import Index
from tests.unit.tree_samples import bring_in_line, make_spec, walk


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "w"
    root.mkdir()
    (root / "a").write_text("x")
    (root / "a.tmp").write_text("x")
    return root


@contextmanager
def writing(path: Path) -> Iterator[int]:
    command = [sys.executable, "-c", "import sys; f = open(sys.argv[1], 'a'); print(1, flush=True); input()", str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        process.kill()


@pytest.mark.parametrize(
    ("rule", "reasons", "warnings"),
    [
        ({"match": "none", "tier": "irreplaceable"}, 1, 0),
        ({"match": "none", "tier": "useful"}, 0, 1),
        ({"match": "none", "tier": "useful", "check": {"kind": "json"}}, 1, 0),
        ({"match": "none", "tier": "garbage"}, 0, 0),
        ({"match": "none", "tier": "irreplaceable", "optional": True}, 0, 0),
        ({"match": "a", "tier": "irreplaceable"}, 0, 0),
    ],
)
def test_a_rule_that_names_nothing(tree: Path, rule: dict[str, Any], reasons: int, warnings: int) -> None:
    spec = make_spec(tree, [rule])
    told: list[Finding] = []
    census = walk(spec)
    for _ in range(2):
        assert len(rule_findings(spec, census, told)) == reasons
        assert len(told) == warnings


def test_rules_of_an_empty_root_that_may_be_empty_are_fine(tmp_path: Path) -> None:
    (tmp_path / "w").mkdir()
    spec = make_spec(tmp_path / "w", [{"match": "none", "tier": "irreplaceable"}], allow_empty=True)
    assert rule_findings(spec, walk(spec), []) == []


def test_a_rule_hidden_by_an_earlier_one_names_nothing(tree: Path) -> None:
    spec = make_spec(tree, [{"match": "*", "tier": "useful"}, {"match": "a", "tier": "irreplaceable"}])
    assert [finding.path for finding in rule_findings(spec, walk(spec), [])] == ["a"]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path / "index.sqlite")
    yield index
    index.close()


def writers(tree: Path, index: Index, rules: list[dict[str, Any]] | None = None) -> list[Finding]:
    spec = make_spec(tree, rules)
    bring_in_line(spec, index)
    return [finding for finding in writer_findings(spec, index) if finding.path != "/proc"]


def test_a_writer_is_named_with_its_process(tree: Path, index: Index) -> None:
    assert writers(tree, index) == []
    with writing(tree / "a") as pid:
        (finding,) = writers(tree, index)
    assert finding.path == str(tree / "a")
    assert finding.what == "the file is open for writing"
    assert finding.found.startswith(f"process {pid} (")


def test_a_writer_of_garbage_is_fine(tree: Path, index: Index) -> None:
    rules = [{"match": "*.tmp", "tier": "garbage"}]
    with writing(tree / "a.tmp"):
        assert writers(tree, index, rules) == []
        assert len(writers(tree, index)) == 1


def test_a_writer_is_found_through_another_name(tree: Path, index: Index, tmp_path: Path) -> None:
    (tmp_path / "outside").hardlink_to(tree / "a")
    with writing(tmp_path / "outside"):
        (finding,) = writers(tree, index)
    assert finding.path == str(tree / "a")


def test_a_writer_of_a_file_that_the_walk_has_not_seen_is_named(tree: Path, index: Index) -> None:
    spec = make_spec(tree)
    bring_in_line(spec, index)
    with writing(tree / "new") as pid:
        found = [finding for finding in writer_findings(spec, index) if finding.path != "/proc"]
    assert [finding.path for finding in found] == [str(tree / "new")]
    assert str(pid) in found[0].found


def test_a_name_that_ends_in_deleted_does_not_hide_a_writer(tree: Path, index: Index) -> None:
    with writing(tree / "b (deleted)"):
        assert [finding.path for finding in writers(tree, index)] == [str(tree / "b (deleted)")]


def test_processes_that_cannot_be_looked_into_are_counted() -> None:
    code = (
        "import os\nfrom decamp.host import find_writers\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\nprint(find_writers().unseen)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 0
