"""Which names lie in the store as plain objects, and which keys exclude each other."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from decamp.bag import collides, object_line, parse_object, plain_key
from decamp.index import Index, ObjectRecord
from decamp.store.client import Store
from decamp.store.location import StoreLocation

STORE = Store(StoreLocation("bucket", "some/node-1"))


def record(key: str) -> ObjectRecord:
    return ObjectRecord(key, 3, hashlib.sha256(b"abc").digest(), "etag", None, None, "attested")


@pytest.mark.parametrize(
    "path",
    [
        "/w/a",
        "/w/with space",
        "/w/ü/日本",
        "/w/a+b&c=d?e#f",
        "/w/'\"<>|*",
        "/w/.hidden",
        "/w/a.b/-x",
        "/w/~",
        "/w/$(x)",
    ],
)
def test_usual_names_are_plain(path: str) -> None:
    assert plain_key(path.encode(), STORE) == "data" + path


@pytest.mark.parametrize(
    "path",
    [
        b"/w/\xff", b"/w/a\nb", b"/w/\x7f", b"/w/tab\t", b"/w/ blank", b"/w/blank ", b"/w/a /b", b"/w/50%", b"/w/%2F",
        b"/w/back\\slash", b"/w/zero\xe2\x80\x8bwidth", b"/w/nbsp\xc2\xa0", b"/w/e\xcc\x81", b"/w/\xe2\x80\xa8",
        b"/w/" + b"n" * 256, b"/.packs/x", b"/.packs", b"/w/\x01",
    ],
)  # fmt: skip
def test_strange_names_are_not(path: bytes) -> None:
    assert plain_key(path, STORE) is None


def test_a_key_holds_1024_bytes_with_its_prefix() -> None:
    room = 1024 - len("some/node-1/data/")
    path = b"/" + b"/".join([b"p" * 99] * 10)
    path += b"/" + b"q" * (room - len(path))
    assert len(path) - 1 == room
    assert plain_key(path, STORE) is not None
    assert plain_key(path + b"q", STORE) is None
    assert plain_key(path + b"q", Store(StoreLocation("bucket", "x"))) is not None
    assert plain_key(path[:-1] + "ü".encode(), STORE) is None


@pytest.mark.parametrize(
    ("there", "key", "expected"),
    [
        ("data/run", "data/run/x", True), ("data/run/x", "data/run", True), ("data/run/x/y", "data/run", True),
        ("data/run", "data/run/x/y", True), ("data/run", "data/run", False), ("data/run", "data/run2", False),
        ("data/run-1/x", "data/run", False), ("data/run.d/x", "data/run", False), ("data/run0/x", "data/run", False),
        ("data/a/b", "data/a/c", False), ("data/.packs/p.tar", "data/x", False),
    ],
)  # fmt: skip
def test_a_file_and_a_directory_of_one_name_collide(tmp_path: Path, there: str, key: str, expected: bool) -> None:
    index = Index(tmp_path / "index.sqlite")
    index.put_object(record(there))
    assert collides(index, key) is expected
    index.close()


@pytest.mark.parametrize(
    "changed",
    [
        record("data/w/ü ' \"x"),
        ObjectRecord("data/a", 1 << 60, bytes(32), "e-3", "x-3", "s3://other/key", "read_back"),
    ],
)
def test_an_object_line_gives_the_record_back(changed: ObjectRecord) -> None:
    line = object_line(changed)
    assert line.count(b"\n") == 1
    assert parse_object(line) == changed


@pytest.mark.parametrize(
    "line",
    [
        b"", b"{}", b"[]", b"7", b"{", object_line(record("data/x")).replace(b"data/x", b"decamp/receipt.json"),
        object_line(record("data/x")).replace(b'"sha256":"', b'"sha256":"00'),
        object_line(record("data/x")).replace(b'"size":3', b'"size":"three"'),
    ],
)  # fmt: skip
def test_what_is_no_object_line_is_refused(line: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        parse_object(line)
