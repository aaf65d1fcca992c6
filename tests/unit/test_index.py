"""The index keeps what it was told, says when it cannot be used, and makes itself anew when it is of no use."""

from __future__ import annotations

import hashlib
import random
import tempfile
from pathlib import Path

import pytest

from decamp.entries import Entry, State, sort_key
from decamp.errors import BadInput
from decamp.index import Index, ObjectRecord
from decamp.index_file import copy_index
from decamp.index_rows import signed
from decamp.state_directory import index_path, state_directory
from tests.unit.entry_samples import make_entry


def record(key: str, content: bytes = b"abc") -> ObjectRecord:
    return ObjectRecord(key, len(content), hashlib.sha256(content).digest(), "etag", "sum", None, "attested")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "index.sqlite"


@pytest.mark.parametrize("mtime_ns", [0, -1, (1 << 63) - 1, -(1 << 63), 1 << 63, 1 << 70, -(1 << 70)])
def test_entries_come_back_whatever_their_time(path: Path, mtime_ns: int) -> None:
    index = Index(path)
    entries = [make_entry(b"/a", mtime_ns=mtime_ns), make_entry(b"/\xff\n", b"x", mtime_ns=mtime_ns, ino=-3)]
    index.put_entries(entries)
    index.close()
    assert list(Index(path).entries()) == entries


def test_a_directory_comes_right_before_what_it_holds(path: Path) -> None:
    index = Index(path)
    index.put_entries(make_entry(name) for name in (b"/a-b", b"/a/c", b"/a", b"/a.x", b"/a/b"))
    assert [entry.path for entry in index.entries()] == [
        sort_key(name) for name in (b"/a", b"/a/b", b"/a/c", b"/a-b", b"/a.x")
    ]


def test_batches_give_every_entry_once_while_they_change(path: Path) -> None:
    index = Index(path)
    index.put_entries(make_entry(b"/%03d" % number, state=State.PENDING) for number in range(50))
    seen = []
    for batch in index.batches("state=?", (int(State.PENDING),), size=7):
        for entry in batch:
            seen.append(entry.path)
            index.set_state(entry.path, State.PROVEN)
    assert seen == [sort_key(b"/%03d" % number) for number in range(50)]


def test_a_snapshot_does_not_see_later_writes(path: Path) -> None:
    index = Index(path)
    index.put_object(record("data/a"))
    snapshot = index.snapshot()
    rows = snapshot.execute("SELECT key FROM object ORDER BY key")
    index.put_object(record("data/b"))
    assert [row[0] for row in rows] == ["data/a"]
    snapshot.close()
    assert [item.key for item in index.objects()] == ["data/a", "data/b"]


def test_what_lay_in_a_dropped_object_is_pending_again(path: Path) -> None:
    index = Index(path)
    index.put_object(record("data/p"))
    index.put_entries(
        [
            make_entry(b"/a", object="data/p", offset=512),
            make_entry(b"/b", object="data/q"),
            make_entry(b"/c", object="data/p", state=State.LEFT_BEHIND),
        ]
    )
    index.drop_object("data/p")
    a, b, _ = index.entries()
    assert (a.state, a.sha256, a.object, a.offset) == (State.PENDING, None, None, None)
    assert (b.state, b.object) == (State.PROVEN, "data/q")
    assert index.object("data/p") is None


def test_content_is_found_by_digest_and_size_alone(path: Path) -> None:
    index = Index(path)
    index.put_entries(
        [make_entry(b"/a", b"abc", object="data/a"), make_entry(b"/b", b"xyz", object="data/p", offset=9)]
    )
    index.put_object(record("data/a"))
    index.put_object(record("data/p"))
    index.build_content_lookup()
    digest = hashlib.sha256(b"abc").digest()
    assert index.find_content(digest, 3) == ("data/a", None)
    assert index.find_content(hashlib.sha256(b"xyz").digest(), 3) == ("data/p", 9)
    assert index.find_content(digest, 4) is None
    assert index.has_content_of_size(3)
    assert not index.has_content_of_size(4)


def test_no_row_points_to_an_object_that_was_dropped(path: Path) -> None:
    index = Index(path)
    states = (State.PROVEN, State.PENDING, State.UNREADABLE, State.GONE, State.LEFT_BEHIND)
    index.put_entries(make_entry(b"/%d" % state, b"abc", object="data/a", state=state) for state in states)
    index.put_object(record("data/a"))
    index.drop_object("data/a")
    found = {entry.path: (entry.state, entry.object, entry.sha256) for entry in index.entries()}
    assert found == {
        sort_key(b"/%d" % state): (State.PENDING if state == State.PROVEN else state, None, None)
        for state in states
        if state != State.GONE
    }
    assert index.find_content(hashlib.sha256(b"abc").digest(), 3) is None


def test_a_reused_inode_is_no_hard_link_of_what_had_it_before(path: Path) -> None:
    index = Index(path)
    linked = {"ino": 7, "dev": 1, "nlink": 2}
    index.put_entries(
        [
            make_entry(b"/a", b"old", ctime_ns=1, **linked),  # gone from the node; the walk that would say so was cut
            make_entry(b"/p", b"new", ctime_ns=2, state=State.PENDING, **linked),
            make_entry(b"/q", b"new", ctime_ns=2, state=State.PENDING, **linked),
        ]
    )
    index.group_hard_links()
    index.settle_hard_links()
    found = {entry.path: (entry.hardlink, entry.state) for entry in index.entries()}
    assert found[sort_key(b"/p")] == (None, State.PENDING)
    assert found[sort_key(b"/q")] == (sort_key(b"/p"), State.PENDING)


def test_an_object_that_another_entry_needs_is_referred_to(path: Path) -> None:
    index = Index(path)
    index.put_entries([make_entry(b"/a", object="data/a"), make_entry(b"/b", object="data/a")])
    assert index.is_referred_to("data/a", sort_key(b"/a"))
    assert not index.is_referred_to("data/b", sort_key(b"/a"))


def test_facts_are_kept_and_cleared(path: Path) -> None:
    index = Index(path)
    index.set_fact("x", "1")
    index.set_fact("x", "2")
    assert index.fact("x") == "2"
    index.set_fact("x", None)
    assert index.fact("x") is None
    index.set_fact("y", "1")
    index.put_object(record("data/a"))
    index.put_entries([make_entry(b"/a")])
    index.clear()
    assert (index.fact("y"), list(index.objects()), list(index.entries())) == (None, [], [])


def kept_index(path: Path, count: int = 40) -> Index:
    """An index that is kept, with entries in the main file and as many more in the log, as a kill leaves it."""
    index = Index(path, is_kept=True)
    for start in (0, count):
        names = (b"/%03d" % number for number in range(start, start + count))
        index.put_entries(make_entry(name, b"x", link=b"y" * 200) for name in names)
        index.commit()
        if start == 0:
            index.close()
            index = Index(path, is_kept=True)
    return index


def entries_of_copy(path: Path, tmp_path: Path) -> list[Entry]:
    """What another run would find in the files as they are."""
    with tempfile.TemporaryDirectory(dir=tmp_path) as directory:
        copy = Path(directory, "copy.sqlite")
        copy_index(path, copy)
        index = Index(copy, is_kept=True)
        found = list(index.entries())
        index.close()
        return found


def test_a_copy_can_be_changed_without_consequences(path: Path, tmp_path: Path) -> None:
    index = kept_index(path)
    copied = tmp_path / "copy.sqlite"
    copy_index(path, copied)
    copy = Index(copied, is_kept=True)
    copy.clear()
    copy.close()
    assert len(list(index.entries())) == 80
    assert list(Index(copied, is_kept=True).entries()) == []


@pytest.mark.parametrize("is_settled", [True, False])
def test_what_was_written_is_there_after_an_end_and_after_a_kill(path: Path, tmp_path: Path, is_settled: bool) -> None:
    index = kept_index(path)
    before = path.read_bytes()
    assert len(entries_of_copy(path, tmp_path)) == 80
    index.close(is_settled=is_settled)
    assert (path.read_bytes() == before) == (not is_settled)
    assert len(entries_of_copy(path, tmp_path)) == 80


def test_a_run_that_is_not_settled_leaves_the_main_file_alone_however_often(path: Path) -> None:
    kept_index(path).close()
    before = path.read_bytes()
    for number in range(100, 103):
        index = Index(path, is_kept=True)
        index.put_entries([make_entry(b"/%03d" % number)])
        index.close(is_settled=False)
    assert path.read_bytes() == before
    assert len(list(Index(path, is_kept=True).entries())) == 83


@pytest.mark.parametrize("suffix", ["", "-wal", ".sha256"])
def test_a_lost_bit_never_changes_what_is_said(path: Path, tmp_path: Path, suffix: str) -> None:
    index = kept_index(path)
    written = list(index.entries())
    file = Path(f"{path}{suffix}")
    body = file.read_bytes()
    rng = random.Random(7)
    lengths = set()
    for _ in range(60):
        damaged = bytearray(body)
        damaged[rng.randrange(len(body))] ^= 1 << rng.randrange(8)
        file.write_bytes(damaged)
        found = entries_of_copy(path, tmp_path)
        assert found == written[: len(found)]
        lengths.add(len(found))
    file.write_bytes(body)
    # Main file or digest: nothing is left. The log: what was committed before the damage.
    assert lengths <= ({40, 80} if suffix == "-wal" else {0})
    index.close()


def test_a_log_and_a_digest_without_their_index_are_nothing(path: Path, tmp_path: Path) -> None:
    index = kept_index(path)
    path.rename(tmp_path / "elsewhere")
    assert entries_of_copy(path, tmp_path) == []
    (tmp_path / "elsewhere").rename(path)
    index.close()


def test_an_index_without_its_digest_is_made_anew(path: Path) -> None:
    kept_index(path).close()
    Path(f"{path}.sha256").unlink()
    assert list(Index(path, is_kept=True).entries()) == []


@pytest.mark.parametrize("content", [b"not a database", b"SQLite format 3\0" + bytes(100), b"\0" * 5000, b""])
def test_a_file_that_is_no_index_is_made_anew(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    index = Index(path)
    assert list(index.entries()) == []
    index.put_object(record("data/a"))
    index.close()
    assert [item.key for item in Index(path).objects()] == ["data/a"]


def test_an_index_of_another_version_is_made_anew(path: Path) -> None:
    index = Index(path)
    index.put_object(record("data/a"))
    index.execute("DELETE FROM meta")
    index.commit()
    index.query("PRAGMA user_version=99")
    index.close()
    assert list(Index(path).objects()) == []


@pytest.mark.parametrize("value", [0, 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1])
def test_numbers_of_64_bits_fit(value: int) -> None:
    assert -(1 << 63) <= signed(value) < 1 << 63
    assert signed(value) % (1 << 64) == value


def test_every_bag_and_endpoint_has_its_own_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECAMP_STATE_DIR", str(tmp_path / "new/state"))
    paths = {index_path(url, endpoint, (b"/w",)) for url in ("s3://b/1", "s3://b/2") for endpoint in (None, "http://x")}
    assert len(paths) == 4
    assert (tmp_path / "new/state").stat().st_mode & 0o777 == 0o700
    assert state_directory() == tmp_path / "new/state"


def test_the_state_must_not_lie_in_the_workspace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DECAMP_STATE_DIR", str(tmp_path / "w/state"))
    for root in (tmp_path / "w", tmp_path / "w/state", Path("/")):
        with pytest.raises(BadInput, match="lies inside the workspace"):
            index_path("s3://b/1", None, (bytes(root),))
    (tmp_path / "link").symlink_to(tmp_path / "w")
    monkeypatch.setenv("DECAMP_STATE_DIR", str(tmp_path / "link/state"))
    with pytest.raises(BadInput, match="lies inside the workspace"):
        index_path("s3://b/1", None, (bytes(tmp_path / "w"),))
    assert index_path("s3://b/1", None, (bytes(tmp_path / "w/s"),)).name.endswith(".sqlite")


def test_a_state_directory_that_cannot_be_made_is_bad_input(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("DECAMP_STATE_DIR", str(tmp_path / "file/state"))
    with pytest.raises(BadInput, match="cannot be made"):
        index_path("s3://b/1", None, (b"/w",))
