"""One entry of a workspace, and its line in entries.jsonl.

Paths and link targets are bytes. A line carries them as text where they are valid UTF-8, else in base64 under a
name that ends in `_base64`, so that any JSON reader gets them back without loss.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from enum import IntEnum
from typing import Any, NamedTuple

from decamp.rules import GARBAGE, TIERS, Rule


class Kind(IntEnum):
    """What an entry is; the numbers are those of the index."""

    FILE = 0
    DIRECTORY = 1
    SYMLINK = 2
    SOCKET = 3
    FIFO = 4
    BLOCK_DEVICE = 5
    CHARACTER_DEVICE = 6


class State(IntEnum):
    """What is known of an entry.

    PENDING: its content is not proven to be in the store. PROVEN: it is. GONE: an earlier evacuation proved it and
    the node has it no more. LEFT_BEHIND: garbage. UNSTORABLE: a socket, FIFO or device. UNREADABLE: it could not
    be read this time.
    """

    PENDING = 0
    PROVEN = 1
    GONE = 2
    LEFT_BEHIND = 3
    UNSTORABLE = 4
    UNREADABLE = 5


STATE_NAMES = {
    State.PENDING: "unproven",
    State.PROVEN: "proven",
    State.GONE: "gone",
    State.LEFT_BEHIND: "left_behind",
    State.UNSTORABLE: "unstorable",
    State.UNREADABLE: "unreadable",
}
_encode_text = json.encoder.encode_basestring
_encode = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False).encode
_STATES = {name: state for state, name in STATE_NAMES.items()}


class Entry(NamedTuple):
    """A row of the index: the census of one entry, and where its content is.

    `path` has NUL bytes in place of slashes, so that sorting by it puts a directory right before what it holds.
    `object`, `offset` and `stored_size` tell where content lies: an object of the bag, the first byte in it
    (None for a plain object), and how many bytes. `hardlink` is the path, in the same form, of the name under
    which the content of several hard links is stored.
    """

    path: bytes
    kind: int
    tier: int
    rule: int
    size: int
    mode: int
    mtime_ns: int
    ctime_ns: int
    ino: int
    dev: int
    nlink: int
    uid: int
    gid: int
    link: bytes | None
    xattrs: str | None
    sparse: int
    state: int
    sha256: bytes | None
    object: str | None
    offset: int | None
    stored_size: int | None
    hardlink: bytes | None
    checks: str | None
    check_id: str | None


def encode_checks(documents: list[dict[str, Any]]) -> str:
    """The one textual form of check results; failed_checks looks for it."""
    return json.dumps(documents, separators=(",", ":"))


def sort_key(path: bytes) -> bytes:
    """An absolute path in the form that the index sorts by."""
    return path.replace(b"/", b"\0")


def plain_path(key: bytes) -> bytes:
    """The absolute path of an index key."""
    return key.replace(b"\0", b"/")


def shown(path: bytes) -> str:
    """A path for people: one line, nothing lost that matters to the eye."""
    text = path.decode("utf-8", "backslashreplace")
    return (
        text
        if text.isprintable()
        else "".join(
            character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
        )
    )


def _named(name: str, value: bytes) -> dict[str, str]:
    try:
        return {name: value.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(value).decode("ascii")}


def _unnamed(document: dict[str, Any], name: str) -> bytes | None:
    if name in document:
        return str(document[name]).encode("utf-8")
    if f"{name}_base64" in document:
        return base64.b64decode(document[f"{name}_base64"], validate=True)
    return None


def entry_document(entry: Entry, rules: tuple[Rule, ...]) -> dict[str, Any]:
    """The entry as the JSON object of its line; docs/archive-format.md describes every field."""
    kind = Kind(entry.kind)
    document: dict[str, Any] = _named("path", plain_path(entry.path))
    document["type"] = kind.name.lower()
    document["tier"] = TIERS[entry.tier]
    document["state"] = STATE_NAMES[State(entry.state)]
    if 0 <= entry.rule < len(rules):
        document["rule"] = rules[entry.rule].match
        if rules[entry.rule].reason:
            document["reason"] = rules[entry.rule].reason
    document["mode"] = f"{entry.mode:04o}"
    document["mtime_ns"] = entry.mtime_ns
    document["uid"], document["gid"] = entry.uid, entry.gid
    if kind is Kind.FILE:
        document["size"] = entry.size
    if entry.link is not None:
        document.update(_named("link", entry.link))
    if entry.hardlink is not None:
        document.update(_named("hardlink_to", plain_path(entry.hardlink)))
    if entry.sparse:
        document["sparse"] = True
    if entry.xattrs:
        document["xattrs"] = json.loads(entry.xattrs)
    if entry.sha256 is not None:
        document["sha256"] = entry.sha256.hex()
    if entry.object is not None:
        document["object"] = entry.object
        if entry.offset is not None:
            document["offset"] = entry.offset
        if entry.stored_size != entry.size:
            document["stored_size"] = entry.stored_size
    if entry.check_id not in (None, "whole"):
        document["check_id"] = entry.check_id
    if entry.checks:
        document["checks"] = json.loads(entry.checks)
    document["identity"] = {"dev": entry.dev, "ino": entry.ino, "nlink": entry.nlink, "ctime_ns": entry.ctime_ns}
    return document


def entry_line(entry: Entry, rules: tuple[Rule, ...]) -> bytes:
    """The entry's line of entries.jsonl, with its line end."""
    return line_encoder(rules)(entry)


def line_encoder(rules: tuple[Rule, ...]) -> Callable[[Entry], bytes]:
    """Returns a function from an entry to its line of entries.jsonl, with its line end."""
    about_rules = [
        "".join(
            f',"{name}":{_encode(value)}' for name, value in (("rule", rule.match), ("reason", rule.reason)) if value
        )
        for rule in rules
    ]
    about_rules.append("")  # for an entry that no rule names: its number is -1
    starts: dict[tuple[int, int], str] = {(tier, state): f',"type":"file","tier":"{TIERS[tier]}","state":"{name}"'
              for tier in range(len(TIERS)) for state, name in STATE_NAMES.items()}  # fmt: skip

    def encode(entry: Entry) -> bytes:
        try:
            if (
                entry.kind == 0
                and entry.sha256 is not None
                and entry.object is not None
                and entry.offset is not None
                and entry.stored_size == entry.size
                and entry.rule < len(rules)
                and not (entry.sparse or entry.xattrs or entry.checks or entry.hardlink is not None)
                and entry.check_id in (None, "whole")
            ):
                # A file in a pack, with nothing unusual: of a million of these, each microsecond is a second.
                return (
                    f'{{"path":{_encode_text(plain_path(entry.path).decode())}{starts[entry.tier, entry.state]}'
                    f'{about_rules[entry.rule]},"mode":"{entry.mode:04o}","mtime_ns":{entry.mtime_ns},'
                    f'"uid":{entry.uid},"gid":{entry.gid},"size":{entry.size},"sha256":"{entry.sha256.hex()}",'
                    f'"object":{_encode_text(entry.object)},"offset":{entry.offset},"identity":{{"dev":{entry.dev},'
                    f'"ino":{entry.ino},"nlink":{entry.nlink},"ctime_ns":{entry.ctime_ns}}}}}\n'
                ).encode()
        except UnicodeError:
            pass  # a path or a pattern that is no text
        document = entry_document(entry, rules)
        try:
            return _encode(document).encode() + b"\n"
        except UnicodeEncodeError:  # a rule's pattern can hold bytes that are no text
            return json.dumps(document, separators=(",", ":")).encode() + b"\n"

    return encode


def parse_entry(line: bytes, rule_numbers: dict[str, int]) -> Entry:
    """The entry that a line describes.

    Raises:
        ValueError: the line is not what entry_line writes.
    """
    try:
        document = json.loads(line)
        path = _unnamed(document, "path")
        kind = Kind[str(document["type"]).upper()]
        if path is None or not path.startswith(b"/") or b"\0" in path or b".." in path.split(b"/"):
            raise ValueError(f"path {path!r} is no absolute path")
        hardlink = _unnamed(document, "hardlink_to")
        is_checked = kind is Kind.FILE and document["tier"] != GARBAGE
        identity = document["identity"]
        size = int(document.get("size", 0))
        target = document.get("object")
        sha256 = bytes.fromhex(document["sha256"]) if "sha256" in document else None
        if sha256 is not None and len(sha256) != 32:
            raise ValueError("sha256 has not 64 digits")
        return Entry(
            path=sort_key(path),
            kind=kind,
            tier=TIERS.index(document["tier"]),
            rule=rule_numbers.get(document.get("rule", ""), -1),
            size=size,
            mode=int(document["mode"], 8),
            mtime_ns=int(document["mtime_ns"]),
            ctime_ns=int(identity["ctime_ns"]),
            ino=int(identity["ino"]),
            dev=int(identity["dev"]),
            nlink=int(identity["nlink"]),
            uid=int(document["uid"]),
            gid=int(document["gid"]),
            link=_unnamed(document, "link"),
            xattrs=json.dumps(document["xattrs"]) if "xattrs" in document else None,
            sparse=int(bool(document.get("sparse"))),
            state=_STATES[document["state"]],
            sha256=sha256,
            object=target,
            offset=int(document["offset"]) if "offset" in document else None,
            stored_size=int(document.get("stored_size", size)) if target is not None else None,
            hardlink=sort_key(hardlink) if hardlink is not None else None,
            checks=encode_checks(document["checks"]) if "checks" in document else None,
            check_id=document.get("check_id", "whole" if is_checked else None),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__} {error}") from error
