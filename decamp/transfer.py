"""Moves whole objects: uploads in one piece or in parts, downloads with a digest."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from decamp.errors import StoreFailure
from decamp.store.client import Acceptance, Store, base64_digest
from decamp.store.failures import StoreRefusal

PART_BYTES = 8 << 20
PARTS_LIMIT = 9_000  # S3 takes 10,000 (Amazon S3 User Guide, "Amazon S3 multipart upload limits", 2026)
_ATTEMPTS = 4
_FIRST_PAUSE_S = 0.1

Result = TypeVar("Result")


class NotKept(StoreFailure):
    """The store accepted an upload and holds something else."""


def confirm_kept(store: Store, key: str, digest: bytes, size_bytes: int) -> None:
    """Reads an object back and returns when it is what was sent; an answer can be damaged too, so it looks twice.

    Raises:
        NotKept: it is not.
    """
    for _ in range(2):
        found, found_bytes = read_digest(store, key)
        if (found, found_bytes) == (digest, size_bytes):
            return
    raise NotKept(
        f"{store.location.url}/{key}",
        "the store holds something else than was sent",
        expected=f"{size_bytes} bytes, sha256 {digest.hex()}",
        found=f"{found_bytes} bytes, sha256 {found.hex()}",
    )


def part_bytes_for(size_bytes: int) -> int:
    """The size of the parts of an object: 8 MiB, or as many MiB as keep the number of parts within S3's limit."""
    needed = -(-size_bytes // PARTS_LIMIT)
    return max(PART_BYTES, -(-needed // (1 << 20)) << 20)


def retried(action: Callable[[], Result]) -> Result:
    """Repeats an upload whose body was damaged on its way; other failures were retried by botocore already."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return action()
        except (StoreRefusal, NotKept) as failure:
            if (isinstance(failure, StoreRefusal) and not failure.is_damaged_body) or attempt == _ATTEMPTS:
                raise
        time.sleep(_FIRST_PAUSE_S * 4 ** (attempt - 1))
    raise AssertionError("unreachable")


def put_file(store: Store, key: str, path: Path) -> tuple[str, bool]:
    """Stores a file of our own, in parts where it is long.

    Returns:
        The object's entity tag, and whether the store said of every byte that it checked it.
    """
    size_bytes = path.stat().st_size
    part_bytes = part_bytes_for(size_bytes)
    with open(path, "rb") as file:
        if size_bytes <= part_bytes:
            body = file.read()
            answer = retried(lambda: store.put_bytes(key, body))
            return answer.etag, answer.sha256 == base64_digest(hashlib.sha256(body).digest())
        upload_id = store.create_upload(key)
        parts: list[tuple[str, bytes]] = []
        is_attested = True
        try:
            while piece := file.read(part_bytes):
                digest = hashlib.sha256(piece).digest()
                answer = _put_part(store, key, upload_id, len(parts) + 1, piece, digest)
                is_attested = is_attested and answer.sha256 == base64_digest(digest)
                parts.append((answer.etag, digest))
            return store.complete_upload(key, upload_id, parts).etag, is_attested
        except BaseException:
            store.abort_upload(key, upload_id)
            raise


def _put_part(store: Store, key: str, upload_id: str, number: int, piece: bytes, digest: bytes) -> Acceptance:
    return retried(lambda: store.put_part(key, upload_id, number, piece, digest))


class Sink(Protocol):
    """Takes what is read, piece by piece."""

    def update(self, piece: bytes, /) -> None: ...


SomeSink = TypeVar("SomeSink", bound=Sink)


class _Digest:
    """SHA-256 and length, told to whoever shows progress."""

    def __init__(self, on_bytes: Callable[[int], None] | None) -> None:
        self._on_bytes = on_bytes
        self.sha256 = hashlib.sha256()
        self.size_bytes = 0

    def update(self, piece: bytes, /) -> None:
        self.sha256.update(piece)
        self.size_bytes += len(piece)
        if self._on_bytes is not None:
            self._on_bytes(len(piece))


def read_digest(store: Store, key: str, on_bytes: Callable[[int], None] | None = None) -> tuple[bytes, int]:
    """Reads an object back and returns the SHA-256 and the length of what came; a broken answer is tried again."""
    read = read_through(store, key, lambda: _Digest(on_bytes))
    return read.sha256.digest(), read.size_bytes


def read_through(store: Store, key: str, make: Callable[[], SomeSink]) -> SomeSink:
    """Reads an object into a sink and returns that; a broken answer is tried again, into a new one."""
    for attempt in range(1, _ATTEMPTS + 1):
        sink = make()
        try:
            for chunk in store.get_chunks(key):
                sink.update(chunk)
            return sink
        except StoreFailure as failure:
            if isinstance(failure, StoreRefusal) or attempt == _ATTEMPTS:
                raise
        time.sleep(_FIRST_PAUSE_S * 4 ** (attempt - 1))
    raise AssertionError("unreachable")


def fetch_to(store: Store, key: str, path: Path) -> str:
    """Writes an object to a file of our own and returns the SHA-256 of what came, as hex digits."""
    for attempt in range(1, _ATTEMPTS + 1):
        digest = hashlib.sha256()
        try:
            with open(path, "wb") as file:
                for chunk in store.get_chunks(key):
                    digest.update(chunk)
                    file.write(chunk)
            return digest.hexdigest()
        except StoreFailure as failure:
            if isinstance(failure, StoreRefusal) or attempt == _ATTEMPTS:
                raise
        time.sleep(_FIRST_PAUSE_S * 4 ** (attempt - 1))
    raise AssertionError("unreachable")
