"""What other processes do to a workspace while it is copied: every way of changing a file that a copy can miss."""

from __future__ import annotations

import contextlib
import mmap
import os
import random
import stat
from collections.abc import Callable
from typing import BinaryIO


def _entries(root: bytes) -> tuple[list[bytes], list[bytes]]:
    """Regular files and directories below a root, in one order."""
    files, directories = [], [root]
    for place, names, others in os.walk(root):
        directories += [os.path.join(place, name) for name in names if not os.path.islink(os.path.join(place, name))]
        files += [os.path.join(place, name) for name in others]
    return sorted(path for path in files if stat.S_ISREG(os.lstat(path).st_mode)), sorted(directories)


class Writer:
    """Changes entries of a workspace, chosen by a random source; `changes` tells what was done."""

    def __init__(self, rng: random.Random, roots: list[bytes]) -> None:
        self.rng = rng
        self.roots = roots
        self.changes: list[str] = []
        self._open: list[BinaryIO] = []
        self._maps: list[mmap.mmap] = []

    def change(self, kind: str = "") -> None:
        """One change, of a random kind unless one is named; nothing when the workspace has nothing for it."""
        root = self.rng.choice(self.roots)
        if not os.path.isdir(root):
            return
        files, directories = _entries(root)
        chosen = kind or self.rng.choice(sorted(CHANGES))
        path = self.rng.choice(files) if files else b""
        if not path and chosen in NEED_FILE:
            chosen = "appear"
        with contextlib.suppress(OSError):
            CHANGES[chosen](self, path, self.rng.choice(directories))
            self.changes.append(f"{chosen} {path!r}")

    def hold(self) -> bytes:
        """Opens a file for writing and keeps it open until `release`; returns its path, empty without files."""
        files, _ = _entries(self.rng.choice(self.roots))
        if not files:
            return b""
        path = self.rng.choice(files)
        self._open.append(open(path, "r+b"))  # noqa: SIM115 - held on purpose
        self.changes.append(f"hold {path!r}")
        return path

    def release(self) -> None:
        """Closes whatever is held open or mapped."""
        for mapping in self._maps:
            mapping.close()
        for file in self._open:
            file.close()
        self._open, self._maps = [], []

    # --- changes ---
    def flip(self, path: bytes, _: bytes) -> None:
        """Other content of the same size."""
        with open(path, "r+b") as file:
            body = file.read()
            file.seek(len(body) // 2)
            file.write(bytes(255 - byte for byte in body[len(body) // 2 : len(body) // 2 + 9]))

    def flip_unseen(self, path: bytes, directory: bytes) -> None:
        """Other content of the same size under the old mtime."""
        stamp = os.stat(path).st_mtime_ns
        self.flip(path, directory)
        os.utime(path, ns=(stamp, stamp))

    def flip_older(self, path: bytes, directory: bytes) -> None:
        """Other content of the same size under an older mtime."""
        stamp = os.stat(path).st_mtime_ns - 3_600_000_000_000
        self.flip(path, directory)
        os.utime(path, ns=(stamp, stamp))

    def flip_mapped(self, path: bytes, directory: bytes) -> None:
        """Other content through a shared mapping whose descriptor is closed; the mapping stays until release."""
        size = os.stat(path).st_size
        if not size:
            return self.append(path, directory)
        with open(path, "r+b") as file:
            mapping = mmap.mmap(file.fileno(), size)
        mapping[size // 2] = 255 - mapping[size // 2]
        self._maps.append(mapping)
        return None

    def flip_again(self, _: bytes, __: bytes) -> None:
        """Other content through the mappings there are: a page that is dirty already changes without a new time."""
        for mapping in self._maps:
            mapping[len(mapping) // 2] = 255 - mapping[len(mapping) // 2]

    def append(self, path: bytes, _: bytes) -> None:
        with open(path, "ab") as file:
            file.write(self.rng.randbytes(self.rng.choice([1, 100, 70_000])))

    def truncate(self, path: bytes, _: bytes) -> None:
        os.truncate(path, os.stat(path).st_size // 2)

    def replace(self, path: bytes, _: bytes) -> None:
        """Another file of the same size, mode and mtime takes the name."""
        found = os.stat(path)
        fresh = os.path.join(os.path.dirname(path), b".fresh")
        with open(fresh, "wb") as file:
            file.write(self.rng.randbytes(found.st_size))
        os.chmod(fresh, stat.S_IMODE(found.st_mode))
        os.utime(fresh, ns=(found.st_atime_ns, found.st_mtime_ns))
        os.rename(fresh, path)

    def link_instead(self, path: bytes, _: bytes) -> None:
        """A symlink to another file takes the name."""
        os.unlink(path)
        os.symlink(b"/etc/hostname", path)

    def vanish(self, path: bytes, _: bytes) -> None:
        os.unlink(path)

    def move(self, path: bytes, directory: bytes) -> None:
        os.rename(path, os.path.join(directory, b"moved-%d" % self.rng.randint(0, 99)))

    def appear(self, _: bytes, directory: bytes) -> None:
        path = os.path.join(directory, b"appeared-%d" % self.rng.randint(0, 999))
        with open(path, "wb") as file:
            file.write(self.rng.randbytes(self.rng.choice([0, 10, 5000])))

    def appear_deep(self, _: bytes, directory: bytes) -> None:
        path = os.path.join(directory, b"new-%d" % self.rng.randint(0, 99), b"below")
        os.makedirs(path)
        with open(os.path.join(path, b"file"), "wb") as file:
            file.write(b"found me")

    def remode(self, path: bytes, _: bytes) -> None:
        os.chmod(path, stat.S_IMODE(os.stat(path).st_mode) ^ 0o011)

    def restamp(self, path: bytes, _: bytes) -> None:
        os.utime(path, ns=(1, self.rng.randint(0, 10**18)))

    def relink(self, path: bytes, directory: bytes) -> None:
        os.link(path, os.path.join(directory, b"linked-%d" % self.rng.randint(0, 999)))


CHANGES: dict[str, Callable[[Writer, bytes, bytes], None]] = {
    name: getattr(Writer, name)
    for name in (
        "flip", "flip_unseen", "flip_older", "flip_mapped", "flip_again", "append", "truncate", "replace",
        "link_instead", "vanish", "move", "appear", "appear_deep", "remode", "restamp", "relink",
    )
}  # fmt: skip
NEED_FILE = frozenset(CHANGES) - {"appear", "appear_deep"}
