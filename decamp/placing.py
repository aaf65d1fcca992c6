"""Puts entries on a disk: content first under a passing name, then owner, attributes, mode and times, then its name."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import stat
import threading
from collections.abc import Callable, Iterator

from decamp.entries import Entry, plain_path, shown, sort_key
from decamp.findings import Finding

_BLOCK_BYTES = 4096
_ZEROS = bytes(_BLOCK_BYTES)
_WARNINGS_LIMIT = 100


class Placer:
    """Writes below one directory; safe to use from many threads for files of different names.

    Args:
        root: the destination without a slash at its end, empty for `/`.
        warnings: gets what this user or filesystem cannot do: owners, attributes.
        directory_row: gives the entry of a directory that is needed although it is not restored itself.
    """

    def __init__(self, root: bytes, warnings: list[Finding], directory_row: Callable[[bytes], Entry | None]) -> None:
        self._root = root
        self._warnings = warnings
        self._directory_row = directory_row
        self._is_root = os.geteuid() == 0
        self._made: set[bytes] = set()
        self._entries: dict[bytes, Entry] = {}
        self._lock = threading.RLock()

    def make_directory(self, entry: Entry) -> None:
        """Makes a directory, writable for now; finish_directories gives it what is its own."""
        path = plain_path(entry.path)
        self._ensure(path)
        self._entries[path] = entry

    def _ensure(self, path: bytes) -> None:
        """Makes a directory and those above it.

        Raises:
            OSError: something else, a symbolic link say, is in its place: nothing is ever written through a link.
        """
        path = path.rstrip(b"/")
        if not path or path in self._made:
            return
        with self._lock:
            self._ensure(os.path.dirname(path))
            real = self._root + path
            try:
                os.mkdir(real, 0o700 if path in self._entries else 0o755)
                is_new = True
            except FileExistsError:
                is_new = False
            if not is_new and not stat.S_ISDIR(os.lstat(real).st_mode):
                raise NotADirectoryError(20, "a link or file is where a directory has to be", os.fsdecode(real))
            if is_new and path not in self._entries:
                row = self._directory_row(sort_key(path))
                if row is not None:
                    self._entries[path] = row
            self._made.add(path)

    def finish_directories(self) -> None:
        """Gives directories owner, attributes, mode and times: the deepest first, as each change touches its parent."""
        for path in sorted(self._entries, key=lambda item: item.count(b"/"), reverse=True):
            entry = self._entries[path]
            real = (self._root + path) or b"/"
            try:
                self._own(real, entry)
                self._set_xattrs(real, entry)
                os.chmod(real, entry.mode)
                os.utime(real, ns=(entry.mtime_ns, entry.mtime_ns))
            except OSError as error:
                self._warn(path, "the directory's mode or times cannot be set", error)

    def place_file(
        self, entry: Entry, pieces: Iterator[bytes | bytearray | memoryview], on_bytes: Callable[[int], None]
    ) -> str | None:
        """Writes a file and gives it its name when its digest is right; returns what was found instead, or None."""
        path = plain_path(entry.path)
        directory = os.path.dirname(path)
        self._ensure(directory)
        partial = self._root + directory.rstrip(b"/") + b"/.decamp-" + hashlib.sha256(path).hexdigest()[:16].encode()
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        placed = False
        try:
            digest = hashlib.sha256()
            size = 0
            for piece in pieces:
                digest.update(piece)
                size += len(piece)
                _write_sparse(descriptor, piece) if entry.sparse else _write(descriptor, piece)
                on_bytes(len(piece))
            if (size, digest.digest()) != (entry.size, entry.sha256):
                return f"{size} bytes, sha256 {digest.hexdigest()}"
            if entry.sparse:
                os.ftruncate(descriptor, size)
            self._finish(descriptor, entry)
            os.rename(partial, self._root + path)
            placed = True
            return None
        finally:
            os.close(descriptor)
            if not placed:
                os.unlink(partial)

    def finish_file(self, entry: Entry) -> None:
        """Gives a file whose content is there already its owner, attributes, mode and times."""
        descriptor = os.open(self._root + plain_path(entry.path), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            self._finish(descriptor, entry)
        finally:
            os.close(descriptor)

    def _finish(self, descriptor: int, entry: Entry) -> None:
        # In this order: a change of owner clears set-user-ID bits and capabilities, a mode can forbid what follows.
        self._own(descriptor, entry)
        self._set_xattrs(descriptor, entry)
        os.fchmod(descriptor, entry.mode)
        os.utime(descriptor, ns=(entry.mtime_ns, entry.mtime_ns))

    def make_link(self, entry: Entry, overwrite: bool) -> None:
        """Makes a symbolic link, whose target is kept as it is and never followed."""
        path = plain_path(entry.path)
        self._ensure(os.path.dirname(path))
        real = self._root + path
        assert entry.link is not None
        if not (os.path.islink(real) and os.readlink(real) == entry.link):
            if overwrite and os.path.lexists(real):
                os.unlink(real)
            os.symlink(entry.link, real)
        self._own(real, entry)
        self._set_xattrs(real, entry)
        os.utime(real, ns=(entry.mtime_ns, entry.mtime_ns), follow_symlinks=False)

    def make_hard_link(self, entry: Entry, first: bytes) -> None:
        """Gives a file that is there already a further name."""
        path = plain_path(entry.path)
        self._ensure(os.path.dirname(path))
        real = self._root + path
        if os.path.lexists(real):
            if os.path.samestat(os.lstat(real), os.lstat(first)):
                return
            os.unlink(real)
        os.link(first, real, follow_symlinks=False)

    def _own(self, target: int | bytes, entry: Entry) -> None:
        is_open = isinstance(target, int)
        status = os.stat(target, follow_symlinks=is_open)
        if (status.st_uid, status.st_gid) == (entry.uid, entry.gid):
            return
        if self._is_root:
            os.chown(target, entry.uid, entry.gid, follow_symlinks=is_open)
        else:
            self._warn(
                plain_path(entry.path),
                "the owner cannot be set",
                PermissionError(1, f"not root: owner {entry.uid}:{entry.gid}"),
            )

    def _set_xattrs(self, target: int | bytes, entry: Entry) -> None:
        if not entry.xattrs:
            return
        for name, value in json.loads(entry.xattrs).items():
            try:
                os.setxattr(target, name, base64.b64decode(value), follow_symlinks=isinstance(target, int))
            except OSError as error:
                self._warn(plain_path(entry.path), f"the attribute {name} cannot be set", error)

    def _warn(self, path: bytes, what: str, error: OSError) -> None:
        with self._lock:
            if len(self._warnings) < _WARNINGS_LIMIT:
                self._warnings.append(Finding(shown(path), what, found=error.strerror or str(error), run="run as root"))


def _write(descriptor: int, piece: bytes | bytearray | memoryview) -> None:
    view = memoryview(piece)
    while view:
        view = view[os.write(descriptor, view) :]


def _write_sparse(descriptor: int, piece: bytes | bytearray | memoryview) -> None:
    """Writes a piece and leaves a hole for each block of zeros. Pieces start at multiples of the block's size."""
    view = memoryview(piece)
    for start in range(0, len(view), _BLOCK_BYTES):
        block = view[start : start + _BLOCK_BYTES]
        if block == _ZEROS[: len(block)]:
            os.lseek(descriptor, len(block), os.SEEK_CUR)
        else:
            _write(descriptor, block)
