"""The census: every entry of the workspace, in one order, without following a link or opening a file."""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from decamp.entries import Entry, Kind, shown, sort_key
from decamp.findings import Finding
from decamp.host import Mount, kernel_mount_points, mount_of
from decamp.rules import GARBAGE, TIERS, RuleBook
from decamp.spec import Spec

_GARBAGE = TIERS.index(GARBAGE)
_KINDS = {
    stat.S_IFREG: Kind.FILE,
    stat.S_IFDIR: Kind.DIRECTORY,
    stat.S_IFLNK: Kind.SYMLINK,
    stat.S_IFSOCK: Kind.SOCKET,
    stat.S_IFIFO: Kind.FIFO,
    stat.S_IFBLK: Kind.BLOCK_DEVICE,
    stat.S_IFCHR: Kind.CHARACTER_DEVICE,
}
_FORMATS = {kind: number for number, kind in _KINDS.items()}
_INODES = (1 << 64) - 1
# What the digest is over: path, kind, size, mode, owner, group, mtime, ctime, inode of each entry worth keeping.
_LINE = b"%b\0%d %d %d %d %d %d %d %d\n"


def census_line(entry: Entry) -> bytes:
    """What an entry of the index adds to the digest of the walk that met it."""
    mode = _FORMATS[Kind(entry.kind)] | entry.mode
    return _LINE % (
        *(entry.path, entry.kind, entry.size, mode, entry.uid, entry.gid),
        *(entry.mtime_ns, entry.ctime_ns, entry.ino & _INODES),
    )


@dataclass(slots=True)
class Seen:
    """One entry as the walk met it. `key` is its path in the index's form; `decamp.entries.sort_key`."""

    key: bytes
    path: bytes
    kind: Kind
    tier: int
    rule: int
    status: os.stat_result


class Census:
    """Walks a spec's roots and gathers what stands in the way of an answer.

    Attributes:
        findings: reasons why the count is not complete; empty means that every entry was seen.
        entries: number of entries that were seen and are worth keeping.
    """

    def __init__(self, spec: Spec, mounts: list[Mount]) -> None:
        self._spec = spec
        self._mounts = mounts
        self._kernel_points = kernel_mount_points(mounts)
        self._books = [RuleBook(spec.rules, spec.default_tier) for _ in spec.roots]
        self._digest = hashlib.sha256()
        self.findings: list[Finding] = []
        self.entries = 0

    @property
    def sha256(self) -> str:
        """A digest over name, type, size, mode, owner, times and inode of every entry worth keeping so far."""
        return self._digest.hexdigest()

    def matched_rules(self) -> set[int]:
        """Numbers of the rules that named at least one entry."""
        return set().union(*(book.matched for book in self._books))

    def check_roots(self) -> list[Finding]:
        """Returns why a root cannot be what the spec means: missing, empty, no directory, not mounted."""
        findings = []
        spec = self._spec
        if spec.mount is not None and os.fsencode(spec.mount) not in {mount.point for mount in self._mounts}:
            findings.append(
                Finding(
                    spec.mount,
                    "nothing is mounted here",
                    "the filesystem that the spec names",
                    "a plain directory",
                    f"mount {spec.mount}",
                )
            )
        for root in spec.roots:
            name = shown(root)
            try:
                status = os.lstat(root)
                if stat.S_ISLNK(status.st_mode):
                    findings.append(
                        Finding(
                            name,
                            "the root is a symbolic link",
                            "a directory",
                            f"a link to {shown(os.readlink(root))}",
                            "name the directory as root",
                        )
                    )
                elif not stat.S_ISDIR(status.st_mode):
                    findings.append(Finding(name, "the root is no directory", "a directory", "another file"))
                elif os.path.realpath(root) != root:
                    findings.append(
                        Finding(
                            name,
                            "the root's path goes through a symbolic link",
                            "its real path",
                            shown(os.path.realpath(root)),
                            "name the real path as root",
                        )
                    )
                elif not os.listdir(root) and not spec.allow_empty:
                    findings.append(Finding(name, "the root is empty", "entries, or allow_empty: true", "none"))
            except FileNotFoundError:
                if not spec.allow_empty:
                    findings.append(
                        Finding(name, "the root is missing", "a directory, or allow_empty: true", "nothing")
                    )
            except OSError as error:
                findings.append(
                    Finding(name, "the root cannot be read", "a readable directory", error.strerror or str(error))
                )
        return findings

    def mounts_of_roots(self) -> dict[str, list[str]]:
        """Filesystem type and source below each root, so that a later run notices a mount that is gone."""
        told = {}
        for root in self._spec.roots:
            mount = mount_of(root, self._mounts)
            told[shown(root)] = [shown(mount.point), mount.filesystem, mount.source] if mount else []
        return told

    def mounts_below_roots(self) -> dict[bytes, str]:
        """Filesystem type of each mount point below a root, but for the kernel's own and what waits to be mounted."""
        roots = tuple(root.rstrip(b"/") + b"/" for root in self._spec.roots)
        return {
            mount.point: mount.filesystem
            for mount in self._mounts
            if mount.point.startswith(roots) and mount.point not in self._kernel_points and mount.filesystem != "autofs"
        }

    def mounts(self) -> dict[str, Any]:
        """What lies where, of the roots and below them, as a receipt says it."""
        below = {os.fsdecode(point): filesystem for point, filesystem in sorted(self.mounts_below_roots().items())}
        return {"mounts": self.mounts_of_roots(), "mounts_below": below}

    def walk(self) -> Iterator[Seen]:
        """Yields every entry of every root; each directory right before what it holds, names in byte order.

        A root that is not what the spec means is a finding of every walk: it can vanish between two of them.
        """
        self.findings.extend(self.check_roots())
        for number, root in enumerate(self._spec.roots):
            try:
                status = os.lstat(root)
            except FileNotFoundError:
                continue
            yield from self._walk_root(root, self._books[number], status)

    def _walk_root(self, root: bytes, book: RuleBook, root_status: os.stat_result) -> Iterator[Seen]:
        decide = book.decide
        cut = len(root.rstrip(b"/")) + 1
        lstat = os.lstat
        tier, rule = decide(b"", True)
        yield self._count(Seen(sort_key(root), root, Kind.DIRECTORY, tier, rule, root_status))
        stack = [(root.rstrip(b"/") + b"/", iter(self._names(root, False)))]
        while stack:
            directory, names = stack[-1]
            for name in names:
                path = directory + name
                try:
                    status = lstat(path)
                except FileNotFoundError:
                    continue  # it vanished since its directory was listed; the last walk of a run shows it so
                except OSError as error:
                    self.findings.append(
                        Finding(
                            shown(path),
                            "the entry cannot be examined",
                            "its type and size",
                            error.strerror or str(error),
                        )
                    )
                    continue
                kind = _KINDS[stat.S_IFMT(status.st_mode)]
                is_directory = kind is Kind.DIRECTORY
                tier, rule = decide(path[cut:], is_directory)
                yield self._count(Seen(sort_key(path), path, kind, tier, rule, status))
                if is_directory and path not in self._kernel_points:
                    stack.append((path + b"/", iter(self._names(path, book.is_garbage_throughout(tier, rule)))))
                    break
            else:
                stack.pop()

    def _names(self, directory: bytes, is_garbage: bool) -> list[bytes]:
        try:
            names = os.listdir(directory)
        except FileNotFoundError:
            return []
        except OSError as error:
            if not is_garbage:
                self.findings.append(
                    Finding(
                        shown(directory),
                        "the directory cannot be read",
                        "a listing",
                        error.strerror or str(error),
                        "run as root",
                    )
                )
            return []
        names.sort()
        return names

    def _count(self, seen: Seen) -> Seen:
        if seen.tier != _GARBAGE:
            status = seen.status
            self.entries += 1
            self._digest.update(
                _LINE
                % (
                    seen.key,
                    seen.kind,
                    status.st_size if seen.kind is Kind.FILE else 0,
                    status.st_mode,
                    status.st_uid,
                    status.st_gid,
                    status.st_mtime_ns,
                    status.st_ctime_ns,
                    status.st_ino,
                )
            )
        return seen
