"""Reads content out of a bag: a whole object, or a range of it in pieces that are fetched ahead."""

from __future__ import annotations

import collections
import hashlib
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

from decamp.errors import StoreFailure
from decamp.findings import Finding
from decamp.index import ObjectRecord
from decamp.store.client import Store
from decamp.store.failures import StoreRefusal

_PIECE_BYTES = 8 << 20
_AHEAD = 2
_ATTEMPTS = 4
_LOOK = "decamp verify --read-back"


class ContentSource:
    """Content of one bag; safe to use from many threads."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pool = ThreadPoolExecutor(8, "fetch")

    def _place(self, record: ObjectRecord) -> tuple[Store, str]:
        return self._store.elsewhere(record.url) if record.url is not None else (self._store, record.key)

    def whole(self, record: ObjectRecord) -> tuple[bytearray, Finding | None]:
        """Returns an object's content, and a finding where it is not what the manifest says."""
        store, key = self._place(record)
        try:
            body = _fetch(store, key, 0, record.size) if record.size else bytearray()
        except StoreFailure as failure:
            return bytearray(), Finding(failure.where, failure.what, failure.expected, failure.found, _LOOK)
        found = hashlib.sha256(body).digest()
        if found == record.sha256:
            return body, None
        return body, Finding(
            f"{self._store.location.url}/{record.key}",
            "the object's content was changed",
            f"sha256 {record.sha256.hex()}",
            found.hex(),
            _LOOK,
        )

    def pieces(self, record: ObjectRecord, offset: int, size: int) -> Iterator[bytearray]:
        """Yields `size` bytes of an object from `offset` on; ends early where the store has no more.

        Raises:
            StoreFailure: after several tries.
        """
        store, key = self._place(record)
        waiting: collections.deque[Future[bytearray]] = collections.deque()
        starts = iter(range(offset, offset + size, _PIECE_BYTES))
        try:
            while True:
                while len(waiting) < _AHEAD and (start := next(starts, None)) is not None:
                    waiting.append(
                        self._pool.submit(_fetch, store, key, start, min(start + _PIECE_BYTES, offset + size))
                    )
                if not waiting:
                    return
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _fetch(store: Store, key: str, start: int, end: int) -> bytearray:
    """Returns the bytes of a range; one that comes back short is tried again."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            body = bytearray(end - start)  # in place: to join chunks takes the memory twice
            filled = 0
            for chunk in store.get_chunks(key, 1 << 20, start=start, end=end):
                body[filled : filled + len(chunk)] = chunk
                filled += len(chunk)
            del body[filled:]
            if len(body) == end - start or attempt == _ATTEMPTS:
                return body
        except StoreFailure as failure:
            if isinstance(failure, StoreRefusal) or attempt == _ATTEMPTS:
                raise
        time.sleep(0.1 * 4 ** (attempt - 1))
    raise AssertionError("unreachable")
