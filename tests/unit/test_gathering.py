"""Small files are read the same by this process and by the ones that help, whatever becomes of those."""

from __future__ import annotations

import hashlib
import io
import os
import signal
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from decamp import gathering
from decamp.entries import Entry
from decamp.gathering import Gathered, Gathering, Helper, gather
from decamp.packs import END_OF_ARCHIVE
from decamp.rules import Check, Rule
from decamp.workers import Stopped
from tests.unit.entry_samples import make_entry

RULES = (Rule("*.jsonl", "irreplaceable", check=Check("jsonl", {"min_rows": 2})),)


def note(path: Path, rule: int = -1) -> Entry:
    """The entry of a file as a census would have it."""
    status = path.lstat()
    return make_entry(
        bytes(path),
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        ino=status.st_ino,
        rule=rule,
    )


@pytest.fixture
def entries(tmp_path: Path) -> list[Entry]:
    """Whole ones, one that changed after it was counted, one that cannot be opened, one whose data is bad."""
    found = []
    for number in range(50):
        path = tmp_path / f"{number:02d} \udcff.txt"
        path.write_bytes(b"%d" % number * (number * 40))
        found.append(note(path))
    (tmp_path / "00 \udcff.txt").write_bytes(b"changed")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
    found.append(note(tmp_path / "socket"))
    (tmp_path / "short.jsonl").write_text('{"a": 1}\n')
    found.append(note(tmp_path / "short.jsonl", rule=0))
    return found


@pytest.fixture
def helper() -> Iterator[Helper]:
    helper = Helper(RULES)
    yield helper
    helper.close()


def told(gathered: Gathered) -> tuple[bytes, object, object]:
    missed = [(number, type(error), error and error.errno) for number, error in gathered.missed]
    return bytes(gathered.body), gathered.pieces, missed


def test_what_is_gathered_is_a_tar_with_every_file_that_is_as_it_was(entries: list[Entry]) -> None:
    gathered = gather(entries, RULES)
    assert [(number, error and error.errno) for number, error in gathered.missed] == [(0, None), (50, 6)]
    assert [piece.number for piece in gathered.pieces] == [*range(1, 50), 51]
    with tarfile.open(fileobj=io.BytesIO(gathered.body + END_OF_ARCHIVE), errors="surrogateescape") as archive:
        contents = [archive.extractfile(member).read() for member in archive]  # type: ignore[union-attr]
    assert contents[:-1] == [b"%d" % number * (number * 40) for number in range(1, 50)]
    for (piece, end), content in zip(gathered.ends(), contents, strict=True):
        assert gathered.body[piece.offset : piece.offset + len(content)] == content
        assert piece.sha256 == hashlib.sha256(content).digest()
        assert (piece.start - end) % 512 == 0
    assert '"passed":false' in (gathered.pieces[-1].checks or "")


def test_nothing_that_could_be_read_is_no_piece(entries: list[Entry]) -> None:
    gathered = gather([entries[0]], RULES)
    assert list(gathered.ends()) == []
    assert gathered.body == b""


def test_a_helper_gathers_the_same(entries: list[Entry], helper: Helper) -> None:
    for _ in range(3):
        assert told(helper.gather(entries)) == told(gather(entries, RULES))


def find_children() -> list[int]:
    return [int(pid) for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


@pytest.mark.parametrize("when", ["before", "while it works"])
def test_the_work_of_a_helper_that_was_killed_is_done_here(
    entries: list[Entry], when: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = find_children()
    helper = Helper(RULES)
    (pid,) = set(find_children()) - set(before)
    if when == "before":
        os.kill(pid, signal.SIGKILL)
    else:
        receive = gathering._receive

        def receive_half(_: object) -> Gathered:
            os.kill(pid, signal.SIGKILL)
            return receive(io.BytesIO(b"\x80"))

        monkeypatch.setattr(gathering, "_receive", receive_half)
    assert told(helper.gather(entries)) == told(gather(entries, RULES))
    assert told(helper.gather(entries)) == told(gather(entries, RULES))
    assert pid not in find_children()


def test_what_a_stopped_helper_has_in_hand_is_not_done_again(entries: list[Entry], helper: Helper) -> None:
    helper.stop()
    with pytest.raises(Stopped):
        helper.gather(entries)


def test_without_a_second_interpreter_the_work_is_done_here(
    entries: list[Entry], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.executable", "/nonexistent/python")
    helper = Helper(RULES)
    assert told(helper.gather(entries)) == told(gather(entries, RULES))
    helper.close()


def test_a_helper_outlives_ctrl_c_and_not_the_process_that_started_it(entries: list[Entry]) -> None:
    before = find_children()
    helper = Helper(RULES)
    assert told(helper.gather(entries)) == told(gather(entries, RULES))
    (pid,) = set(find_children()) - set(before)
    os.kill(pid, signal.SIGINT)
    assert told(helper.gather(entries)) == told(gather(entries, RULES))
    process = helper._process
    assert process is not None
    assert process.stdin is not None
    assert process.poll() is None
    process.stdin.close()  # what the kernel does when its owner is gone
    assert process.wait(timeout=10) == 0
    helper.close()


def test_help_is_called_once_and_only_where_it_is_worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})
    helpers_of_run = Gathering(RULES)
    before = find_children()
    helpers_of_run.call_help(999)
    assert helpers_of_run.pool is None
    assert not helpers_of_run.has_room()
    helpers_of_run.call_help(2500)
    helpers_of_run.call_help(2500)
    helpers = set(find_children()) - set(before)
    assert len(helpers) == 2
    helpers_of_run.expect(3)
    assert helpers_of_run.has_room()
    helpers_of_run.expect(1)
    assert not helpers_of_run.has_room()
    helpers_of_run.close()
    assert not helpers & set(find_children())
