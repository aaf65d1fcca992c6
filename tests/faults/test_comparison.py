"""Each kind of difference between two trees is found, alone and by its name; equal trees have none."""

# ruff: noqa: S103 - modes as strange as a workspace's

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.comparison import Difference, compare, take_picture
from tests.faults.trees import make_tree

HOLE = 1 << 20


def build(root: Path) -> None:
    """A small tree with one of everything; called twice it makes the same tree twice."""
    (root / "empty").mkdir(parents=True)
    (root / "sub").mkdir()
    (root / "file").write_bytes(b"content")
    (root / "sub" / "other").write_bytes(b"content")
    (root / "sub" / "alone").write_bytes(b"alone")
    os.link(root / "file", root / "sub" / "linked")
    (root / "link").symlink_to("file")
    os.setxattr(root / "file", "user.note", b"x")
    with open(root / "sparse", "wb") as sink:
        sink.truncate(HOLE)
    (root / os.fsdecode(b"bad\xff\n")).write_bytes(b"named in bytes")
    os.chmod(root / "sub" / "other", 0o4750)
    for place, directories, names in os.walk(root, topdown=False):
        for name in (*names, *directories):
            os.utime(os.path.join(place, name), ns=(5, -7), follow_symlinks=False)
    os.utime(root, ns=(5, 11))


@pytest.fixture()
def pair(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("source", "restored"):
        build(tmp_path / name)
    return tmp_path / "source", tmp_path / "restored"


def differences(pair: tuple[Path, Path], owners: bool = True) -> list[Difference]:
    return compare(take_picture(os.fsencode(pair[0])), take_picture(os.fsencode(pair[1])), owners=owners)


def keeping_times(root: Path, change: Callable[[Path], None]) -> None:
    """Carries a change out and puts every mtime back, so that the change is the only difference."""
    stamps = {}
    for place, directories, names in os.walk(root):
        for name in (".", *directories, *names):
            path = os.path.join(place, name)
            stamps[path] = os.lstat(path).st_mtime_ns
    change(root)
    for path, stamp in stamps.items():
        if os.path.lexists(path):
            os.utime(path, ns=(stamp, stamp), follow_symlinks=False)


def test_equal_trees_have_no_difference(pair: tuple[Path, Path]) -> None:
    assert differences(pair) == []


def relink(root: Path) -> None:
    (root / "sub" / "linked").unlink()
    shutil.copy2(root / "file", root / "sub" / "linked")


def merge_links(root: Path) -> None:
    (root / "sub" / "alone").unlink()
    os.link(root / "sub" / "other", root / "sub" / "alone")


def retarget(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").symlink_to("filf")


def fill(root: Path) -> None:
    (root / "sparse").write_bytes(b"\0" * HOLE)


def become_directory(root: Path) -> None:
    (root / "sub" / "other").unlink()
    (root / "sub" / "other").mkdir()


CHANGES: list[tuple[str, Callable[[Path], object], bytes, str]] = [
    ("content of the same size", lambda r: (r / "sub/other").write_bytes(b"kontent"), b"sub/other", "sha256"),
    ("a longer file", lambda r: (r / "sub/other").write_bytes(b"content!"), b"sub/other", "size"),
    ("a lost file", lambda r: (r / "sub/alone").unlink(), b"sub/alone", "missing"),
    ("a lost empty directory", lambda r: (r / "empty").rmdir(), b"empty", "missing"),
    ("a lost name in bytes", lambda r: (r / os.fsdecode(b"bad\xff\n")).unlink(), b"bad\xff\n", "missing"),
    ("a name too many", lambda r: (r / "extra").mkdir(), b"extra", "not in the source"),
    ("another type", become_directory, b"sub/other", "type"),
    ("another mode", lambda r: os.chmod(r / "sub/other", 0o750), b"sub/other", "mode"),
    ("another mode of a directory", lambda r: os.chmod(r / "empty", 0o700), b"empty", "mode"),
    ("another link target", retarget, b"link", "target"),
    ("a hard link apart", relink, b"sub/linked", "hard link"),
    ("two files made one", merge_links, b"sub/other", "hard link"),
    ("a filled hole", fill, b"sparse", "bytes in holes"),
    ("a lost attribute", lambda r: os.removexattr(r / "file", "user.note"), b"file", "xattrs"),
    ("another attribute value", lambda r: os.setxattr(r / "file", "user.note", b"y"), b"file", "xattrs"),
    ("another owner", lambda r: os.chown(r / "sub/alone", 12, 34), b"sub/alone", "owner"),
    ("another owner of a link", lambda r: os.chown(r / "link", 12, 34, follow_symlinks=False), b"link", "owner"),
]


@pytest.mark.parametrize(("change", "path", "what"), [row[1:] for row in CHANGES], ids=[row[0] for row in CHANGES])
def test_each_difference_is_found(
    pair: tuple[Path, Path], change: Callable[[Path], None], path: bytes, what: str
) -> None:
    keeping_times(pair[1], change)
    assert (path, what) in {(found.path, found.what) for found in differences(pair)}


@pytest.mark.parametrize("name", ["file", "sub", "link", "."])
def test_one_nanosecond_is_a_difference(pair: tuple[Path, Path], name: str) -> None:
    stamp = os.lstat(pair[1] / name).st_mtime_ns + 1
    os.utime(pair[1] / name, ns=(stamp, stamp), follow_symlinks=False)
    assert {found.what for found in differences(pair)} == {"mtime_ns"}


def test_owners_count_only_when_asked(pair: tuple[Path, Path]) -> None:
    os.chown(pair[1] / "sub/alone", 12, 34)
    assert differences(pair, owners=False) == []


def test_a_socket_to_be_kept_is_a_difference_and_one_not_kept_is_not(pair: tuple[Path, Path]) -> None:
    for root in pair:
        keeping_times(root, lambda place: os.mkfifo(place / "pipe"))
    source, restored = (take_picture(os.fsencode(root)) for root in pair)
    assert [found.what for found in compare(source, restored)] == ["cannot be kept"]
    assert compare(source, restored, keeps=lambda node: node.kind != "fifo") == []


def test_what_is_not_kept_may_be_missing(pair: tuple[Path, Path]) -> None:
    keeping_times(pair[1], lambda root: (root / "sub/alone").unlink())
    source, restored = (take_picture(os.fsencode(root)) for root in pair)
    assert compare(source, restored, keeps=lambda node: node.path != b"sub/alone") == []


def test_a_missing_tree_is_missing_whole(pair: tuple[Path, Path]) -> None:
    source = take_picture(os.fsencode(pair[0]))
    found = compare(source, take_picture(os.fsencode(pair[1] / "absent")))
    assert {difference.what for difference in found} == {"missing"} and len(found) == len(source)


@pytest.mark.parametrize("seed", range(12))
def test_strange_trees_are_equal_to_themselves_and_to_no_other(tmp_path: Path, seed: int) -> None:
    for name in ("one", "two"):
        make_tree(random.Random(seed), os.fsencode(tmp_path / name))
    one, two = (take_picture(os.fsencode(tmp_path / name)) for name in ("one", "two"))
    copied = [path for path, node in one.items() if node.kind in ("file", "directory", "symlink")]
    assert compare(one, one, keeps=lambda node: node.path in copied) == []
    assert {path: node.sha256 for path, node in one.items()} == {path: node.sha256 for path, node in two.items()}
    lost = random.Random(seed).choice(copied)
    assert compare(one, {path: node for path, node in one.items() if path != lost})
