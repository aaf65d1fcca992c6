"""Copies what is pending from the node to the store: small files in packs, large ones in parallel parts.

One thread (the caller's) owns the index and decides; worker threads read large files and send. Their results come
back through a queue, and what is proven is made durable in the index as it comes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from decamp.bag import collides, plain_key
from decamp.checking import check_entry, check_further_names
from decamp.elsewhere import ExistingContent
from decamp.entries import Entry, Kind, State, plain_path, shown
from decamp.errors import StoreFailure
from decamp.findings import Finding
from decamp.gathering import BATCH_BYTES, BATCH_FILES, Gathered, Gathering, gather
from decamp.index import Index, ObjectRecord
from decamp.packs import PACKED_FILE_LIMIT_BYTES, Member, Pack, new_pack_key
from decamp.progress import Progress
from decamp.reading import EntryChanged, OpenedFile
from decamp.resuming import LeftUploads
from decamp.rules import Rule
from decamp.sending import AcceptedPart, ByteBudget, Sender, StartedUpload
from decamp.store.client import Store
from decamp.store.probe import StoreTraits
from decamp.transfer import NotKept
from decamp.workers import UPLOADS, Result, Stopped, Workers

PLAIN_SMALL_FILES = 100  # up to so many small files lie as plain objects, which a person finds more easily
_BUDGET_BYTES = UPLOADS * (10 << 20)  # somewhat more than a part each, so that no upload waits for the disk
_OUTSTANDING_FILES = 12
_PENDING = (
    f"state={int(State.PENDING)} AND kind={int(Kind.FILE)} AND hardlink IS NULL AND tier=? "
    f"AND size{{}}{PACKED_FILE_LIMIT_BYTES}"
)


@dataclass
class CopyTotals:
    """What a copy did: per tier number bytes sent and bytes that the store had already; entries that changed."""

    sent: dict[int, int] = field(default_factory=dict)
    already_there: dict[int, int] = field(default_factory=dict)
    changed: list[bytes] = field(default_factory=list)


class Copier:
    """Copies pending entries tier by tier.

    Attributes:
        totals: what was done so far.
        findings: why entries could not be read, by path as the index has it.
        left_uploads: multipart uploads of an earlier run.
    """

    def __init__(
        self,
        store: Store,
        index: Index,
        rules: tuple[Rule, ...],
        traits: StoreTraits,
        existing: ExistingContent,
        progress: Progress,
        has_earlier_content: bool,
    ) -> None:
        self._store = store
        self._index = index
        self._rules = rules
        self._existing = existing
        self._progress = progress
        self._has_earlier = has_earlier_content
        self._workers = Workers()
        self._gathering = Gathering(rules)
        self._pack = Pack()
        self._budget = ByteBudget(_BUDGET_BYTES)
        self._sender = Sender(store, traits, self._budget, self._workers.stop, self._progress.advance)
        self.left_uploads = LeftUploads(store, index)
        self.totals = CopyTotals()
        self.findings: dict[bytes, Finding] = {}

    @property
    def failure(self) -> StoreFailure | None:
        """The store's failure that ended the copying early, or None."""
        return self._workers.failure

    def __enter__(self) -> Copier:
        return self

    def __exit__(self, *_: object) -> None:
        self._workers.close()
        self._gathering.close()

    def copy_tier(self, tier: int) -> None:
        """Copies every pending file of a tier; returns when each is proven, changed, unreadable or given up."""
        small = self._batches(_PENDING.format("<="), tier)
        large = self._entries(_PENDING.format(">"), tier)
        (pending,) = self._index.query(f"SELECT count(*) FROM entry WHERE {_PENDING.format('<=')}", (tier,)).fetchone()
        as_plain = pending <= PLAIN_SMALL_FILES
        if not as_plain:
            self._gathering.call_help(pending)
        batch, next_large = next(small, None), next(large, None)
        while True:
            while (
                next_large is not None
                and self._workers.outstanding < _OUTSTANDING_FILES
                and not self._workers.stop.is_set()
            ):
                self._start_large(next_large)
                next_large = next(large, None)
            if batch is not None and not self._workers.stop.is_set():
                self._start_small(batch, as_plain)
                batch = next(small, None)
                self._workers.take_results(wait=False)
            elif self._pack.members and not self._gathering.is_busy:
                self._send_pack()
            elif self._workers.outstanding:
                self._workers.take_results(wait=True)
            elif next_large is None or self._workers.stop.is_set():
                break
        self._index.commit()

    def _entries(self, where: str, tier: int) -> Iterator[Entry]:
        for batch in self._index.batches(where, (tier,), size=256):
            yield from batch

    def _batches(self, where: str, tier: int) -> Iterator[list[Entry]]:
        """Yields entries in batches that bound both how many files and how many bytes are in hand."""
        batch: list[Entry] = []
        size = 0
        for entry in self._entries(where, tier):
            batch.append(entry)
            size += entry.size
            if len(batch) >= BATCH_FILES or size >= BATCH_BYTES:
                yield batch
                batch, size = [], 0
        if batch:
            yield batch

    # Small files.

    def _start_small(self, batch: list[Entry], as_plain: bool) -> None:
        if as_plain or self._gathering.pool is None or not self._gathering.has_room():
            self._note_gathered(batch, gather(batch, self._rules), as_plain)
            return

        def work() -> Result:
            gathered = self._gathering.gather(batch)

            def note() -> None:
                self._gathering.expect(-1)
                self._note_gathered(batch, gathered, False)

            return note

        self._gathering.expect(1)
        self._workers.submit(self._gathering.pool, work)

    def _note_gathered(self, batch: list[Entry], gathered: Gathered, as_plain: bool) -> None:
        for missed in gathered.missed:
            if missed.error is None:
                self.totals.changed.append(batch[missed.number].path)
            else:
                self._unreadable(batch[missed.number].path, missed.error)
        if not as_plain and not self._has_earlier and self._existing.is_empty:
            members = [Member(batch[piece.number], *piece[2:]) for piece in gathered.pieces]
            self._add_to_pack(gathered.body, members)
            return
        whole = memoryview(gathered.body)
        for piece, end in gathered.ends():
            entry = batch[piece.number]
            if self._take_existing(entry, piece.sha256, piece.checks):
                continue
            key = self._writable_key(entry) if as_plain else None
            if key is not None:
                content = whole[piece.offset : piece.offset + entry.size].tobytes()
                self._send_plain(entry, key, content, piece.sha256, piece.checks)
            else:
                member = Member(entry, piece.offset - piece.start, piece.sha256, piece.checks)
                self._add_to_pack(whole[piece.start : end], [member])

    def _send_plain(self, entry: Entry, key: str, content: bytes, digest: bytes, checks: str | None) -> None:
        self._index.forget_content(entry.path, key)
        self._index.commit()
        self._workers.submit(
            self._workers.uploads,
            lambda: self._stored_plain(entry, self._sender.send_body(key, content, digest), digest, None, checks),
        )

    def _add_to_pack(self, pieces: bytearray | memoryview, members: list[Member]) -> None:
        for member in members:
            self._release_own_plain(member.entry)
        self._pack.add(pieces, members)
        if self._pack.is_full:
            self._send_pack()

    def _send_pack(self) -> None:
        pack, self._pack = self._pack, Pack()
        key, body, members = new_pack_key(), pack.close(), pack.members
        size = len(body)
        self._budget.acquire(size)

        def work() -> Result:
            try:
                record = self._sender.send_body(key, body, hashlib.sha256(body).digest())
            finally:
                self._budget.release(size)
            return lambda: self._note_pack(record, members)

        self._workers.submit(self._workers.uploads, work)

    def _note_pack(self, record: ObjectRecord, members: list[Member]) -> None:
        self._index.put_object(record)
        self._index.set_stored(
            (member.sha256, record.key, member.offset, member.entry.size, member.checks, member.entry.path)
            for member in members
        )
        self._index.commit()
        for member in members:
            self._add(self.totals.sent, member.entry)

    # Large files.

    def _start_large(self, entry: Entry) -> None:
        if self._may_be_there(entry):
            self._workers.submit(self._workers.readers, lambda: self._guarded(entry, self._hash_first))
            return
        self._send_large(entry)

    def _may_be_there(self, entry: Entry) -> bool:
        """Tells whether hashing a large file before sending it could save the sending."""
        if self._has_earlier:
            key = self._plain_key(entry)
            record = self._index.object(key) if key is not None else None
            if (record is not None and record.size == entry.size) or self._index.has_content_of_size(entry.size):
                return True
        return self._existing.has_size(entry.size)

    def _hash_first(self, file: OpenedFile, entry: Entry) -> Result:
        checks = check_entry(entry, self._rules)
        digest = file.digest()

        def decide() -> None:
            if not self._take_existing(entry, digest, checks):
                self._send_large(entry)

        return decide

    def _send_large(self, entry: Entry) -> None:
        key = self._writable_key(entry)
        started_key, resumed = self.left_uploads.take(entry, key)
        target = key or started_key or new_pack_key()
        if key is not None:
            self._index.forget_content(entry.path, key)
            self._index.commit()
        else:
            self._release_own_plain(entry)

        def note_started(started: StartedUpload) -> None:
            self._workers.tell(lambda: self.left_uploads.note_started(started))

        def note_part(part: AcceptedPart) -> None:
            self._workers.tell(lambda: self.left_uploads.note_part(part))

        def send(file: OpenedFile, entry: Entry) -> Result:
            checks = check_entry(entry, self._rules)
            record, digest, offset = self._sender.send_file(
                file, entry, target, key is None, self._workers.uploads, note_started, note_part, resumed
            )
            return self._stored_plain(entry, record, digest, offset, checks)

        self._workers.submit(self._workers.readers, lambda: self._guarded(entry, send))

    def _guarded(self, entry: Entry, work: Callable[[OpenedFile, Entry], Result]) -> Result:
        """Opens the file for some work in a reader thread; a change or a read error is a result too."""
        if self._workers.stop.is_set():
            raise Stopped
        try:
            with OpenedFile(entry) as file:
                return work(file, entry)
        except EntryChanged:
            return lambda: self.totals.changed.append(entry.path)
        except NotKept as failure:
            finding = Finding(failure.where, failure.what, failure.expected, failure.found, "the same command again")
            return lambda: self.findings.update({entry.path: finding})  # still pending: the next round sends it anew
        except OSError as error:
            unread = error
            return lambda: self._unreadable(entry.path, unread)

    # What becomes of an entry.

    def settle_hard_links(self) -> None:
        """Gives further names of hard-linked files what their first names came to, and checks them as themselves."""
        self._index.settle_hard_links()
        for path, error in check_further_names(self._index, self._rules).items():
            self._unreadable(path, error)

    def _stored_plain(
        self, entry: Entry, record: ObjectRecord, digest: bytes, offset: int | None, checks: str | None
    ) -> Result:
        def note() -> None:
            self._index.put_object(record)
            self._index.drop_upload(record.key)
            self._index.set_stored([(digest, record.key, offset, entry.size, checks, entry.path)])
            self._index.commit()
            self._add(self.totals.sent, entry)

        return note

    def _take_existing(self, entry: Entry, digest: bytes, checks: str | None) -> bool:
        """Points the entry to content that the store has already, where there is such; returns whether."""
        if not self._has_earlier and self._existing.is_empty:
            return False
        found = self._index.find_content(digest, entry.size)
        if found is None:
            key = self._plain_key(entry)
            record = self._index.object(key) if key is not None else None
            if record is not None and (record.sha256, record.size) == (digest, entry.size):
                found = record.key, None
            elif key is not None and record is None and not collides(self._index, key):
                elsewhere = self._existing.find(key, digest, entry.size)
                if elsewhere is not None:
                    self._index.put_object(elsewhere)
                    found = key, None
        if found is None:
            return False
        self._index.set_stored([(digest, found[0], found[1], entry.size, checks, entry.path)])
        self._add(self.totals.already_there, entry)
        self._progress.advance(entry.size)
        return True

    def _plain_key(self, entry: Entry) -> str | None:
        return plain_key(plain_path(entry.path), self._store)

    def _writable_key(self, entry: Entry) -> str | None:
        """The plain key that the entry may write: one that no other entry relies on and that collides with none."""
        key = self._plain_key(entry)
        if key is None or self._index.is_referred_to(key, entry.path) or collides(self._index, key):
            return None
        record = self._index.object(key)
        return None if record is not None and record.url is not None else key

    def _release_own_plain(self, entry: Entry) -> None:
        """Content that goes to a new object leaves the old one as it is; the row just stops pointing there."""
        if entry.object is not None:
            self._index.execute(
                "UPDATE entry SET sha256=NULL, object=NULL, offset=NULL, stored_size=NULL WHERE path=?", (entry.path,)
            )

    def _unreadable(self, path: bytes, error: OSError) -> None:
        self._index.set_state(path, State.UNREADABLE)
        self.findings[path] = Finding(
            shown(plain_path(path)), "the file cannot be read", "its content", error.strerror or str(error)
        )

    @staticmethod
    def _add(totals: dict[int, int], entry: Entry) -> None:
        totals[entry.tier] = totals.get(entry.tier, 0) + entry.size
