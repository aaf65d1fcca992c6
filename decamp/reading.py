"""Reads files so that what was read is what the census saw, or says that it was not."""

from __future__ import annotations

import hashlib
import os

from decamp.entries import Entry, plain_path
from decamp.index_rows import signed

TICK_S = 0.025  # longer than the tick that kernels stamp files with (10 ms at 100 Hz)
COARSE_TICK_S = 2.1  # filesystems that keep whole seconds
_CHANGED_ERRNOS = frozenset((2, 20, 40))  # ENOENT, ENOTDIR, ELOOP: another entry has taken the name


class EntryChanged(Exception):
    """The file is not, or not any more, the one that the census saw."""


class OpenedFile:
    """A regular file held open whose identity is checked before and after it is read.

    It is opened without following a link and without waiting for the other end of a FIFO that took its name.

    Raises:
        EntryChanged: identity, size or times differ from the entry's.
        OSError: the file cannot be read.
    """

    def __init__(self, entry: Entry) -> None:
        self._entry = entry
        self.path = plain_path(entry.path)
        try:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in _CHANGED_ERRNOS:
                raise EntryChanged from error
            raise
        try:
            self.confirm()
        except BaseException:
            os.close(self._descriptor)
            raise

    def __enter__(self) -> OpenedFile:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self._descriptor)

    def confirm(self) -> None:
        """Raises EntryChanged unless the file is still as the census saw it."""
        status, entry = os.fstat(self._descriptor), self._entry
        if (
            status.st_ctime_ns != entry.ctime_ns
            or status.st_mtime_ns != entry.mtime_ns
            or status.st_size != entry.size
            or signed(status.st_ino) != entry.ino
        ):
            raise EntryChanged

    def read_all(self) -> bytes:
        """Returns the whole content, confirmed; for small files."""
        size = self._entry.size
        content = os.read(self._descriptor, size + 1) if size else b""
        while len(content) < size:
            piece = os.read(self._descriptor, size + 1 - len(content))
            if not piece:
                break
            content += piece
        if len(content) != size:
            raise EntryChanged
        self.confirm()
        return content

    def read_into(self, view: memoryview) -> None:
        """Fills the view with the next bytes; raises EntryChanged when the file ends before."""
        filled = 0
        while filled < len(view):
            count = os.readv(self._descriptor, [view[filled:]])
            if not count:
                raise EntryChanged
            filled += count

    def digest(self, buffer_bytes: int = 4 << 20) -> bytes:
        """Returns the SHA-256 of the whole content, confirmed, and goes back to its start."""
        digest = hashlib.sha256()
        view = memoryview(bytearray(min(buffer_bytes, max(self._entry.size, 1))))
        left = self._entry.size
        while left:
            piece = view[: min(left, len(view))]
            self.read_into(piece)
            digest.update(piece)
            left -= len(piece)
        self.confirm()
        os.lseek(self._descriptor, 0, os.SEEK_SET)
        return digest.digest()
