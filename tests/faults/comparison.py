"""Pictures of a tree, and every difference between the picture of a source and the picture of what was restored."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass

KINDS = {
    stat.S_IFREG: "file",
    stat.S_IFDIR: "directory",
    stat.S_IFLNK: "symlink",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
    stat.S_IFCHR: "character device",
    stat.S_IFBLK: "block device",
}
# Holes smaller than this are the file system's own business.
LEAST_HOLE_BYTES = 65536
COPIED_KINDS = frozenset({"file", "directory", "symlink"})


@dataclass(frozen=True)
class Node:
    """One entry as it was found, named by its path below the root (empty for the root itself)."""

    path: bytes
    kind: str
    mode: int
    mtime_ns: int
    uid: int
    gid: int
    identity: tuple[int, int]
    size: int = 0
    sha256: str = ""
    target: bytes = b""
    xattrs: tuple[tuple[str, bytes], ...] = ()
    hole_bytes: int = 0


Picture = dict[bytes, Node]


@dataclass(frozen=True)
class Difference:
    """One thing that a restore did not bring back as it was."""

    path: bytes
    what: str
    expected: str
    found: str

    def __str__(self) -> str:
        return f"{self.path!r}: {self.what}: expected {self.expected}, found {self.found}"


def _holes(descriptor: int, size: int) -> int:
    """Bytes in holes of at least LEAST_HOLE_BYTES."""
    total, position = 0, 0
    while position < size:
        try:
            data = os.lseek(descriptor, position, os.SEEK_DATA)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            data = size
        if data - position >= LEAST_HOLE_BYTES:
            total += data - position
        if data >= size:
            break
        position = os.lseek(descriptor, data, os.SEEK_HOLE)
    return total


def _xattrs(place: int | str) -> tuple[tuple[str, bytes], ...]:
    try:
        names = os.listxattr(place)
        return tuple(sorted((name, os.getxattr(place, name)) for name in names))
    except OSError as error:
        if error.errno in (errno.ENOTSUP, errno.EPERM):
            return ()
        raise


def _read(path: bytes, kind: str, parent: int, name: bytes, found: os.stat_result) -> Node:
    """The node of a file that is open at `parent`/`name`; the content through the descriptor, never the path."""
    basis = {
        "path": path,
        "kind": kind,
        "mode": stat.S_IMODE(found.st_mode),
        "mtime_ns": found.st_mtime_ns,
        "uid": found.st_uid,
        "gid": found.st_gid,
        "identity": (found.st_dev, found.st_ino),
    }
    if kind == "symlink":
        return Node(**basis, target=os.readlink(name, dir_fd=parent))  # type: ignore[arg-type]
    if kind not in ("file", "directory"):
        return Node(**basis)  # type: ignore[arg-type]
    flags = os.O_RDONLY | os.O_NOFOLLOW | (os.O_DIRECTORY if kind == "directory" else 0)
    try:
        descriptor = os.open(name, flags, dir_fd=parent)
    except PermissionError:
        return Node(**basis, size=found.st_size, sha256="cannot be read")  # type: ignore[arg-type]
    try:
        xattrs = _xattrs(descriptor)
        if kind == "directory":
            return Node(**basis, xattrs=xattrs)  # type: ignore[arg-type]
        digest = hashlib.sha256()
        while block := os.read(descriptor, 1 << 20):
            digest.update(block)
        holes = _holes(descriptor, found.st_size)
        content = {"size": found.st_size, "sha256": digest.hexdigest(), "hole_bytes": holes}
        return Node(**basis, xattrs=xattrs, **content)  # type: ignore[arg-type]
    finally:
        os.close(descriptor)


def take_picture(root: bytes) -> Picture:
    """Every entry below `root` and `root` itself, however deep and however named; empty when there is no root."""
    picture: Picture = {}
    try:
        top = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    except FileNotFoundError:
        return picture
    # Descriptors, not paths: a path may be longer than the 4,096 bytes the kernel takes at once.
    waiting: list[tuple[bytes, int]] = [(b"", top)]
    picture[b""] = _read(b"", "directory", top, b".", os.fstat(top))
    while waiting:
        path, descriptor = waiting.pop()
        try:
            for name in sorted(os.fsencode(text) for text in os.listdir(descriptor)):
                below = path + b"/" + name if path else name
                found = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
                kind = KINDS[stat.S_IFMT(found.st_mode)]
                picture[below] = _read(below, kind, descriptor, name, found)
                if kind == "directory":
                    waiting.append((below, os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=descriptor)))
        finally:
            os.close(descriptor)
    return picture


def _compare_node(source: Node, restored: Node, owners: bool) -> list[Difference]:
    if source.kind != restored.kind:
        return [Difference(source.path, "type", source.kind, restored.kind)]
    pairs: list[tuple[str, object, object]] = [
        ("mtime_ns", source.mtime_ns, restored.mtime_ns),
        ("size", source.size, restored.size),
        ("sha256", source.sha256, restored.sha256),
        ("target", source.target, restored.target),
        ("xattrs", source.xattrs, restored.xattrs),
    ]
    if source.kind != "symlink":
        pairs.append(("mode", oct(source.mode), oct(restored.mode)))
    if owners:
        pairs.append(("owner", (source.uid, source.gid), (restored.uid, restored.gid)))
    found = [
        Difference(source.path, what, str(expected), str(actual))
        for what, expected, actual in pairs
        if expected != actual
    ]
    if restored.hole_bytes < source.hole_bytes:
        found.append(Difference(source.path, "bytes in holes", str(source.hole_bytes), str(restored.hole_bytes)))
    return found


def _compare_links(source: Picture, restored: Picture, kept: set[bytes]) -> list[Difference]:
    """Names that shared a file share one again, and names that did not do not."""
    found: list[Difference] = []
    there: dict[tuple[int, int], bytes] = {}
    back: dict[tuple[int, int], bytes] = {}
    for path in sorted(kept):
        if path not in restored or source[path].kind != "file" or restored[path].kind != "file":
            continue
        first = there.setdefault(source[path].identity, path)
        if restored[path].identity != restored[first].identity:
            found.append(Difference(path, "hard link", f"the same file as {first!r}", "a file of its own"))
        elif back.setdefault(restored[path].identity, first) != first:
            found.append(
                Difference(path, "hard link", "a file of its own", f"the same as {back[restored[path].identity]!r}")
            )
    return found


def compare(
    source: Picture, restored: Picture, keeps: Callable[[Node], bool] | None = None, owners: bool = True
) -> list[Difference]:
    """Every way in which `restored` fails to be `source`, for the entries that `keeps` says were to be kept.

    Entries not kept may be absent or present (a directory that holds a kept entry has to be there, as a directory);
    an entry that the source never had is a difference. Pass owners=False when the restore did not run as root.
    """
    found: list[Difference] = []
    kept = {path for path, node in source.items() if keeps is None or keeps(node)}
    for path in sorted(kept):
        node = source[path]
        if node.kind not in COPIED_KINDS:
            found.append(Difference(path, "cannot be kept", "no such entry in a kept tier", node.kind))
        elif path not in restored:
            found.append(Difference(path, "missing", node.kind, "nothing"))
        else:
            found += _compare_node(node, restored[path], owners)
    found += [
        Difference(path, "not in the source", "nothing", node.kind)
        for path, node in sorted(restored.items())
        if path not in source
    ]
    return found + _compare_links(source, restored, kept)
