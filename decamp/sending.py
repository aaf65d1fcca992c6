"""Sends one object to the store and returns what proves that it arrived. Runs in worker threads."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from dataclasses import dataclass

from decamp.entries import Entry
from decamp.index import ObjectRecord
from decamp.packs import END_OF_ARCHIVE, member_header, padding
from decamp.reading import OpenedFile
from decamp.store.client import Store, base64_digest, composite_checksum
from decamp.store.probe import StoreTraits
from decamp.transfer import PART_BYTES, confirm_kept, part_bytes_for, retried
from decamp.workers import Stopped


class ByteBudget:
    """Bounds how many bytes wait in memory to be sent; whoever wants more waits until some were."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit = limit_bytes
        self._used = 0
        self._condition = threading.Condition()

    def acquire(self, count: int) -> None:
        """Takes bytes from the budget; something larger than all of it passes alone."""
        with self._condition:
            self._condition.wait_for(lambda: self._used == 0 or self._used + count <= self._limit)
            self._used += count

    def release(self, count: int) -> None:
        with self._condition:
            self._used -= count
            self._condition.notify_all()


class Buffers:
    """Part buffers that are used again: fresh ones cost page faults, and the allocator keeps what was freed."""

    def __init__(self) -> None:
        self._free: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """Returns a buffer of exactly this size; its content is anything."""
        if size == PART_BYTES:
            with contextlib.suppress(IndexError):
                return self._free.pop()
        return bytearray(size)

    def give_back(self, buffer: bytearray) -> None:
        """Takes a buffer that nobody refers to any more."""
        if len(buffer) == PART_BYTES:
            self._free.append(buffer)


@dataclass(frozen=True)
class StartedUpload:
    """A multipart upload that a killed run can leave behind: to be remembered before its first part is sent."""

    key: str
    upload_id: str
    part_bytes: int
    identity: str


@dataclass(frozen=True)
class AcceptedPart:
    """A part that the store said it checked: its SHA-256 in base64 and its entity tag. To be remembered too."""

    upload_id: str
    number: int
    checksum: str
    etag: str


@dataclass(frozen=True)
class ResumedUpload:
    """An unfinished upload of the same content, with the parts that the store has: digest (base64) and etag.

    A digest is there where the store's listing of parts shows it (S3), or where it was told when the part was
    accepted and the entity tag is the same now (SeaweedFS); else it is empty, and the part is sent again.
    """

    upload_id: str
    part_bytes: int
    parts: dict[int, tuple[str, str]]


def upload_identity(entry: Entry) -> str:
    """Names the very state of a file that an unfinished upload was reading."""
    return f"{entry.ino}:{entry.size}:{entry.mtime_ns}:{entry.ctime_ns}"


class Sender:
    """Sends bodies and files to one bag.

    Args:
        store: the bag.
        traits: what the store was seen to attest; what it does not attest is read back.
        budget: bounds the memory of all senders together.
        stop: set when the run is to end.
        on_bytes: told of every piece that was sent.
    """

    def __init__(
        self,
        store: Store,
        traits: StoreTraits,
        budget: ByteBudget,
        stop: threading.Event,
        on_bytes: Callable[[int], None],
    ) -> None:
        self._store = store
        self._traits = traits
        self._budget = budget
        self._stop = stop
        self._on_bytes = on_bytes
        self._buffers = Buffers()

    def send_body(self, key: str, body: bytes | bytearray, digest: bytes) -> ObjectRecord:
        """Sends an object in one piece. `digest` is its SHA-256."""
        if self._stop.is_set():
            raise Stopped
        record = retried(lambda: self._put_body(key, body, digest))
        self._on_bytes(len(body))
        return record

    def _put_body(self, key: str, body: bytes | bytearray, digest: bytes) -> ObjectRecord:
        answer = self._store.put_bytes(key, body, digest)
        checksum = base64_digest(digest)
        return self._record(
            key, len(body), digest, answer.etag, checksum, self._traits.checks_puts and answer.sha256 == checksum
        )

    def _record(self, key: str, size: int, digest: bytes, etag: str, checksum: str, is_attested: bool) -> ObjectRecord:
        """What proves the object: the store's word on this very upload where its word is good, else a look at it."""
        evidence = "attested"
        if not is_attested:
            confirm_kept(self._store, key, digest, size)
            evidence = "read_back"
        return ObjectRecord(key, size, digest, etag, checksum if self._traits.shows_checksums else None, None, evidence)

    def send_file(
        self,
        file: OpenedFile,
        entry: Entry,
        key: str,
        as_pack: bool,
        uploads: Executor,
        on_start: Callable[[StartedUpload], None],
        on_part: Callable[[AcceptedPart], None],
        resumed: ResumedUpload | None,
    ) -> tuple[ObjectRecord, bytes, int | None]:
        """Sends a file, alone in a pack where its name demands one; reads it once.

        Returns:
            The object, the SHA-256 of the file, and the offset of its first byte inside a pack.

        Raises:
            EntryChanged: the file changed while it was read; nothing of it counts.
        """
        prefix = member_header(entry) if as_pack else b""
        suffix = padding(entry.size) + END_OF_ARCHIVE if as_pack else b""
        total = len(prefix) + entry.size + len(suffix)
        part_bytes = resumed.part_bytes if resumed else part_bytes_for(total)
        content_digest, object_digest = hashlib.sha256(), hashlib.sha256()

        def next_part(start: int) -> bytearray:
            """Bytes of the object from `start` on, at most a part's worth."""
            end = min(start + part_bytes, total)
            part = self._buffers.take(end - start)
            view = memoryview(part)
            content_start = max(start, len(prefix)) - start
            content_end = min(end, len(prefix) + entry.size) - start
            if start < len(prefix):
                view[:content_start] = prefix[start : start + content_start]
            if content_end > content_start:
                file.read_into(view[content_start:content_end])
                content_digest.update(view[content_start:content_end])
            tail = max(content_end, content_start)
            if tail < len(part):
                suffix_start = start + tail - len(prefix) - entry.size
                view[tail:] = suffix[suffix_start : suffix_start + len(part) - tail]
            if as_pack:
                object_digest.update(part)
            return part

        offset = len(prefix) if as_pack else None
        if total <= part_bytes and resumed is None:
            self._budget.acquire(total)
            try:
                body = next_part(0)
                file.confirm()
                digest = object_digest.digest() if as_pack else content_digest.digest()
                return self.send_body(key, body, digest), content_digest.digest(), offset
            finally:
                self._budget.release(total)
        upload_id = resumed.upload_id if resumed else self._store.create_upload(key)
        if resumed is None:
            on_start(StartedUpload(key, upload_id, part_bytes, upload_identity(entry)))
        try:
            parts = self._send_parts(
                key, upload_id, total, part_bytes, next_part, uploads, on_part, resumed.parts if resumed else {}
            )
            file.confirm()
            etag = self._store.complete_upload(key, upload_id, [(tag, part) for tag, part, _ in parts]).etag
        except Stopped:
            raise
        except BaseException:
            if not self._stop.is_set():
                self._store.abort_upload(key, upload_id)
            raise
        digest = object_digest.digest() if as_pack else content_digest.digest()
        checksum = composite_checksum([part_digest for _, part_digest, _ in parts])
        is_attested = self._traits.checks_parts and all(attested for _, _, attested in parts)
        return (self._record(key, total, digest, etag, checksum, is_attested), content_digest.digest(), offset)

    def _send_parts(
        self,
        key: str,
        upload_id: str,
        total: int,
        part_bytes: int,
        next_part: Callable[[int], bytearray],
        uploads: Executor,
        on_part: Callable[[AcceptedPart], None],
        known: dict[int, tuple[str, str]],
    ) -> list[tuple[str, bytes, bool]]:
        """Reads part after part and sends them side by side.

        Returns:
            Each one's entity tag and digest, and whether the store said that it checked it.
        """
        futures: list[Future[tuple[str, bytes, bool]]] = []
        failed = threading.Event()

        def send(number: int, body: bytearray) -> tuple[str, bytes, bool]:
            try:
                if self._stop.is_set():
                    raise Stopped
                digest = hashlib.sha256(body).digest()
                wanted = base64_digest(digest)
                shown, etag = known.get(number, ("", ""))
                if shown != wanted:
                    answer = retried(lambda: self._store.put_part(key, upload_id, number, body, digest))
                    shown, etag = answer.sha256 or "", answer.etag
                    if shown == wanted:
                        on_part(AcceptedPart(upload_id, number, shown, etag))
                self._on_bytes(len(body))
                self._buffers.give_back(body)
                return etag, digest, shown == wanted
            except BaseException:
                failed.set()
                raise
            finally:
                self._budget.release(part_bytes)

        try:
            for number, start in enumerate(range(0, total, part_bytes), 1):
                if self._stop.is_set():
                    raise Stopped
                if failed.is_set():
                    break
                self._budget.acquire(part_bytes)
                try:
                    body = next_part(start)
                except BaseException:
                    self._budget.release(part_bytes)
                    raise
                futures.append(uploads.submit(send, number, body))
        finally:
            for future in futures:
                future.exception()  # none is left running when the upload is completed, aborted or kept
        return [future.result() for future in futures]
