"""Entries as the index has them, for tests that need one and do not care for the rest of it."""

from __future__ import annotations

import hashlib
from typing import Any

from decamp.entries import Entry, Kind, State, sort_key


def make_entry(path: bytes, content: bytes = b"", **changes: Any) -> Entry:
    """A proven file with the content, as a plain object; any field can be another."""
    entry = Entry(
        path=sort_key(path),
        kind=Kind.FILE,
        tier=0,
        rule=-1,
        size=len(content),
        mode=0o644,
        mtime_ns=1_700_000_000_123_456_789,
        ctime_ns=1_700_000_000_123_456_789,
        ino=7,
        dev=5,
        nlink=1,
        uid=0,
        gid=0,
        link=None,
        xattrs=None,
        sparse=0,
        state=State.PROVEN,
        sha256=hashlib.sha256(content).digest(),
        object="data/x",
        offset=None,
        stored_size=len(content),
        hardlink=None,
        checks=None,
        check_id="whole",
    )
    return entry._replace(**changes)
