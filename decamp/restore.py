"""Restores an archive into a directory: DEST/<absolute path>, every file verified before it gets its name.

Nothing is written before the records are verified against the receipt and every file that is in the way is known.
Files appear under their names only when whole, so a restore that was killed is continued by running it again.
"""

from __future__ import annotations

import collections
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial

from decamp.entries import Entry, Kind, State, plain_path, shown
from decamp.errors import BadInput
from decamp.fetching import ContentSource
from decamp.findings import Finding
from decamp.index import Index, ObjectRecord
from decamp.memory import load_bag
from decamp.placing import Placer
from decamp.progress import Progress
from decamp.receipt import Receipt, read_receipt
from decamp.rules import compile_pattern
from decamp.scratch import make_scratch
from decamp.store.client import Store
from decamp.transfer import PART_BYTES

_WORKERS = 4
_WHOLE_PACK_LIMIT_BYTES = 48 << 20
Matcher = Callable[[str], object]


@dataclass
class Restoration:
    """What a restore did.

    Attributes:
        findings: entries that could not be brought back as they were: damage in the archive.
        warnings: owners or attributes that this user or filesystem cannot have.
        files, size_bytes: files that are now there, and their size; `present` of them were there before.
    """

    receipt: Receipt | None
    findings: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    entries: int = 0
    files: int = 0
    present: int = 0
    size_bytes: int = 0


class ConflictingFiles(BadInput):
    """Files in the destination differ from the archive's; `findings` names each. Nothing was written."""

    def __init__(self, destination: str, findings: list[Finding]) -> None:
        self.findings = findings
        lines = "\n  ".join(str(finding) for finding in findings[:50])
        more = f"\n  and {len(findings) - 50} more" if len(findings) > 50 else ""
        what = f"{len(findings)} entries are in the way, and nothing was written"
        super().__init__(
            destination, f"{what}:\n  {lines}{more}", run="decamp restore with another DEST, or with --overwrite"
        )


def restore_bag(
    store: Store,
    destination: str,
    *,
    include: tuple[str, ...] = (),
    overwrite: bool = False,
    incomplete: bool = False,
    progress: Progress | None = None,
) -> Restoration:
    """Brings the archive's workspace back below a directory.

    Args:
        store: the bag.
        destination: a directory; made where it is missing. `/` puts everything back in its place.
        include: gitignore patterns against absolute paths without their first slash; empty for everything.
        overwrite: replace files that differ.
        incomplete: do without a receipt, and bring back what the last run's records name.

    Raises:
        MissingReceipt, DamagedReceipt, DamagedArchive: the records cannot be trusted; nothing was written.
        ConflictingFiles: something else is in the way; nothing was written.
    """
    progress = progress or Progress()
    try:
        patterns: list[Matcher] = [compile_pattern(text).match for text in include]
    except ValueError as error:
        raise BadInput("--include", f"the pattern {error}") from error
    receipt = None if incomplete else read_receipt(store)
    outcome = Restoration(receipt)
    root = os.fsencode(os.path.abspath(destination)).rstrip(b"/")
    with make_scratch("restore") as directory:
        index = Index(directory / "index.sqlite")
        try:
            load_bag(store, index, (), receipt)
            _Restorer(store, index, root, patterns, overwrite, outcome, progress).run()
        finally:
            index.close()
    progress.finish()
    return outcome


class _Restorer:
    def __init__(
        self,
        store: Store,
        index: Index,
        root: bytes,
        patterns: list[Matcher],
        overwrite: bool,
        outcome: Restoration,
        progress: Progress,
    ) -> None:
        self._store = store
        self._index = index
        self._root = root
        self._patterns = patterns
        self._overwrite = overwrite
        self._outcome = outcome
        self._progress = progress
        self._placer = Placer(root, outcome.warnings, self._directory_row)
        self._content = ContentSource(store)
        self._present: set[bytes] = set()
        self._linked: dict[tuple[int, int], bytes] = {}

    def _directory_row(self, key: bytes) -> Entry | None:
        return next(self._index.entries("path=? AND kind=?", (key, int(Kind.DIRECTORY))), None)

    def run(self) -> None:
        self._progress.start("compare")
        self._refuse_conflicts()
        rows = self._index.query(f"SELECT coalesce(sum(size), 0), count(*) FROM entry WHERE {_WANTED}").fetchone()
        self._progress.start("restore", rows[0], 0)
        try:
            os.makedirs(self._root or b"/", exist_ok=True)
        except OSError as error:
            raise BadInput(
                shown(self._root),
                "the destination cannot be made",
                expected="a directory, or a place for one",
                found=error.strerror or str(error),
            ) from error
        for entry in self._wanted(f"kind={int(Kind.DIRECTORY)}"):
            self._attempt(entry, partial(self._placer.make_directory, entry))
        self._restore_files()
        for entry in self._wanted(f"kind={int(Kind.SYMLINK)}"):
            self._attempt(entry, partial(self._placer.make_link, entry, self._overwrite))
        self._restore_hard_links()
        self._placer.finish_directories()

    def _wanted(self, condition: str, order: str = "path") -> Iterator[Entry]:
        for entry in self._index.entries(f"{_WANTED} AND {condition} ORDER BY {order}"):
            if self._includes(entry):
                yield entry

    def _includes(self, entry: Entry) -> bool:
        if not self._patterns:
            return True
        text = plain_path(entry.path).decode("utf-8", "surrogateescape").strip("/")
        if entry.kind == Kind.DIRECTORY:
            text += "/"
        return any(match(text) for match in self._patterns)

    def _attempt(self, entry: Entry, action: Callable[[], object]) -> None:
        try:
            action()
            self._outcome.entries += 1
        except OSError as error:
            self._outcome.findings.append(
                Finding(
                    shown(self._root + plain_path(entry.path)),
                    "the entry cannot be written",
                    "to write it",
                    error.strerror or str(error),
                    "run again as root, or with another DEST",
                )
            )

    def _refuse_conflicts(self) -> None:
        """Finds every entry whose place is taken by something else, before anything is written."""
        if not os.path.lexists(self._root or b"/"):
            return
        conflicts = []
        for entry in self._wanted("1"):
            path = self._root + plain_path(entry.path)
            try:
                status = os.lstat(path)
                found = self._difference(entry, path, status)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                conflicts.append(Finding(shown(path), "what is here cannot be read", "", error.strerror or str(error)))
                continue
            self._progress.advance(items=1)
            if not found:
                # Files that are separate in the archive and one here do not stay one.
                if status.st_nlink == 1 or entry.kind != Kind.FILE or self._is_first_at(entry, status):
                    self._present.add(entry.path)
            elif not self._overwrite or entry.kind == Kind.DIRECTORY or stat.S_ISDIR(status.st_mode):
                conflicts.append(
                    Finding(shown(path), "something else is in the way", Kind(entry.kind).name.lower(), found)
                )
        if conflicts:
            raise ConflictingFiles(shown(self._root or b"/"), conflicts)

    def _is_first_at(self, entry: Entry, status: os.stat_result) -> bool:
        """Whether the file that lies here under several names is this one, by any of its names, and no other before."""
        name = entry.hardlink or entry.path
        return self._linked.setdefault((status.st_dev, status.st_ino), name) == name

    def _difference(self, entry: Entry, path: bytes, status: os.stat_result) -> str:
        """What is at an entry's place instead of it; empty when its content is there already."""
        if entry.kind == Kind.DIRECTORY:
            return "" if stat.S_ISDIR(status.st_mode) else "no directory"
        if entry.kind == Kind.SYMLINK:
            if not stat.S_ISLNK(status.st_mode):
                return "no symbolic link"
            return "" if os.readlink(path) == entry.link else "another target"
        if not stat.S_ISREG(status.st_mode):
            return "no regular file"
        if status.st_size != entry.size:
            return f"{status.st_size} bytes instead of {entry.size}"
        digest = hashlib.sha256()
        with open(path, "rb") as file:
            while chunk := file.read(1 << 20):
                digest.update(chunk)
        return "" if digest.digest() == entry.sha256 else "other content"

    # Files.

    def _restore_files(self) -> None:
        with ThreadPoolExecutor(_WORKERS) as pool:
            running: collections.deque[Future[list[Finding]]] = collections.deque()
            for record, entries in self._objects():
                running.append(pool.submit(self._restore_object, record, entries))
                if len(running) > 4 * _WORKERS:
                    self._outcome.findings.extend(running.popleft().result())
            for future in running:
                self._outcome.findings.extend(future.result())

    def _objects(self) -> Iterator[tuple[ObjectRecord, list[Entry]]]:
        """Yields each object that is needed, with the entries whose content lies in it."""
        group: list[Entry] = []
        for entry in self._wanted(f"kind={int(Kind.FILE)} AND hardlink IS NULL", "object, offset"):
            if entry.object is None or entry.sha256 is None:
                self._outcome.findings.append(
                    Finding(shown(plain_path(entry.path)), "the archive lacks its content", "an object", "none")
                )
                continue
            self._outcome.entries += 1
            self._outcome.files += 1
            self._outcome.size_bytes += entry.size
            if entry.path in self._present:
                self._outcome.present += 1
                self._progress.advance(entry.size)
                self._attempt(entry, partial(self._placer.finish_file, entry))
                self._outcome.entries -= 1
                continue
            if group and group[0].object != entry.object:
                yield self._record(group[0]), group
                group = []
            group.append(entry)
        if group:
            yield self._record(group[0]), group

    def _record(self, entry: Entry) -> ObjectRecord:
        record = self._index.object(str(entry.object))
        assert record is not None  # load_bag left no entry without its object
        return record

    def _restore_object(self, record: ObjectRecord, entries: list[Entry]) -> list[Finding]:
        findings: list[Finding] = []
        wanted = sum(entry.size for entry in entries)
        if record.size <= _WHOLE_PACK_LIMIT_BYTES and (
            wanted * 4 >= record.size or (wanted < PART_BYTES // 4 and len(entries) > 1)
        ):
            body, finding = self._content.whole(record)
            if finding is not None:
                findings.append(finding)
            view = memoryview(body)
            for entry in entries:
                start = entry.offset or 0
                self._place(entry, iter((view[start : start + entry.size],)), findings)
            return findings
        for entry in entries:
            self._place(entry, self._content.pieces(record, entry.offset or 0, entry.size), findings)
        return findings

    def _place(self, entry: Entry, pieces: Iterator[bytes | bytearray | memoryview], findings: list[Finding]) -> None:
        try:
            found = self._placer.place_file(entry, pieces, self._progress.advance)
        except OSError as error:
            findings.append(
                Finding(
                    shown(self._root + plain_path(entry.path)),
                    "the entry cannot be written",
                    "to write it",
                    error.strerror or str(error),
                    "make room or run as root, and again",
                )
            )
            return
        if found is not None:
            findings.append(
                Finding(
                    shown(plain_path(entry.path)),
                    "the content in the archive is damaged",
                    f"{entry.size} bytes, sha256 {(entry.sha256 or b'').hex()}",
                    found,
                    "decamp verify --read-back",
                )
            )

    def _restore_hard_links(self) -> None:
        for entry in self._wanted(f"kind={int(Kind.FILE)} AND hardlink IS NOT NULL"):
            assert entry.hardlink is not None
            first = self._root + plain_path(entry.hardlink)
            # What lies at a place that was not asked for is not of this archive, for all that is known.
            is_asked_for = any(map(self._includes, self._index.entries(f"{_WANTED} AND path=?", (entry.hardlink,))))
            if is_asked_for and os.path.lexists(first):
                self._attempt(entry, partial(self._placer.make_hard_link, entry, first))
            elif entry.object is not None:  # its first name was not asked for
                self._outcome.findings.extend(self._restore_object(self._record(entry), [entry]))
                self._outcome.entries += 1


_WANTED = (
    f"tier<2 AND kind<={int(Kind.SYMLINK)} AND (state={int(State.PROVEN)} "
    f"OR (state IN ({int(State.PENDING)}, {int(State.UNREADABLE)}) AND object IS NOT NULL))"
)
