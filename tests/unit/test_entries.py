"""A line of entries.jsonl gives back the entry without loss, whatever its name, times and attributes."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from decamp.entries import (
    Entry,
    Kind,
    State,
    encode_checks,
    entry_document,
    entry_line,
    parse_entry,
    plain_path,
    shown,
    sort_key,
)  # fmt: skip
from decamp.rules import Rule
from tests.unit.entry_samples import make_entry

RULES = (Rule("a/**", "useful", "why not"), Rule("\udcff*", "useful"))
NUMBERS = {rule.match: number for number, rule in enumerate(RULES)}
NAME = st.binary(min_size=1, max_size=12).map(lambda raw: raw.replace(b"\0", b"~").replace(b"/", b"_"))
PATH = st.lists(NAME.filter(lambda name: name not in (b".", b"..")), min_size=1, max_size=4).map(
    lambda names: b"/" + b"/".join(names)
)
NS = st.integers(-(1 << 70), 1 << 70)
U64 = st.integers(-(1 << 63), (1 << 63) - 1)
XATTRS = st.dictionaries(st.text(min_size=1, max_size=9), st.binary(max_size=9), min_size=1, max_size=3).map(
    lambda names: json.dumps({name: base64.b64encode(value).decode() for name, value in sorted(names.items())})
)
CHECKS = st.just(encode_checks([{"kind": "arrow", "passed": False, "measures": {"mean": 0.25}}]))


@st.composite
def entries(draw: st.DrawFn) -> Entry:
    kind = draw(st.sampled_from(Kind))
    is_file = kind is Kind.FILE
    tier = draw(st.integers(0, 2))
    has_object = is_file and draw(st.booleans())
    size = draw(st.integers(0, 1 << 62)) if is_file else 0
    return make_entry(
        draw(PATH), kind=kind, tier=tier, rule=draw(st.integers(-1, len(RULES) - 1)), size=size,
        mode=draw(st.integers(0, 0o7777)), mtime_ns=draw(NS), ctime_ns=draw(U64), ino=draw(U64), dev=draw(U64),
        nlink=draw(st.integers(1, 9)), uid=draw(st.integers(0, 1 << 32)), gid=draw(st.integers(0, 1 << 32)),
        link=draw(st.binary(min_size=1, max_size=20)) if kind is Kind.SYMLINK else None,
        xattrs=draw(st.none() | XATTRS), sparse=draw(st.integers(0, 1)), state=draw(st.sampled_from(State)),
        sha256=draw(st.binary(min_size=32, max_size=32)) if has_object else None,
        object="data/x" if has_object else None,
        offset=draw(st.none() | st.integers(0, 1 << 40)) if has_object else None,
        stored_size=draw(st.integers(0, 1 << 50) | st.just(size)) if has_object else None,
        hardlink=sort_key(draw(PATH)) if is_file and draw(st.booleans()) else None,
        checks=draw(st.none() | CHECKS),
        check_id=draw(st.sampled_from(["whole", "0123456789abcdef"])) if is_file and tier < 2 else None,
    )  # fmt: skip


@given(entries())
@example(make_entry(b'/\xff\xfe\n"\\ \t\x01\xe2\x80\xa8', mtime_ns=-(1 << 66)))
@example(make_entry(b'/w/\xc3\xbc\n"\\ \t\x01\xe2\x80\xa8', b"packed", offset=512, uid=1, gid=2, nlink=3, ctime_ns=4))
@example(make_entry(b"/w/packed", b"", offset=0, rule=0, tier=1, mode=0o7777, mtime_ns=-(1 << 66)))
@example(make_entry(b"/w/packed", b"x", offset=5, rule=1, tier=1, state=State.GONE))
@example(make_entry(b"/w/\xff", b"packed", offset=512, uid=1, gid=2, nlink=3, ctime_ns=4))
@settings(max_examples=150, deadline=None)
def test_a_line_gives_the_entry_back(entry: Entry) -> None:
    line = entry_line(entry, RULES)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert parse_entry(line, NUMBERS) == entry
    document = entry_document(entry, RULES)
    assert json.loads(line.decode("utf-8")) == document
    assert list(json.loads(line)) == list(document)


def test_a_line_is_readable_for_anybody() -> None:
    entry = make_entry(b"/w/\xc3\xbc", b"content", rule=0, tier=1)
    document = json.loads(entry_line(entry, RULES))
    assert document["path"] == "/w/ü"
    assert (document["type"], document["tier"], document["state"]) == ("file", "useful", "proven")
    assert (document["mode"], document["size"], document["rule"], document["reason"]) == ("0644", 7, "a/**", "why not")
    assert document["sha256"] == entry.sha256.hex()


def test_names_that_are_no_text_are_in_base64() -> None:
    document = json.loads(entry_line(make_entry(b"/\xff", kind=Kind.SYMLINK, link=b"\xfe"), RULES))
    assert base64.b64decode(document["path_base64"]) == b"/\xff"
    assert base64.b64decode(document["link_base64"]) == b"\xfe"
    assert "path" not in document


LINE = entry_line(make_entry(b"/w/a", b"x", rule=0), RULES)


@pytest.mark.parametrize(
    "line",
    [
        b"", b"{}", b"[]", b"null", b"3", b"\xff", LINE[:-20], LINE.replace(b'"/w/a"', b'"w/a"'),
        LINE.replace(b'"/w/a"', b'"/w/../../etc/passwd"'), LINE.replace(b'"/w/a"', b'"/w/\\u0000a"'),
        LINE.replace(b'"/w/a"', b"null"), LINE.replace(b'"file"', b'"door"'),
        LINE.replace(b'"irreplaceable"', b'"dear"'),
        LINE.replace(b'"proven"', b'"hoped"'), LINE.replace(b'"0644"', b'"rw"'),
        LINE.replace(b'"sha256":"', b'"sha256":"0'),
        LINE.replace(b'"sha256":"', b'"sha256":"00'), LINE.replace(b'"identity"', b'"id"'),
        LINE.replace(b'"path":"/w/a"', b'"path_base64":"!"'),
    ],
)  # fmt: skip
def test_what_is_no_line_of_ours_is_refused(line: bytes) -> None:
    assert line != LINE
    with pytest.raises(ValueError, match=r".*"):
        parse_entry(line, NUMBERS)


def test_the_order_puts_a_directory_right_before_what_it_holds() -> None:
    paths = [b"/a", b"/a-b", b"/a/b", b"/a/b/c", b"/a b", b"/a/b-c", b"/\x01", b"/a.txt"]
    ordered = [plain_path(key) for key in sorted(map(sort_key, paths))]
    assert ordered == [b"/\x01", b"/a", b"/a/b", b"/a/b/c", b"/a/b-c", b"/a b", b"/a-b", b"/a.txt"]


@given(st.binary(max_size=30))
@settings(max_examples=100, deadline=None)
def test_a_path_for_people_is_one_printable_line(path: bytes) -> None:
    assert shown(path).isprintable()


def test_different_strange_names_are_shown_differently() -> None:
    assert len({shown(path) for path in (b"a\n", b"a", b"a ", b"a\t", b"a\xff", b"a\xfe", b"a\xe2\x80\x8b")}) == 7
