"""The census sees every entry in one order, says what it could not see, and its digest follows every change."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from decamp.census import Census
from decamp.entries import Kind, sort_key
from decamp.host import Mount, read_mounts
from tests.unit.tree_samples import digest, make_spec, walk

NOBODY = 65534


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "w"
    (root / "d/e").mkdir(parents=True)
    (root / "empty").mkdir()
    for name, content in {"a": b"1", "a-b": b"22", "d/x": b"333", "d/e/y": b"", "d.txt": b"4", "tmp": b"5"}.items():
        (root / name).write_bytes(content)
    (root / "link").symlink_to("nowhere")
    (root / "dirlink").symlink_to("d")
    return root


def test_the_order_is_that_of_the_index(tree: Path) -> None:
    Path(os.fsdecode(bytes(tree) + b"/\xff\n")).touch()
    (tree / "d e").mkdir()
    (tree / "d e/x").touch()
    paths = walk(make_spec(tree)).paths
    keys = [sort_key(path) for path in paths]
    assert keys == sorted(keys)
    assert len(paths) == len(set(paths)) == 15
    assert paths[0] == bytes(tree)


def test_links_are_not_followed(tree: Path) -> None:
    seen = {seen.path: seen for seen in Census(make_spec(tree), read_mounts()).walk()}
    assert seen[bytes(tree / "dirlink")].kind is Kind.SYMLINK
    assert not any(path.startswith(bytes(tree / "dirlink/")) for path in seen if path != bytes(tree / "dirlink"))


def test_every_kind_is_told(tree: Path) -> None:
    os.mkfifo(tree / "fifo")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tree / "sock"))
        seen = {seen.path: seen.kind for seen in Census(make_spec(tree), read_mounts()).walk()}
    assert seen[bytes(tree / "fifo")] is Kind.FIFO
    assert seen[bytes(tree / "sock")] is Kind.SOCKET
    assert seen[bytes(tree / "d")] is Kind.DIRECTORY
    assert seen[bytes(tree / "a")] is Kind.FILE


def test_only_what_is_worth_keeping_is_counted(tree: Path) -> None:
    spec = make_spec(tree, [{"match": "d/**", "tier": "garbage"}, {"match": "a*", "tier": "useful"}])
    census = walk(spec)
    assert len(census.paths) == 12
    assert census.entries == 9  # all but d/x, d/e and d/e/y
    assert census.matched_rules() == {0, 1}


def _rename(root: Path) -> None:
    (root / "a").rename(root / "A")


def _set_old_mtime(root: Path) -> None:
    os.utime(root / "a", ns=(0, 0))


def _rewrite_under_the_old_mtime(root: Path) -> None:
    status = (root / "a").stat()
    (root / "a").write_bytes(b"2")
    os.utime(root / "a", ns=(status.st_atime_ns, status.st_mtime_ns))


def _replace_under_the_old_mtime(root: Path) -> None:
    status = (root / "a").stat()
    (root / "new").write_bytes(b"2")
    os.utime(root / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
    (root / "new").replace(root / "a")


def _retarget(root: Path) -> None:
    (root / "link").unlink()
    (root / "link").symlink_to("anywhere")


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda root: (root / "a").write_bytes(b"2"),
    "size": lambda root: (root / "a").write_bytes(b"11"),
    "mode": lambda root: (root / "a").chmod(0o600),
    "mode of a directory": lambda root: (root / "d").chmod(0o700),
    "owner": lambda root: os.chown(root / "a", 4711, -1),
    "group": lambda root: os.chown(root / "a", -1, 4711),
    "owner of a link": lambda root: os.lchown(root / "link", 4711, -1),
    "older mtime": _set_old_mtime,
    "content under the old mtime": _rewrite_under_the_old_mtime,
    "another file under the old name and mtime": _replace_under_the_old_mtime,
    "xattr": lambda root: os.setxattr(root / "a", "user.x", b"1"),
    "rename": _rename,
    "new file": lambda root: (root / "n").touch(),
    "new directory": lambda root: (root / "n").mkdir(),
    "removed file": lambda root: (root / "a").unlink(),
    "removed directory": lambda root: (root / "empty").rmdir(),
    "link target": _retarget,
    "hard link": lambda root: (root / "h").hardlink_to(root / "a"),
    "fifo": lambda root: os.mkfifo(root / "f"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_the_digest_follows_a_change(tree: Path, change: str) -> None:
    spec = make_spec(tree, [{"match": "tmp", "tier": "garbage"}])
    before = digest(spec)
    assert digest(spec) == before
    time.sleep(0.02)  # file systems stamp with a tick of up to 10 ms
    CHANGES[change](tree)
    assert digest(spec) != before


def test_the_digest_does_not_follow_garbage_and_reading(tree: Path) -> None:
    spec = make_spec(tree, [{"match": "tmp", "tier": "garbage"}, {"match": "d/**", "tier": "garbage"}])
    before = digest(spec)
    time.sleep(0.02)
    (tree / "tmp").write_bytes(b"other")
    (tree / "tmp").chmod(0o600)
    (tree / "d/e/new").touch()
    (tree / "d/e/y").unlink()
    (tree / "a").read_bytes()
    os.listdir(tree / "empty")
    assert digest(spec) == before


def test_a_directory_that_cannot_be_read_is_a_finding(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deny(monkeypatch, tree / "d")
    census = walk(make_spec(tree))
    (finding,) = census.findings
    assert (finding.path, finding.what, finding.found) == (
        str(tree / "d"), "the directory cannot be read", "Permission denied",
    )  # fmt: skip
    assert bytes(tree / "d") in census.paths
    assert bytes(tree / "tmp") in census.paths


def test_garbage_need_not_be_readable(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    deny(monkeypatch, tree / "d")
    garbage = {"match": "d/", "tier": "garbage"}
    assert walk(make_spec(tree, [garbage])).findings == []
    assert walk(make_spec(tree, [garbage, {"match": "*", "tier": "useful"}])).findings == []
    assert walk(make_spec(tree, default_tier="garbage")).findings == []
    # Something in it may be worth keeping.
    keeper = {"match": "x", "tier": "irreplaceable"}
    assert [finding.path for finding in walk(make_spec(tree, [keeper, garbage])).findings] == [str(tree / "d")]
    assert len(walk(make_spec(tree, [keeper], default_tier="garbage")).findings) == 1


def deny(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
    """Listing the directory fails, as for a user without the right to: root has every right."""
    real = os.listdir

    def listdir(path: bytes) -> list[bytes]:
        if path == bytes(directory):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr("decamp.census.os.listdir", listdir)


def what_roots_are(spec_arguments: dict[str, object], *roots: Path) -> list[str]:
    spec = make_spec(list(roots), **spec_arguments)  # type: ignore[arg-type]
    return [finding.what for finding in Census(spec, read_mounts()).check_roots()]


def test_roots_that_are_not_what_they_should_be(tmp_path: Path, tree: Path) -> None:
    empty, missing, file, link = (tmp_path / name for name in ("empty", "missing", "file", "link"))
    empty.mkdir()
    file.touch()
    link.symlink_to(tree)
    assert what_roots_are({}, tree) == []
    assert what_roots_are({}, empty) == ["the root is empty"]
    assert what_roots_are({}, missing) == ["the root is missing"]
    assert what_roots_are({}, file) == ["the root is no directory"]
    assert what_roots_are({}, link) == ["the root is a symbolic link"]
    assert what_roots_are({}, link / "d") == ["the root's path goes through a symbolic link"]
    assert what_roots_are({}, file / "x") == ["the root cannot be read"]
    assert len(what_roots_are({}, empty, missing, file, link, tree)) == 4


def test_empty_and_missing_roots_can_be_allowed(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").touch()
    assert what_roots_are({"allow_empty": True}, tmp_path / "empty", tmp_path / "missing") == []
    assert what_roots_are({"allow_empty": True}, tmp_path / "file") == ["the root is no directory"]


def test_a_mount_that_is_gone_is_a_finding(tree: Path) -> None:
    assert what_roots_are({"mount": str(tree)}, tree) == ["nothing is mounted here"]
    assert what_roots_are({"mount": "/proc"}, tree) == []
    assert what_roots_are({"mount": "/proc/"}, tree) == []


def test_what_the_kernel_makes_up_is_not_walked(tree: Path) -> None:
    (tree / "proc/1").mkdir(parents=True)
    mounts = [*read_mounts(), Mount(bytes(tree / "proc"), "proc", "proc")]
    paths = [seen.path for seen in Census(make_spec(tree), mounts).walk()]
    assert bytes(tree / "proc") in paths
    assert bytes(tree / "proc/1") not in paths


def test_mounts_of_roots_are_told(tree: Path) -> None:
    mounts = [Mount(b"/", "ext4", "/dev/a"), Mount(bytes(tree), "xfs", "/dev/b")]
    assert Census(make_spec(tree / "d"), mounts).mounts_of_roots() == {str(tree / "d"): [str(tree), "xfs", "/dev/b"]}


@pytest.fixture
def deep_tree(tmp_path: Path) -> Iterator[Callable[[str, int], Path]]:
    """Makes directories in each other, and removes them with a tool that does not recurse as pytest does."""
    top = tmp_path / "deep"

    def make(name: str, depth: int) -> Path:
        top.mkdir()
        descriptor = os.open(top, os.O_RDONLY)
        for _ in range(depth):
            os.mkdir(name, dir_fd=descriptor)
            deeper = os.open(name, os.O_RDONLY, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = deeper
        os.close(descriptor)
        return top

    yield make
    subprocess.run(["rm", "-rf", top], check=True, timeout=60)


def test_a_tree_deeper_than_pythons_recursion_is_walked(deep_tree: Callable[[str, int], Path]) -> None:
    census = walk(make_spec(deep_tree("d", 1500)))
    assert (len(census.paths), census.findings) == (1501, [])


def test_paths_longer_than_the_kernel_takes_are_findings(deep_tree: Callable[[str, int], Path]) -> None:
    census = walk(make_spec(deep_tree("d" * 250, 20)))
    assert [finding.found for finding in census.findings] == ["File name too long"]
