"""After a walk the index is as the workspace is: a second walk finds nothing, and only proof that still holds stays."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from decamp.census import Census
from decamp.entries import Entry, Kind, State, plain_path, sort_key
from decamp.host import read_mounts
from decamp.index import Index, ObjectRecord
from decamp.reconcile import reconcile
from decamp.rules import Check, Rule
from decamp.spec import Spec
from tests.faults.mounts import CoarseFileSystem
from tests.unit.tree_samples import bring_in_line, digest, make_spec

NAMES = ["a", "b", "c.tmp", "d"]
ACTIONS = [
    "write",
    "append",
    "remove",
    "mkdir",
    "rename",
    "chmod",
    "symlink",
    "hardlink",
    "touch back",
    "fifo",
    "prove",
]
STEPS = st.lists(
    st.tuples(st.sampled_from(ACTIONS), st.sampled_from(NAMES), st.sampled_from(NAMES), st.sampled_from(NAMES)),
    max_size=25,
)
RULES = [
    {"match": "*.tmp", "tier": "garbage", "optional": True},
    {"match": "b", "tier": "useful", "optional": True},
]


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    with_memory = Index(tmp_path / "index.sqlite")
    yield with_memory
    with_memory.close()


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "w"
    (root / "d").mkdir(parents=True)
    for name in ("a", "b", "d/x", "d/y"):
        (root / name).write_text(name)
    (root / "l").symlink_to("a")
    return root


def prove(index: Index) -> None:
    """Marks what is pending as copied, with its real digest."""
    for entry in list(index.entries("state=? AND hardlink IS NULL", (int(State.PENDING),))):
        content = Path(os.fsdecode(plain_path(entry.path))).read_bytes()
        digest, key = hashlib.sha256(content).digest(), "data" + os.fsdecode(plain_path(entry.path))
        index.put_object(ObjectRecord(key, len(content), digest, "etag", None, None, "attested"))
        index.set_stored([(digest, key, None, len(content), None, entry.path)])
    index.settle_hard_links()
    index.commit()


def states(index: Index, root: Path) -> dict[str, State]:
    return {os.path.relpath(os.fsdecode(plain_path(entry.path)), root): State(entry.state) for entry in index.entries()}


def act(root: Path, index: Index, action: str, names: tuple[str, str, str]) -> None:
    path, other = root / names[0] / names[1], root / names[1] / names[2]
    try:
        if action == "write":
            path.write_text(names[2])
        elif action == "append":
            with path.open("a") as file:
                file.write("more")
        elif action == "remove":
            shutil.rmtree(path.parent) if path.parent.is_dir() else path.parent.unlink()
        elif action == "mkdir":
            path.mkdir(parents=True)
        elif action == "rename":
            path.rename(other)
        elif action == "chmod":
            path.chmod(0o600)
        elif action == "symlink":
            path.symlink_to(names[2])
        elif action == "hardlink":
            other.hardlink_to(path)
        elif action == "touch back":
            os.utime(path, ns=(0, 5))
        elif action == "fifo":
            os.mkfifo(path)
        elif action == "prove":
            prove(index)
    except OSError:
        pass  # the sequence asks for something that cannot be done to this tree


def test_hard_links_are_grouped_when_a_run_was_killed_before_it(index: Index, tree: Path) -> None:
    (tree / "h").hardlink_to(tree / "a")
    bring_in_line(make_spec(tree), index)
    prove(index)
    index.execute("UPDATE entry SET hardlink=NULL")
    index.set_fact("ungrouped", "1")
    index.commit()
    assert bring_in_line(make_spec(tree), index).rewritten == 0
    grouped = {entry.path: entry.hardlink for entry in index.entries("hardlink IS NOT NULL")}
    assert grouped == {sort_key(bytes(tree / "h")): sort_key(bytes(tree / "a"))}
    assert index.fact("ungrouped") is None


def test_what_a_broken_off_run_wrote_since_its_last_commit_is_forgotten(index: Index, tree: Path) -> None:
    bring_in_line(make_spec(tree), index)
    before = list(index.entries())
    index.execute("UPDATE entry SET hardlink=NULL, state=1, mode=0")
    index.roll_back()
    assert list(index.entries()) == before


@example([("mkdir", "c.tmp", "a", "a"), ("symlink", "c.tmp", "b", "a")])
@given(STEPS)
@settings(max_examples=60, deadline=None)
def test_a_second_walk_finds_nothing_and_the_index_says_what_is_there(steps: list[tuple[str, str, str, str]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory, "w")
        root.mkdir()
        (root / "start").touch()
        spec = make_spec(root, RULES)
        index = Index(Path(directory, "index.sqlite"))
        bring_in_line(spec, index)
        for number, (action, *names) in enumerate(steps):
            act(root, index, action, (names[0], names[1], names[2]))
            if number % 5 == 4:
                bring_in_line(spec, index)
        first = bring_in_line(spec, index)
        rows = list(index.entries())
        second = bring_in_line(spec, index)
        assert (second.rewritten, second.vanished) == (0, 0)
        assert second.tiers == first.tiers
        assert second.findings == first.findings
        assert list(index.entries()) == rows
        assert_describes(rows, spec)
        index.close()


def assert_describes(rows: list[Entry], spec: Spec) -> None:
    seen = {seen.key: seen for seen in Census(spec, read_mounts()).walk()}
    present = {entry.path: entry for entry in rows if entry.state != State.GONE}
    assert present.keys() == seen.keys()
    for key, entry in present.items():
        status = seen[key].status
        assert (entry.kind, entry.mode, entry.mtime_ns, entry.ctime_ns, entry.ino, entry.uid) == (
            seen[key].kind, status.st_mode & 0o7777, status.st_mtime_ns, status.st_ctime_ns, status.st_ino,
            status.st_uid,
        )  # fmt: skip
        if entry.kind == Kind.FILE and entry.state == State.PROVEN:
            content = Path(os.fsdecode(plain_path(key))).read_bytes()
            assert entry.sha256 == hashlib.sha256(content).digest()
        if entry.kind == Kind.SYMLINK:
            # Where a link that is left behind points is nobody's to bring back.
            assert entry.link == (None if entry.state == State.LEFT_BEHIND else os.readlink(plain_path(key)))
        if entry.hardlink is not None:
            first = present[entry.hardlink]
            assert (first.ino, first.dev, first.hardlink) == (entry.ino, entry.dev, None)
            assert first.path < entry.path
    for entry in rows:
        if entry.state == State.GONE:
            assert entry.path not in seen


def test_what_is_new_is_pending_and_what_is_copied_is_proven(tree: Path, index: Index) -> None:
    spec = make_spec(tree)
    changes = bring_in_line(spec, index)
    assert (changes.rewritten, changes.vanished, changes.tiers[0]) == (7, 0, [7, 8])
    assert {state for path, state in states(index, tree).items() if path in ("a", "b", "d/x", "d/y")} == {State.PENDING}
    assert {states(index, tree)[path] for path in (".", "d", "l")} == {State.PROVEN}
    prove(index)
    assert set(states(index, tree).values()) == {State.PROVEN}
    assert bring_in_line(spec, index).rewritten == 0


def _touch_back(root: Path) -> None:
    os.utime(root / "a", ns=(0, 0))


def _same_size(root: Path) -> None:
    status = (root / "a").stat()
    (root / "a").write_text("z")
    os.utime(root / "a", ns=(status.st_atime_ns, status.st_mtime_ns))


@pytest.mark.parametrize(
    "change",
    [_touch_back, _same_size, lambda root: (root / "a").chmod(0o600), lambda root: os.chown(root / "a", 4711, 4711)],
)
def test_any_change_makes_a_file_pending_again(tree: Path, index: Index, change: Callable[[Path], object]) -> None:
    spec = make_spec(tree)
    bring_in_line(spec, index)
    prove(index)
    time.sleep(0.02)
    change(tree)
    assert bring_in_line(spec, index).rewritten == 1
    assert states(index, tree)["a"] is State.PENDING
    assert states(index, tree)["b"] is State.PROVEN


def test_vanished_entries_are_kept_as_gone(tree: Path, index: Index) -> None:
    spec = make_spec(tree)
    bring_in_line(spec, index)
    prove(index)
    shutil.rmtree(tree / "d")
    (tree / "l").unlink()
    changes = bring_in_line(spec, index)
    assert changes.vanished == 4
    gone = {path for path, state in states(index, tree).items() if state is State.GONE}
    assert gone == {"d", "d/x", "d/y", "l"}
    entry = next(index.entries("path=?", (sort_key(bytes(tree / "d/x")),)))
    assert entry.object is not None
    assert bring_in_line(spec, index).vanished == 0


def test_what_was_never_copied_is_forgotten_when_it_vanishes(tree: Path, index: Index) -> None:
    bring_in_line(make_spec(tree), index)
    (tree / "a").unlink()
    assert bring_in_line(make_spec(tree), index).vanished == 0
    assert "a" not in states(index, tree)


def test_what_comes_back_is_no_longer_gone(tree: Path, index: Index) -> None:
    spec = make_spec(tree)
    bring_in_line(spec, index)
    prove(index)
    (tree / "a").unlink()
    bring_in_line(spec, index)
    (tree / "a").write_text("another")
    bring_in_line(spec, index)
    assert states(index, tree)["a"] is State.PENDING


def test_an_incomplete_walk_marks_nothing_as_gone(tree: Path, index: Index, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = make_spec(tree)
    bring_in_line(spec, index)
    prove(index)
    real = os.listdir

    def listdir(path: bytes) -> list[bytes]:
        if path == bytes(tree / "d"):
            raise OSError(5, "Input/output error")
        return real(path)

    (tree / "a").unlink()
    monkeypatch.setattr("decamp.census.os.listdir", listdir)
    assert bring_in_line(spec, index).vanished == 0
    assert State.GONE not in states(index, tree).values()
    monkeypatch.undo()
    assert bring_in_line(spec, index).vanished == 1
    assert {path for path, state in states(index, tree).items() if state is State.GONE} == {"a"}


def test_hard_links_are_one_content(tree: Path, index: Index) -> None:
    (tree / "d/z").hardlink_to(tree / "b")
    (tree / "0").hardlink_to(tree / "b")
    spec = make_spec(tree)
    bring_in_line(spec, index)
    pending = {path for path, state in states(index, tree).items() if state is State.PENDING}
    assert pending == {"0", "a", "b", "d/x", "d/y", "d/z"}
    links = {entry.path: entry.hardlink for entry in index.entries("hardlink IS NOT NULL")}
    assert links == dict.fromkeys(
        (sort_key(bytes(tree / "b")), sort_key(bytes(tree / "d/z"))), sort_key(bytes(tree / "0"))
    )
    prove(index)
    assert set(states(index, tree).values()) == {State.PROVEN}
    objects = {entry.object for entry in index.entries("ino=?", ((tree / "b").stat().st_ino,))}
    assert objects == {f"data{tree}/0"}


def test_hard_links_under_rules_of_their_own_come_to_rest(tree: Path, index: Index) -> None:
    (tree / "c").hardlink_to(tree / "b")
    spec = make_spec(tree, [{"match": "c", "tier": "useful", "check": {"kind": "command", "run": "true"}}])
    bring_in_line(spec, index)
    prove(index)
    assert bring_in_line(spec, index).rewritten == 0


def test_a_link_that_loses_its_first_name_stands_for_itself(tree: Path, index: Index) -> None:
    (tree / "0").hardlink_to(tree / "b")
    spec = make_spec(tree)
    bring_in_line(spec, index)
    prove(index)
    (tree / "0").unlink()
    bring_in_line(spec, index)
    entry = next(index.entries("path=?", (sort_key(bytes(tree / "b")),)))
    assert entry.hardlink is None


def test_a_garbage_name_never_stands_for_a_kept_one(tree: Path, index: Index) -> None:
    (tree / "0.tmp").hardlink_to(tree / "b")
    bring_in_line(make_spec(tree, RULES), index)
    assert list(index.entries("hardlink IS NOT NULL")) == []
    assert states(index, tree)["0.tmp"] is State.LEFT_BEHIND
    assert states(index, tree)["b"] is State.PENDING


def test_sockets_and_fifos_are_findings_outside_garbage(tree: Path, index: Index) -> None:
    os.mkfifo(tree / "f")
    os.mkfifo(tree / "g.tmp")
    changes = bring_in_line(make_spec(tree, RULES), index)
    assert [(finding.path, finding.what) for finding in changes.findings] == [
        (str(tree / "f"), "a fifo cannot be copied")
    ]
    assert bring_in_line(make_spec(tree, RULES), index).findings == changes.findings


@pytest.mark.parametrize(
    ("rule", "state"),
    [
        (Rule("b", "useful"), State.PROVEN),
        (Rule("b", "garbage"), State.LEFT_BEHIND),
        (Rule("b", "useful", "", Check("json")), State.PENDING),
    ],
)
def test_another_rule_is_noticed(tree: Path, index: Index, rule: Rule, state: State) -> None:
    bring_in_line(make_spec(tree), index)
    prove(index)
    told = {"match": rule.match, "tier": rule.tier} | ({"check": rule.check.document()} if rule.check else {})
    spec = make_spec(tree, [told])
    assert bring_in_line(spec, index).rewritten == 1
    assert states(index, tree)["b"] is state
    assert bring_in_line(spec, index).rewritten == 0


def test_garbage_that_becomes_worth_keeping_is_pending(tree: Path, index: Index) -> None:
    bring_in_line(make_spec(tree, [{"match": "*", "tier": "garbage"}]), index)
    bring_in_line(make_spec(tree), index)
    assert states(index, tree)["a"] is State.PENDING


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a filesystem")
@pytest.mark.parametrize("what", ["attribute", "link"])
def test_links_and_attributes_are_read_when_a_change_of_them_can_be_seen(
    tmp_path: Path, index: Index, what: str
) -> None:
    disk = CoarseFileSystem(tmp_path, str(tmp_path / "coarse"))
    try:
        root = tmp_path / "coarse/w"
        root.mkdir()
        (root / "a").touch()
        spec = make_spec(root)
        time.sleep(1.0 - time.time() % 1.0)  # a change in the same second leaves all times as they are

        def change(value: str) -> None:
            if what == "attribute":
                os.setxattr(root / "a", "user.note", value.encode())
            else:
                (root / "l").unlink(missing_ok=True)
                (root / "l").symlink_to(value)

        change("before")
        census = Census(spec, read_mounts())
        reconcile(census, index, spec.rules)
        change("after")
        if digest(spec) == census.sha256:
            for entry in index.entries("xattrs IS NOT NULL OR link IS NOT NULL"):
                assert (entry.link or base64.b64decode(json.loads(entry.xattrs or "{}")["user.note"])) == b"after"
        assert digest(spec) != census.sha256
    finally:
        disk.remove()
