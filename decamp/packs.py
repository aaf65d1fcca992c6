"""Packs: plain tar archives in which small files, and names that no S3 key can hold, travel.

Members are in GNU format, the one whose header holds any name as bytes: `tar xf` of any make reads it. The
nanoseconds of times, xattrs and links are in entries.jsonl.
"""

from __future__ import annotations

import secrets
import tarfile
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from decamp.entries import Entry, plain_path

PACK_PREFIX = "data/.packs/"
PACK_TARGET_BYTES = 8 << 20  # enough for few requests, and little to wait for when the last one is sent
PACKED_FILE_LIMIT_BYTES = 1 << 20  # files up to this size travel in packs, where there are many of them
_BLOCK = tarfile.BLOCKSIZE
END_OF_ARCHIVE = bytes(2 * _BLOCK)
_MTIME_LIMIT_S = 8**11 - 1  # what eleven octal digits of a tar header hold

_HEADER_REST = b"0".ljust(101, b"\0") + tarfile.GNU_MAGIC.ljust(356 - 101, b"\0")
_HEADER_REST_SUM = sum(_HEADER_REST)


def new_pack_key() -> str:
    """A key for a pack that no earlier or concurrent run has used."""
    return f"{PACK_PREFIX}{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}-{secrets.token_hex(4)}.tar"


def member_header(entry: Entry) -> bytes:
    """The tar header of an entry's file, one or more blocks of 512 bytes."""
    name = plain_path(entry.path).lstrip(b"/")
    mtime_s = min(max(entry.mtime_ns // 1_000_000_000, 0), _MTIME_LIMIT_S)
    if len(name) <= tarfile.LENGTH_NAME and entry.size < 8**11 and max(entry.uid, entry.gid) < 8**7:
        # The common case, as tarfile writes it but twenty times faster: with many small files it decides the pace.
        start = b"%b%07o\0%07o\0%07o\0%011o\0%011o\0" % (
            name.ljust(tarfile.LENGTH_NAME, b"\0"),
            entry.mode,
            entry.uid,
            entry.gid,
            entry.size,
            mtime_s,
        )
        checksum = 256 + sum(start) + _HEADER_REST_SUM
        return b"%b%06o\0 %b" % (start, checksum, _HEADER_REST)
    member = tarfile.TarInfo(name.decode("utf-8", "surrogateescape"))
    member.size = entry.size
    member.mode = entry.mode
    member.mtime = mtime_s
    member.uid, member.gid = entry.uid, entry.gid
    return member.tobuf(tarfile.GNU_FORMAT, "utf-8", "surrogateescape")


def padding(size_bytes: int) -> bytes:
    """The zeros that fill a member's last block."""
    return bytes(-size_bytes % _BLOCK)


class Member(NamedTuple):
    """A file inside a pack: whose, where its first byte is, and its SHA-256."""

    entry: Entry
    offset: int
    sha256: bytes
    checks: str | None


@dataclass
class Pack:
    """A pack that is being filled."""

    body: bytearray = field(default_factory=bytearray)
    members: list[Member] = field(default_factory=list)

    def add(self, pieces: bytes | bytearray | memoryview, members: Iterable[Member]) -> None:
        """Adds members, header and content and padding of each; their offsets are from the start of `pieces`."""
        start = len(self.body)
        self.members.extend(
            Member(member.entry, start + member.offset, member.sha256, member.checks) for member in members
        )
        self.body += pieces

    @property
    def is_full(self) -> bool:
        return len(self.body) >= PACK_TARGET_BYTES

    def close(self) -> bytearray:
        """Ends the archive and returns its bytes."""
        self.body += END_OF_ARCHIVE
        return self.body
