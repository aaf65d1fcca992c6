"""What is put on a disk is whole, has its own attributes, and never lies on the other side of a link."""

from __future__ import annotations

import base64
import errno
import hashlib
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from decamp.entries import Entry, Kind
from decamp.findings import Finding
from decamp.placing import Placer
from tests.unit.entry_samples import make_entry

MTIME_NS = 1_234_567_890_987_654_321


@pytest.fixture
def warnings() -> list[Finding]:
    return []


@pytest.fixture
def place(tmp_path: Path, warnings: list[Finding]) -> Placer:
    return Placer(bytes(tmp_path), warnings, lambda _key: None)


def put(placer: Placer, path: bytes, content: bytes, step: int = 1 << 20, **changes: object) -> str | None:
    entry = make_entry(path, content, mtime_ns=MTIME_NS, uid=os.getuid(), gid=os.getgid(), **changes)
    pieces = (content[start : start + step] for start in range(0, len(content), step))
    return placer.place_file(entry, pieces, lambda _count: None)


def directory(path: bytes, **changes: object) -> Entry:
    fields = {"kind": Kind.DIRECTORY, "mode": 0o755, "mtime_ns": MTIME_NS, "uid": os.getuid(), "gid": os.getgid()}
    return make_entry(path, **{**fields, **changes})


def link(path: bytes, target: bytes) -> Entry:
    return make_entry(path, kind=Kind.SYMLINK, link=target, mtime_ns=MTIME_NS, uid=os.getuid(), gid=os.getgid())


def test_a_file_has_content_mode_and_time(place: Placer, tmp_path: Path) -> None:
    assert put(place, b"/a/b/\xff\n", b"content", mode=0o4751) is None
    path = bytes(tmp_path) + b"/a/b/\xff\n"
    status = os.lstat(path)
    assert Path(os.fsdecode(path)).read_bytes() == b"content"
    assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (0o4751, MTIME_NS)
    assert os.listdir(tmp_path / "a/b") == [os.fsdecode(b"\xff\n")]


def test_a_file_that_cannot_be_read_by_its_owner_is_placed(place: Placer, tmp_path: Path) -> None:
    assert put(place, b"/secret", b"x" * 10, mode=0) is None
    assert stat.S_IMODE((tmp_path / "secret").lstat().st_mode) == 0


@pytest.mark.parametrize("found", [b"conten", b"contenT", b"content!", b""])
def test_damaged_content_gets_no_name(place: Placer, tmp_path: Path, found: bytes) -> None:
    (tmp_path / "a").write_bytes(b"earlier")
    entry = make_entry(b"/a", b"content")
    told = place.place_file(entry, iter((found,)), lambda _count: None)
    assert told == f"{len(found)} bytes, sha256 {hashlib.sha256(found).hexdigest()}"
    assert (tmp_path / "a").read_bytes() == b"earlier"
    assert os.listdir(tmp_path) == ["a"]


def test_a_source_that_fails_leaves_nothing(place: Placer, tmp_path: Path) -> None:
    def pieces():
        yield b"con"
        raise OSError(errno.EIO, "broken")

    with pytest.raises(OSError, match="broken"):
        place.place_file(make_entry(b"/a", b"content"), pieces(), lambda _count: None)
    assert os.listdir(tmp_path) == []


def test_a_partial_file_of_a_killed_run_is_taken_over(place: Placer, tmp_path: Path) -> None:
    name = ".decamp-" + hashlib.sha256(b"/a").hexdigest()[:16]
    (tmp_path / name).write_bytes(b"much longer than the content")
    assert put(place, b"/a", b"content") is None
    assert os.listdir(tmp_path) == ["a"]
    assert (tmp_path / "a").read_bytes() == b"content"


def test_a_link_in_place_of_the_partial_file_is_not_followed(place: Placer, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_bytes(b"precious")
    (tmp_path / (".decamp-" + hashlib.sha256(b"/a").hexdigest()[:16])).symlink_to(victim)
    with pytest.raises(OSError, match=r".*") as caught:
        put(place, b"/a", b"content")
    assert caught.value.errno == errno.ELOOP
    assert victim.read_bytes() == b"precious"


def test_nothing_is_written_through_a_linked_directory(place: Placer, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (tmp_path / "w").symlink_to(outside)
    actions: list[Callable[[], object]] = [
        lambda: put(place, b"/w/a", b"content"),
        lambda: put(place, b"/w/deep/a", b"content"),
        lambda: place.make_directory(directory(b"/w")),
        lambda: place.make_directory(directory(b"/w/sub")),
        lambda: place.make_link(link(b"/w/l", b"x"), overwrite=True),
        lambda: place.make_hard_link(make_entry(b"/w/h"), bytes(tmp_path) + b"/outside"),
    ]
    for action in actions:
        with pytest.raises(NotADirectoryError):
            action()
    assert list(outside.iterdir()) == []


def test_a_link_in_place_of_a_file_is_replaced_not_followed(place: Placer, tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"precious")
    (tmp_path / "a").symlink_to("victim")
    assert put(place, b"/a", b"content") is None
    assert (tmp_path / "victim").read_bytes() == b"precious"
    assert not (tmp_path / "a").is_symlink()
    with pytest.raises(OSError, match=r".*"):
        (tmp_path / "b").symlink_to("victim")
        place.finish_file(make_entry(b"/b", mode=0o777))
    assert stat.S_IMODE((tmp_path / "victim").stat().st_mode) == 0o644


def test_holes_stay_holes(place: Placer, tmp_path: Path) -> None:
    content = b"start" + bytes(1 << 20) + b"middle" + bytes((1 << 20) + 77)
    assert put(place, b"/a", content, step=65536, sparse=1) is None
    assert (tmp_path / "a").read_bytes() == content
    assert (tmp_path / "a").stat().st_blocks * 512 < 100_000
    assert put(place, b"/all-hole", bytes(300_000), sparse=1) is None
    assert (tmp_path / "all-hole").read_bytes() == bytes(300_000)
    assert (tmp_path / "all-hole").stat().st_blocks == 0


def test_zeros_of_a_file_without_holes_are_written(place: Placer, tmp_path: Path) -> None:
    assert put(place, b"/a", bytes(1 << 20)) is None
    assert (tmp_path / "a").stat().st_blocks * 512 >= 1 << 20


def test_set_user_id_survives_a_change_of_owner(place: Placer, tmp_path: Path) -> None:
    entry = make_entry(b"/a", b"x", uid=12345, gid=54321, mode=0o6755, mtime_ns=MTIME_NS)
    assert place.place_file(entry, iter((b"x",)), lambda _count: None) is None
    status = (tmp_path / "a").stat()
    assert (status.st_uid, status.st_gid, stat.S_IMODE(status.st_mode)) == (12345, 54321, 0o6755)
    assert status.st_mtime_ns == MTIME_NS


def test_attributes_are_set_on_files_directories_and_read_only_ones(
    place: Placer, tmp_path: Path, warnings: list[Finding]
) -> None:
    xattrs = json.dumps({"user.note": base64.b64encode(b"\0\xff").decode()})
    assert put(place, b"/d/a", b"x", mode=0o400, xattrs=xattrs) is None
    place.make_directory(directory(b"/d", mode=0o500, xattrs=xattrs))
    place.finish_directories()
    for path in (tmp_path / "d", tmp_path / "d/a"):
        assert os.getxattr(path, "user.note") == b"\0\xff"
        assert path.stat().st_mtime_ns == MTIME_NS
    assert warnings == []


def test_an_attribute_that_cannot_be_is_a_warning(place: Placer, tmp_path: Path, warnings: list[Finding]) -> None:
    xattrs = json.dumps({"nonsense.x": base64.b64encode(b"1").decode()})
    assert put(place, b"/a", b"x", xattrs=xattrs) is None
    assert [finding.what for finding in warnings] == ["the attribute nonsense.x cannot be set"]
    assert (tmp_path / "a").exists()


def test_directories_get_their_times_last_and_their_modes(place: Placer, tmp_path: Path) -> None:
    for path, mode in ((b"/d", 0o555), (b"/d/e", 0o700), (b"/d/e/f", 0o1777)):
        place.make_directory(directory(path, mode=mode))
    assert put(place, b"/d/e/f/a", b"x") is None
    place.finish_directories()
    for path, mode in (("d", 0o555), ("d/e", 0o700), ("d/e/f", 0o1777)):
        status = (tmp_path / path).stat()
        assert (stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (mode, MTIME_NS)


def test_a_parent_that_is_not_restored_itself_still_gets_its_mode(tmp_path: Path) -> None:
    row = directory(b"/d", mode=0o711)
    placer = Placer(bytes(tmp_path), [], lambda key: row if key == b"\0d" else None)
    assert put(placer, b"/d/a", b"x") is None
    placer.finish_directories()
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o711


@pytest.mark.parametrize("target", [b"nowhere", b"/etc/passwd", b"..", b"\xff\n", b"self", b"x" * 4000])
def test_a_link_keeps_its_target_and_time(place: Placer, tmp_path: Path, target: bytes) -> None:
    entry = link(b"/l", target)
    for overwrite in (False, True, False):
        place.make_link(entry, overwrite)
        assert os.readlink(bytes(tmp_path) + b"/l") == target
        assert os.lstat(tmp_path / "l").st_mtime_ns == MTIME_NS


def test_a_link_replaces_something_else_only_when_told(place: Placer, tmp_path: Path) -> None:
    (tmp_path / "l").write_bytes(b"x")
    with pytest.raises(FileExistsError):
        place.make_link(link(b"/l", b"t"), overwrite=False)
    assert (tmp_path / "l").read_bytes() == b"x"
    place.make_link(link(b"/l", b"t"), overwrite=True)
    assert os.readlink(tmp_path / "l") == "t"


def test_a_hard_link_is_one_file(place: Placer, tmp_path: Path) -> None:
    assert put(place, b"/a", b"x") is None
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub/b").write_bytes(b"old")
    for _ in range(2):
        place.make_hard_link(make_entry(b"/sub/b"), bytes(tmp_path) + b"/a")
        assert (tmp_path / "sub/b").samefile(tmp_path / "a")
