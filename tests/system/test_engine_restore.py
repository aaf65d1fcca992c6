"""A restore writes over nothing, brings back what it is asked for, and says what it could not."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

import pytest

from tests.faults.comparison import compare, take_picture
from tests.system.engine_node import NOBODY, EngineNode

MEBIBYTE = os.urandom(1 << 20)


@pytest.fixture
def archive(node: EngineNode) -> EngineNode:
    """A node whose workspace is in its archive."""
    node.fill({"a": b"A", "d/x": b"xx", "d/e/y.log": b"yyy", "big": MEBIBYTE * 3, "c": b"C"})
    (node.root / "l").symlink_to("a")
    (node.root / "hard").hardlink_to(node.root / "c")
    (node.root / "d").chmod(0o750)
    node.evacuate_safely()
    return node


@pytest.fixture
def there(archive: EngineNode) -> Path:
    """Where the workspace's copy is when DEST is `back`."""
    return Path(f"{archive.directory}/back{archive.root}")


def test_conflicts_are_all_told_and_nothing_is_written(archive: EngineNode, there: Path) -> None:
    (there / "d").mkdir(parents=True)
    (there / "a").write_bytes(b"B")
    (there / "d/x").symlink_to("/etc/passwd")
    (there / "l").write_bytes(b"no link")
    (there / "c").mkdir()
    (there / "big").write_bytes(MEBIBYTE)
    before = take_picture(bytes(archive.directory / "back"))
    outcome = archive.restore(archive.directory / "back")
    assert outcome.code == 2
    for name in ("a", "d/x", "l", "c", "big"):
        assert f"{there}/{name}: something else is in the way" in outcome.stderr
    assert "5 entries are in the way, and nothing was written" in outcome.stderr
    assert take_picture(bytes(archive.directory / "back")) == before


def test_overwrite_replaces_files_and_never_directories(archive: EngineNode, there: Path) -> None:
    victim = archive.directory / "victim"
    victim.write_bytes(b"precious")
    (there / "d").mkdir(parents=True)
    (there / "a").write_bytes(b"B")
    (there / "d/x").symlink_to(victim)
    (there / "l").write_bytes(b"no link")
    (there / "other").write_bytes(b"not of the archive")
    outcome = archive.restore(archive.directory / "back", "--overwrite")
    assert outcome.code == 0
    assert victim.read_bytes() == b"precious"
    (there / "other").unlink()
    os.utime(there, ns=(0, archive.root.stat().st_mtime_ns))
    assert compare(take_picture(bytes(archive.root)), take_picture(bytes(there))) == []
    shutil.rmtree(there / "d")
    (there / "d").write_bytes(b"a file where a directory has to be")
    assert archive.restore(archive.directory / "back", "--overwrite").code == 2
    assert (there / "d").read_bytes() == b"a file where a directory has to be"


def test_a_second_restore_writes_nothing_and_mends_modes(archive: EngineNode, there: Path) -> None:
    assert archive.restore(archive.directory / "back").code == 0
    inode = (there / "a").stat().st_ino
    (there / "a").chmod(0o600)
    os.utime(there / "a", ns=(0, 0))
    outcome = archive.restore(archive.directory / "back")
    assert outcome.code == 0
    assert (outcome.document["present"], outcome.document["files"]) == (5, 5)
    assert (there / "a").stat().st_ino == inode
    assert compare(take_picture(bytes(archive.root)), take_picture(bytes(there))) == []


@pytest.mark.parametrize(
    ("patterns", "files"),
    [
        (["*.log"], {"d/e/y.log"}),
        (["w/d/"], {"d/x", "d/e/y.log"}),
        (["hard"], {"hard"}),
        (["a", "big"], {"a", "big"}),
        (["nothing-like-this"], set()),
        (["l"], {"l"}),
    ],
)
def test_only_what_is_included_is_brought_back(
    archive: EngineNode, there: Path, patterns: list[str], files: set[str]
) -> None:
    options = [word for pattern in patterns for word in ("--include", pattern.replace("w/", f"{archive.root}/"))]
    outcome = archive.restore(archive.directory / "back", *options)
    assert outcome.code == 0
    found = (
        {str(path.relative_to(there)) for path in there.rglob("*") if not path.is_dir()} if there.exists() else set()
    )
    assert found == files
    for name in files - {"l"}:
        assert (there / name).read_bytes() == (archive.root / name).read_bytes()
    if "d/x" in files:
        assert stat.S_IMODE((there / "d").stat().st_mode) == 0o750


def test_a_pattern_that_is_none_is_told(archive: EngineNode) -> None:
    for pattern in ("!x", "[z-a]", ""):
        outcome = archive.restore(archive.directory / "back", "--include", pattern)
        assert outcome.code == 2
        assert "--include" in outcome.stderr
    assert not (archive.directory / "back").exists()


def test_a_destination_of_root_puts_everything_back_in_its_place(archive: EngineNode) -> None:
    picture = take_picture(bytes(archive.root))
    shutil.rmtree(archive.root)
    assert archive.restore(Path("/")).code == 0
    assert compare(picture, take_picture(bytes(archive.root))) == []


def test_without_a_receipt_only_what_is_asked_for_as_incomplete_comes_back(archive: EngineNode, there: Path) -> None:
    archive.fill({"b": b"new"})
    os.mkfifo(archive.root / "fifo")
    archive.refuse()
    outcome = archive.restore(archive.directory / "back")
    assert (outcome.code, outcome.document["exit_code"]) == (5, 5)
    assert "there is no receipt, so nothing is proven" in outcome.stderr
    assert not there.exists()
    listed = archive.run("ls", archive.url)
    assert listed.code == 0
    assert "no receipt" in listed.stderr
    outcome = archive.restore(archive.directory / "back", "--incomplete")
    assert outcome.code == 0
    assert (there / "b").read_bytes() == b"new"
    assert (there / "big").read_bytes() == MEBIBYTE * 3


@pytest.mark.parametrize("what", ["file", "below a file", "link in its path", "unwritable", "dangling link"])
def test_a_destination_that_cannot_be_used_is_one_message(archive: EngineNode, what: str) -> None:
    place = archive.directory / "back"
    if what in ("file", "below a file"):
        place.write_text("x")
        destination = place / "below" if what == "below a file" else place
    elif what == "link in its path":
        place.mkdir()
        elsewhere = archive.directory / "elsewhere"
        elsewhere.mkdir()
        (place / archive.root.parts[1]).symlink_to(elsewhere)
        destination = place
    elif what == "dangling link":
        place.symlink_to(archive.directory / "nowhere")
        destination = place
    else:
        place.mkdir(mode=0o555)
        archive.uid = NOBODY
        destination = place
    outcome = archive.restore(destination)
    assert outcome.code in (2, 5), outcome
    if outcome.code == 2:
        assert outcome.stderr.count("\n") == 1
        assert str(place) in outcome.stderr
    else:
        assert outcome.document["findings"]
        assert "cannot be" in outcome.document["findings"][0]["what"]
    if what == "link in its path":
        assert list(elsewhere.iterdir()) == []


def test_a_full_disk_is_told_and_continued(archive: EngineNode, there: Path) -> None:
    back = archive.directory / "back"
    back.mkdir()
    words = ["restore", archive.url, str(back), "--json", "--quiet"]
    done = archive.run_in_mounts(f"mount -t tmpfs -o size=1m tmpfs '{back}'", *words)
    assert done.returncode == 5
    assert f"{there}/big" in done.stdout
    assert "No space left on device" in done.stdout
    assert archive.restore(back).code == 0
    assert compare(take_picture(bytes(archive.root)), take_picture(bytes(there))) == []


def test_who_is_not_root_gets_contents_and_is_told_about_owners(archive: EngineNode, there: Path) -> None:
    (archive.root / "d").chmod(0o400)  # what is below it has to be finished first
    archive.evacuate_safely()
    back = archive.directory / "back"
    back.mkdir()
    back.chmod(0o777)
    archive.uid = NOBODY
    outcome = archive.restore(back)
    assert outcome.code == 0
    assert any(warning["what"] == "the owner cannot be set" for warning in outcome.document["warnings"])
    assert compare(take_picture(bytes(archive.root)), take_picture(bytes(there)), owners=False) == []


def test_there_is_nothing_to_restore_from_an_empty_place(node: EngineNode) -> None:
    for command in (["restore", node.url, str(node.directory / "back")], ["verify", node.url], ["ls", node.url]):
        outcome = node.run(*command, "--json")
        assert (outcome.code, outcome.document["exit_code"]) == (5, 5)
        assert outcome.stderr.count("\n") == 1
    assert not (node.directory / "back").exists()


def test_a_further_name_is_not_linked_to_what_lies_at_the_first_ones_place(node: EngineNode) -> None:
    node.fill({"a": b"of the archive"})
    os.link(node.root / "a", node.root / "b")
    node.evacuate_safely()
    back = Path(f"{node.directory}/back{node.root}")
    back.mkdir(parents=True)
    (back / "a").write_bytes(b"of somebody")
    outcome = node.restore(node.directory / "back", "--include", f"{node.root}/b")
    assert outcome.code == 0, outcome
    assert (back / "b").read_bytes() == b"of the archive"
    assert (back / "a").read_bytes() == b"of somebody"


def test_separate_files_that_are_one_in_the_destination_become_separate(node: EngineNode) -> None:
    node.fill({"a": b"the same", "b": b"the same", "c": b"linked", "other": b"more"})
    (node.root / "d").hardlink_to(node.root / "c")
    (node.root / "b").chmod(0o600)
    os.utime(node.root / "b", ns=(0, 5))
    node.evacuate_safely()
    there = Path(f"{node.directory}/back{node.root}")
    there.mkdir(parents=True)
    (there / "a").write_bytes(b"the same")
    (there / "b").hardlink_to(there / "a")
    (there / "c").hardlink_to(there / "a")
    (there / "d").hardlink_to(there / "a")
    (there / "other").hardlink_to(there / "a")
    outcome = node.restore(node.directory / "back", "--overwrite")
    assert outcome.code == 0, outcome
    assert compare(take_picture(bytes(node.root)), take_picture(bytes(there))) == []


def test_owners_of_links_come_back(archive: EngineNode, there: Path) -> None:
    os.lchown(archive.root / "l", 1234, 4321)
    archive.evacuate_safely()
    there.mkdir(parents=True)
    (there / "l").symlink_to("a")  # it is there already, and is somebody else's
    for _ in range(2):
        assert archive.restore(archive.directory / "back").code == 0
        status = (there / "l").lstat()
        assert (status.st_uid, status.st_gid) == (1234, 4321)
        assert compare(take_picture(bytes(archive.root)), take_picture(bytes(there))) == []
        (there / "l").unlink()
