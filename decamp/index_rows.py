"""The tables of an index, and an entry as a row of them."""

from __future__ import annotations

from typing import Any

from decamp.entries import Entry

SCHEMA_VERSION = 3
SCHEMA = """
CREATE TABLE meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entry (
    path BLOB PRIMARY KEY, kind INTEGER NOT NULL, tier INTEGER NOT NULL, rule INTEGER NOT NULL,
    size INTEGER NOT NULL, mode INTEGER NOT NULL, mtime_ns INTEGER NOT NULL, ctime_ns INTEGER NOT NULL,
    ino INTEGER NOT NULL, dev INTEGER NOT NULL, nlink INTEGER NOT NULL, uid INTEGER NOT NULL, gid INTEGER NOT NULL,
    link BLOB, xattrs TEXT, sparse INTEGER NOT NULL, state INTEGER NOT NULL, sha256 BLOB, object TEXT,
    offset INTEGER, stored_size INTEGER, hardlink BLOB, checks TEXT, check_id TEXT) WITHOUT ROWID;
CREATE INDEX entry_links ON entry (dev, ino) WHERE nlink > 1;
CREATE INDEX entry_hardlink ON entry (hardlink) WHERE hardlink IS NOT NULL;
CREATE TABLE object (
    key TEXT PRIMARY KEY, size INTEGER NOT NULL, sha256 BLOB NOT NULL, etag TEXT NOT NULL, checksum TEXT,
    url TEXT, evidence TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE upload (
    key TEXT PRIMARY KEY, upload_id TEXT NOT NULL, part_bytes INTEGER NOT NULL, identity TEXT NOT NULL)
    WITHOUT ROWID;
CREATE TABLE part (
    upload_id TEXT NOT NULL, number INTEGER NOT NULL, etag TEXT NOT NULL, checksum TEXT NOT NULL,
    PRIMARY KEY (upload_id, number)) WITHOUT ROWID;
CREATE TABLE held (path BLOB PRIMARY KEY) WITHOUT ROWID;
"""
ENTRY_COLUMNS = Entry._fields
INSERT_ENTRY = (
    f"INSERT OR REPLACE INTO entry ({', '.join(ENTRY_COLUMNS)}) VALUES ({', '.join('?' * len(ENTRY_COLUMNS))})"
)
_MTIME = ENTRY_COLUMNS.index("mtime_ns")
SELECT_ENTRY = f"SELECT {', '.join(ENTRY_COLUMNS)} FROM entry"
_SIGNED_LIMIT = 1 << 63


def signed(value: int) -> int:
    """SQLite's integers are signed; inode and device numbers may use all 64 bits."""
    return value - (1 << 64) if value >= _SIGNED_LIMIT else value


def stored_ns(value: int) -> int | bytes:
    """A time in nanoseconds as the index keeps it: some filesystems know times that 64 bits do not hold."""
    return value if -_SIGNED_LIMIT <= value < _SIGNED_LIMIT else b"%d" % value


def row_of(entry: Entry) -> tuple[object, ...]:
    """The values that INSERT_ENTRY takes."""
    if -_SIGNED_LIMIT <= entry.mtime_ns < _SIGNED_LIMIT:
        return entry
    return (*entry[:_MTIME], stored_ns(entry.mtime_ns), *entry[_MTIME + 1 :])


def entry_of(row: tuple[Any, ...]) -> Entry:
    """The entry of a row that SELECT_ENTRY gives."""
    entry = Entry._make(row)
    return entry if isinstance(entry.mtime_ns, int) else entry._replace(mtime_ns=int(entry.mtime_ns))
