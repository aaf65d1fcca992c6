"""Packs are plain tar archives: the same headers as Python's tarfile, readable by GNU tar."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st

from decamp.entries import Entry, plain_path
from decamp.packs import PACK_PREFIX, PACK_TARGET_BYTES, Member, Pack, member_header, new_pack_key, padding
from tests.unit.entry_samples import make_entry

NAME = st.binary(min_size=1, max_size=120).map(lambda raw: raw.replace(b"\0", b"~").strip(b"/") or b"x")


@given(
    NAME, st.integers(0, 1 << 40), st.integers(0, 0o7777), st.integers(0, 1 << 26), st.integers(0, 1 << 26),
    st.integers(-(1 << 66), 1 << 66),
)  # fmt: skip
@example(b"a" * 100, 8**11 - 1, 0o7777, 8**7 - 1, 8**7 - 1, (8**11 - 1) * 10**9)
@example(b"a" * 101, 8**11, 0, 8**7, 8**7, 8**11 * 10**9)
@settings(max_examples=200, deadline=None)
def test_headers_are_those_of_tarfile(name: bytes, size: int, mode: int, uid: int, gid: int, mtime_ns: int) -> None:
    entry = make_entry(b"/" + name, size=size, mode=mode, uid=uid, gid=gid, mtime_ns=mtime_ns)
    member = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
    member.size, member.mode, member.uid, member.gid = size, mode, uid, gid
    member.mtime = min(max(mtime_ns // 10**9, 0), 8**11 - 1)
    assert member_header(entry) == member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


FILES = {
    b"/w/plain.txt": b"plain",
    b"/w/empty": b"",
    b"/w/block": bytes(512),
    b"/w/odd \n\xff\xfe": b"x" * 513,
    b"/w/" + b"deep/" * 40 + b"\xc3\xbc": b"deep",
    b"/w/" + b"n" * 255: b"long",
    b"/w/-rf": b"dash",
}


def as_member(entry: Entry, content: bytes) -> tuple[bytes, list[Member]]:
    header = member_header(entry)
    member = Member(entry, len(header), hashlib.sha256(content).digest(), None)
    return header + content + padding(len(content)), [member]


def make_pack() -> tuple[bytes, list[Entry]]:
    pack = Pack()
    entries = [make_entry(path, content, mode=0o640) for path, content in FILES.items()]
    for entry, content in zip(entries, FILES.values(), strict=True):
        pack.add(*as_member(entry, content))
    for member in pack.members:
        content = FILES[plain_path(member.entry.path)]
        assert pack.body[member.offset : member.offset + len(content)] == content
    return bytes(pack.close()), entries


def test_a_pack_is_read_by_gnu_tar(tmp_path: Path) -> None:
    body, _ = make_pack()
    (tmp_path / "pack.tar").write_bytes(body)
    (tmp_path / "out").mkdir()
    command = ["tar", "--extract", "--file", "pack.tar", "--directory", "out"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, timeout=30, check=False)
    assert (done.returncode, done.stderr) == (0, b"")
    found = {
        b"/" + bytes(path)[len(bytes(tmp_path / "out")) + 1 :]: path.read_bytes()
        for path in (tmp_path / "out").rglob("*") if path.is_file()
    }  # fmt: skip
    assert found == FILES


def test_a_pack_is_read_by_python() -> None:
    body, entries = make_pack()
    with tarfile.open(fileobj=io.BytesIO(body), errors="surrogateescape") as archive:
        members = archive.getmembers()
        assert ["/" + member.name for member in members] == [
            plain_path(entry.path).decode("utf-8", "surrogateescape") for entry in entries
        ]
        assert {member.mode for member in members} == {0o640}
        assert {member.mtime for member in members} == {1_700_000_000}
        contents = [archive.extractfile(member).read() for member in members]
    assert contents == list(FILES.values())


def test_padding_fills_the_last_block() -> None:
    assert [len(padding(size)) for size in (0, 1, 511, 512, 513)] == [0, 511, 1, 0, 511]


def test_a_pack_is_full_at_its_target() -> None:
    pack = Pack()
    content = bytes(PACK_TARGET_BYTES // 2)
    pack.add(*as_member(make_entry(b"/a", content), content))
    assert not pack.is_full
    pack.add(*as_member(make_entry(b"/b", content), content))
    assert pack.is_full


def test_keys_of_packs_differ() -> None:
    keys = {new_pack_key() for _ in range(100)}
    assert len(keys) == 100
    assert all(key.startswith(PACK_PREFIX) and key.endswith(".tar") for key in keys)
