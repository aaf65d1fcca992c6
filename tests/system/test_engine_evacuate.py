"""Evacuations end to end: everything comes back, a second run is cheap, and every kind of change is noticed."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import bags
from tests.system.engine_node import EngineNode

MANY = {f"many/{number:03d}": b"%d" % number for number in range(130)}
MEBIBYTE = os.urandom(1 << 20)
LARGE = MEBIBYTE * 20


def fill_strangely(node: EngineNode) -> None:
    node.fill({**MANY, "large.dat": LARGE, "big.dat": MEBIBYTE + b"x", "empty": b"", "d/e/f": b"deep"})
    root = bytes(node.root)
    for name in (b"new\nline", b"\xff\xfe", b"blank ", b"50%", b"plus+", b"n" * 255, b"e\xcc\x81", b"\xc3\xa9"):
        Path(os.fsdecode(root + b"/" + name)).write_bytes(name)
    Path(os.fsdecode(root + b"/\xffbig")).write_bytes(MEBIBYTE * 17)
    (node.root / "hollow").mkdir(mode=0o711)
    (node.root / "suid").write_text("x")
    (node.root / "suid").chmod(0o4711)
    os.chown(node.root / "empty", 1234, 4321)
    (node.root / "dangling").symlink_to("nowhere\udcff")
    (node.root / "loop").symlink_to("loop")
    (node.root / "outside").symlink_to("/etc/passwd")
    (node.root / "d/hard").hardlink_to(node.root / "large.dat")
    (node.root / "d/small-hard").hardlink_to(node.root / "many/000")
    with (node.root / "sparse").open("wb") as file:
        file.truncate(8 << 20)
        file.seek(4 << 20)
        file.write(b"island")
    os.setxattr(node.root / "d/e/f", "user.note", b"\0\xff")
    os.setxattr(node.root / "hollow", "user.dir", b"1")
    os.utime(node.root / "empty", ns=(1, -1_000_000_001))
    os.utime(node.root / "suid", ns=(1, 5_000_000_000_123_456_789))
    os.utime(node.root / "d", ns=(1, 987_654_321))


def test_everything_comes_back_and_a_second_run_touches_nothing(node: EngineNode) -> None:
    fill_strangely(node)
    document = node.evacuate_safely()
    assert document["tiers"]["irreplaceable"]["already_there"] == 0
    assert document["tiers"]["irreplaceable"]["sent_bytes"] >= len(LARGE)
    assert document["receipt"] == "decamp/receipt.json"
    before = node.listing()
    assert node.uploads() == []
    assert not [key for key in before if ".probe" in key]
    verified = node.verify("--read-back")
    assert (verified.code, verified.document["holds"]) == (0, True), verified
    node.restores_to_the_same()
    started = time.monotonic()
    document = node.evacuate_safely()
    assert time.monotonic() - started < 20
    assert document["unchanged"] is True
    assert {tier["sent_bytes"] for tier in document["tiers"].values()} == {0}
    assert node.listing() == before
    assert node.evacuate_safely("--read-back")["unchanged"] is True
    assert node.listing() == before


def test_ls_tells_every_entry(node: EngineNode) -> None:
    node.rules = [{"match": "tmp/", "tier": "garbage", "reason": "scratch"}, {"match": "logs/**", "tier": "useful"}]
    node.fill({"a": b"1", "tmp/x": b"22", "logs/y": b"333"})
    (node.root / "l").symlink_to("a")
    node.evacuate_safely()
    entries = node.entries()
    assert {path: (entry["type"], entry["tier"], entry["state"]) for path, entry in entries.items()} == {
        ".": ("directory", "irreplaceable", "proven"),
        "a": ("file", "irreplaceable", "proven"),
        "l": ("symlink", "irreplaceable", "proven"),
        "logs": ("directory", "irreplaceable", "proven"),
        "logs/y": ("file", "useful", "proven"),
        "tmp": ("directory", "garbage", "left_behind"),
        "tmp/x": ("file", "garbage", "left_behind"),
    }
    for_people = node.run("ls", node.url)
    assert for_people.code == 0
    assert len(for_people.stdout.splitlines()) == 7
    assert "receipt of" in for_people.stderr
    assert "data" + str(node.root / "tmp/x") not in node.listing()


def test_ls_tells_times_that_no_calendar_has(node: EngineNode) -> None:
    shm = Path("/dev/shm") / node.directory.name
    node.more_spec = {"root": str(shm)}
    shm.mkdir()
    try:
        (shm / "a").write_text("x")
        os.utime(shm / "a", ns=(0, (1 << 61) * 1_000_000_000))
        node.evacuate_safely()
        assert node.run("ls", node.url).code == 0
    finally:
        shutil.rmtree(shm)


def _chmod(root: Path) -> None:
    (root / "a").chmod(0o600)


def _same_size_older(root: Path) -> None:
    (root / "a").write_bytes(b"B")
    os.utime(root / "a", ns=(0, 0))


def _same_size_same_mtime(root: Path) -> None:
    mtime_ns = (root / "a").stat().st_mtime_ns
    (root / "a").write_bytes(b"C")
    os.utime(root / "a", ns=(mtime_ns, mtime_ns))


def _to_directory(root: Path) -> None:
    (root / "a").unlink()
    (root / "a").mkdir()
    (root / "a/x").write_text("below")


def _to_file(root: Path) -> None:
    shutil.rmtree(root / "d")
    (root / "d").write_text("now a file")


def _to_link(root: Path) -> None:
    (root / "a").unlink()
    (root / "a").symlink_to("d/x")


def _rename(root: Path) -> None:
    (root / "a").rename(root / "z")


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda root: (root / "a").write_bytes(b"longer"),
    "chmod": _chmod,
    "older mtime": _same_size_older,
    "same size and mtime": _same_size_same_mtime,
    "added": lambda root: (root / "n").write_bytes(b"new"),
    "renamed": _rename,
    "file to directory": _to_directory,
    "directory to file": _to_file,
    "file to link": _to_link,
    "emptied": lambda root: (root / "a").write_bytes(b""),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_brought_over_and_comes_back(node: EngineNode, change: str) -> None:
    node.fill({"a": b"A", "d/x": b"xx", "d/y": b"yy", "big": MEBIBYTE + b"y"})
    node.evacuate_safely()
    time.sleep(0.02)
    CHANGES[change](node.root)
    assert node.evacuate("--dry-run").code == 3
    document = node.evacuate_safely()
    assert document["unchanged"] is False
    assert document["tiers"]["irreplaceable"]["sent_bytes"] < 100
    assert node.verify().code == 0
    assert bags.validate(node.access.connect(), node.access.bucket, node.prefix, node.directory / "copy") == ""
    node.restores_to_the_same()
    assert node.evacuate_safely()["unchanged"] is True


def test_what_vanished_stays_in_the_archive_and_is_not_brought_back(node: EngineNode) -> None:
    node.fill({"a": b"A", "d/x": b"xx", "d/y": b"yy"})
    node.evacuate_safely()
    kept = node.listing("data/")
    shutil.rmtree(node.root / "d")
    node.evacuate_safely()
    assert node.listing("data/").keys() == kept.keys()
    states = {path: entry["state"] for path, entry in node.entries().items()}
    assert states == {".": "proven", "a": "proven", "d": "gone", "d/x": "gone", "d/y": "gone"}
    node.restores_to_the_same()
    node.fill({"d/x": b"xx"})
    assert node.evacuate_safely()["tiers"]["irreplaceable"]["sent_bytes"] == 0
    node.restores_to_the_same()


def test_a_large_file_that_moved_is_not_sent_again(node: EngineNode) -> None:
    node.fill({"a/large": LARGE, "x": b"1"})
    node.evacuate_safely()
    (node.root / "a/large").rename(node.root / "b")
    document = node.evacuate_safely()
    assert document["tiers"]["irreplaceable"]["sent_bytes"] == 0
    assert document["tiers"]["irreplaceable"]["already_there"] == len(LARGE)
    assert [key for key, item in node.listing("data/").items() if item.size_bytes == len(LARGE)] == [
        f"data{node.root}/a/large"
    ]
    node.restores_to_the_same()


def test_an_object_that_another_entry_relies_on_is_not_overwritten(node: EngineNode) -> None:
    node.fill({"a": LARGE})
    node.evacuate_safely()
    shutil.copyfile(node.root / "a", node.root / "b")
    node.evacuate_safely()
    assert node.entries()["b"]["object"] == f"data{node.root}/a"
    node.fill({"a": b"changed" * 300_000})
    node.evacuate_safely()
    entries = node.entries()
    assert entries["b"]["object"] == f"data{node.root}/a"
    assert entries["a"]["object"] != f"data{node.root}/a"
    assert node.verify("--read-back").code == 0
    node.restores_to_the_same()


def test_two_roots_of_which_one_holds_the_names_of_the_other(node: EngineNode) -> None:
    other = node.directory / "w-2"
    node.fill({"run": b"file"})
    (other / "run").mkdir(parents=True)
    (other / "run/x").write_text("x")
    node.more_spec = {"root": [str(node.root), str(other)]}
    node.evacuate_safely()
    outcome = node.restore(node.directory / "back")
    assert outcome.code == 0
    assert Path(f"{node.directory}/back{node.root}/run").read_text() == "file"
    assert Path(f"{node.directory}/back{other}/run/x").read_text() == "x"


def test_roots_are_walked_in_the_order_of_the_index(node: EngineNode) -> None:
    roots = [node.directory / "w-data", node.directory / "w/run"]  # by their bytes the other way round
    for root in roots:
        root.mkdir(parents=True)
        (root / "x").write_text(root.name)
    node.more_spec = {"root": [str(root) for root in roots]}
    node.evacuate_safely()
    assert node.evacuate_safely()["unchanged"]
    (roots[1] / "y").write_text("y")
    node.evacuate_safely()
    assert node.evacuate_safely()["unchanged"]


@pytest.mark.parametrize("what", ["missing", "empty"])
def test_a_root_that_is_gone_leaves_the_archive_as_it_was(node: EngineNode, what: str) -> None:
    node.fill({"a": b"A"})
    node.evacuate_safely()
    before = node.listing()
    shutil.rmtree(node.root)
    if what == "empty":
        node.root.mkdir()
    (reason,) = node.refuse()
    assert reason["what"] == f"the root is {what}"
    assert node.listing() == before
    assert node.verify().code == 0


def test_an_empty_root_that_may_be_empty_is_safe(node: EngineNode) -> None:
    node.more_spec = {"allow_empty": True}
    node.evacuate_safely()
    node.restores_to_the_same()


def test_a_rule_that_names_nothing_is_a_reason(node: EngineNode) -> None:
    node.fill({"a": b"A"})
    node.rules = [{"match": "dta/**", "tier": "irreplaceable"}, {"match": "lgos/", "tier": "useful"}]
    outcome = node.evacuate()
    assert outcome.code == 3
    assert [(found["path"], found["what"]) for found in outcome.document["reasons"]] == [
        ("dta/**", "the rule names data to keep and matches nothing")
    ]
    assert [found["path"] for found in outcome.document["warnings"]] == ["lgos/"]
    assert "decamp/receipt.json" not in node.listing()
    node.rules[0]["optional"] = True
    node.evacuate_safely()


def test_sockets_and_fifos_are_reasons_outside_garbage(node: EngineNode) -> None:
    node.fill({"a": b"A"})
    os.mkfifo(node.root / "fifo.json")
    os.mknod(node.root / "null", 0o20666, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(node.root / "x.sock"))
        told = {os.path.basename(reason["path"]): reason["what"] for reason in node.refuse()}
        assert told == {
            "fifo.json": "a fifo cannot be copied",
            "null": "a character device cannot be copied",
            "x.sock": "a socket cannot be copied",
        }
        node.rules = [{"match": pattern, "tier": "garbage"} for pattern in ("*.sock", "fifo*", "null")]
        document = node.evacuate_safely()
    assert document["tiers"]["garbage"]["entries"] == 3
    node.restores_to_the_same(leaves=frozenset((b"fifo.json", b"null", b"x.sock")))


WRITERS = {
    "descriptor": "f = open(path, 'ab')",
    "mapping": "import mmap, os; f = open(path, 'r+b'); m = mmap.mmap(f.fileno(), 0); os.closerange(3, 99)",
}


@pytest.mark.parametrize("how", WRITERS)
def test_a_file_that_is_open_for_writing_is_named_with_its_process(node: EngineNode, how: str) -> None:
    node.fill({"log": b"A", "b": b"B"})
    code = f"import sys; path = sys.argv[1]\n{WRITERS[how]}\nprint(1, flush=True)\nsys.stdin.readline()"
    command = [sys.executable, "-c", code, str(node.root / "log")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as writer:
        assert writer.stdout is not None
        writer.stdout.readline()
        (reason,) = node.refuse()
        writer.kill()
    assert (reason["path"], reason["what"]) == (str(node.root / "log"), "the file is open for writing")
    assert f"process {writer.pid} (" in reason["found"]
    assert "decamp/receipt.json" not in node.listing()
    node.evacuate_safely()


def test_a_writer_after_a_proof_leaves_the_proof_as_it_is(node: EngineNode) -> None:
    node.fill({"log": b"A"})
    node.evacuate_safely()
    before = node.listing()
    with (node.root / "log").open("ab"):
        assert len(node.refuse()) == 1
    assert node.listing() == before


def test_checks_refuse_or_mark(node: EngineNode) -> None:
    node.fill({"torn.json": b'{"a": ', "rows.jsonl": b'{"v": 1}\n{"v": 2}\n'})
    rule = {"match": "*.jsonl", "tier": "irreplaceable", "check": {"kind": "jsonl", "column": "v", "min_mean": 10}}
    node.rules = [rule]
    told = {os.path.basename(reason["path"]): reason for reason in node.refuse()}
    assert {name: reason["what"] for name, reason in told.items()} == {
        "torn.json": "the check whole:json failed",
        "rows.jsonl": "the check jsonl failed",
    }
    assert (told["rows.jsonl"]["expected"], told["rows.jsonl"]["found"]) == ("mean of v of at least 10", "1.5")
    node.rules = [{**rule, "on_failure": "mark"}, {"match": "torn.json", "tier": "useful", "on_failure": "mark"}]
    document = node.evacuate_safely()
    assert len(document["marked"]) == 2
    assert len(node.evacuate_safely()["marked"]) == 2
    assert "rows.jsonl" in node.get("decamp/report.html").decode()
    shutil.rmtree(node.state)
    document = node.evacuate_safely()
    assert len(document["marked"]) == 2
    shutil.rmtree(node.state)
    node.rules = [rule]
    assert len(node.refuse()) == 2


def test_a_hard_link_is_checked_as_what_each_of_its_names_says(node: EngineNode) -> None:
    node.fill({"a.txt": b'{"v": 1}\n{"v": ', "same.txt": b"text"})
    for name in ("b.json", "good/c.jsonl", "plain.log"):
        (node.root / name).parent.mkdir(exist_ok=True)
        (node.root / name).hardlink_to(node.root / "a.txt")
    (node.root / "same.log").hardlink_to(node.root / "same.txt")
    node.rules = [{"match": "good/*.jsonl", "tier": "irreplaceable", "check": {"kind": "jsonl", "min_rows": 2}}]
    told = {reason["path"].removeprefix(f"{node.root}/"): reason["what"] for reason in node.refuse()}
    assert told == {"b.json": "the check whole:json failed", "good/c.jsonl": "the check jsonl failed"}
    (node.root / "a.txt").write_bytes(b'{"v": 1}\n{"v": 2}\n')
    told = {reason["path"].removeprefix(f"{node.root}/"): reason["what"] for reason in node.refuse()}
    assert told == {"b.json": "the check whole:json failed"}
    (node.root / "b.json").unlink()
    node.evacuate_safely()


def test_what_only_marks_one_name_refuses_under_another(node: EngineNode) -> None:
    node.fill({"a.jsonl": b'{"v": 1}\n'})
    (node.root / "b.jsonl").hardlink_to(node.root / "a.jsonl")
    check = {"tier": "irreplaceable", "check": {"kind": "jsonl", "min_rows": 2}}
    node.rules = [{"match": "a.jsonl", "on_failure": "mark", **check}, {"match": "b.jsonl", **check}]
    assert [os.path.basename(reason["path"]) for reason in node.refuse()] == ["b.jsonl"]


@pytest.mark.parametrize("evacuated", [False, True])
def test_a_dry_run_changes_nothing(node: EngineNode, evacuated: bool) -> None:
    node.fill({"a": b"A", "big": MEBIBYTE * 2})
    if evacuated:
        node.evacuate_safely()
        node.fill({"b": b"new"})
    before, state = node.listing(), sorted(node.state.glob("*")) if evacuated else []
    outcome = node.evacuate("--dry-run")
    assert outcome.code == 3
    assert outcome.document["dry_run"] is True
    assert "to prove" in outcome.document["reasons"][-1]["found"]
    assert node.listing() == before
    assert sorted(node.state.glob("*")) == state
    node.evacuate_safely()
    before = node.listing()
    assert node.evacuate("--dry-run").document["verdict"] == "SAFE"
    assert node.listing() == before
