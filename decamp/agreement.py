"""Does the store still hold what the index says? Asked before and after every copy; the store's word counts."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

from decamp.bag import PAYLOAD
from decamp.entries import State, plain_path, shown
from decamp.errors import StoreFailure
from decamp.findings import Finding
from decamp.index import Index, ObjectRecord
from decamp.memory import RECEIPT_FACT
from decamp.store.client import Store, StoredObject, base64_digest, composite_checksum
from decamp.store.probe import PROBE_PREFIX
from decamp.transfer import part_bytes_for, read_through

_ADOPTION_READS = 4


class OtherThanShown(StoreFailure):
    """An object's content is not what the store's checksum of it says, however often it is read."""


@dataclass
class Agreement:
    """The outcome of holding a listing against the index.

    Attributes:
        dropped: objects that are missing or other than they were; what lay in them is pending again.
        adopted: payload that the index did not know: it counts as part of the bag, so that nothing is thrown away.
        tags: the tag files that the listing showed, with size and entity tag.
        warnings: content of entries that are gone from the node and now from the store too.
    """

    dropped: list[str] = field(default_factory=list)
    adopted: list[str] = field(default_factory=list)
    tags: dict[str, tuple[int, str]] = field(default_factory=dict)
    warnings: list[Finding] = field(default_factory=list)


def agree(store: Store, index: Index, *, look_only: bool = False) -> Agreement:
    """Lists the bag and brings the index in line with it.

    Args:
        store: the bag.
        index: changed where the listing differs.
        look_only: change nothing in the store, and only note what would be adopted.

    Raises:
        StoreFailure: the listing failed or cannot be trusted.
    """
    outcome = Agreement()
    index.take_listing((item.key, item.size_bytes, item.etag) for item in store.list_objects())
    stale = [key for key, _, _ in index.listed(PROBE_PREFIX)]
    outcome.tags = {
        key: (size, etag)
        for key, size, etag in index.listed()
        if not key.startswith(PAYLOAD) and not key.startswith(PROBE_PREFIX)
    }
    for record in index.objects_listed_otherwise():
        if not _is_still_there(store, record):
            outcome.dropped.append(record.key)
    unknown = list(index.unknown_listed(PAYLOAD))
    if outcome.dropped or unknown:
        # From here on the index differs from what the receipt speaks of; if this run is killed, the next has to know.
        index.set_fact(RECEIPT_FACT, None)
    for key in stale if not look_only else ():
        store.delete(key)
    for key in outcome.dropped:
        outcome.warnings.extend(drop(index, key))
    for key in unknown:
        if look_only:
            outcome.adopted.append(key)
        else:
            _adopt(store, index, key, outcome)
    index.commit()
    return outcome


def _is_still_there(store: Store, record: ObjectRecord) -> bool:
    """Looks at an object that the listing lacks, or shows with another size or entity tag, or that lies elsewhere."""
    place, key = store.elsewhere(record.url) if record.url is not None else (store, record.key)
    stored = place.head(key)
    return stored is not None and _holds(record, stored)


def _holds(record: ObjectRecord, stored: StoredObject) -> bool:
    if stored.size_bytes != record.size:
        return False
    if record.checksum is not None:
        return stored.sha256 == record.checksum
    return stored.etag == record.etag


def drop(index: Index, key: str) -> list[Finding]:
    """Forgets an object that is not as it was; returns a warning for each entry whose last content is lost with it."""
    lost = [
        Finding(
            shown(plain_path(entry.path)),
            "gone from the node, and now from the store too",
            f"its object {key}",
            "nothing, or other content",
        )
        for entry in index.entries("object=? AND state=?", (key, int(State.GONE)))
    ]
    index.drop_object(key)
    return lost


class Reading:
    """What an object's bytes come to, as a whole and in the parts that an upload of ours would have."""

    def __init__(self, part_bytes: int) -> None:
        self._part_bytes = part_bytes
        self.size_bytes = 0
        self._whole = hashlib.sha256(), hashlib.md5(usedforsecurity=False)
        self._parts: list[tuple[hashlib._Hash, hashlib._Hash]] = []

    def update(self, piece: bytes, /) -> None:
        rest = memoryview(piece)
        while rest:
            filled = self.size_bytes % self._part_bytes
            if filled == 0:
                self._parts.append((hashlib.sha256(), hashlib.md5(usedforsecurity=False)))
            taken = rest[: self._part_bytes - filled]
            for digest in (*self._whole, *self._parts[-1]):
                digest.update(taken)
            self.size_bytes += len(taken)
            rest = rest[len(taken) :]

    @property
    def sha256(self) -> bytes:
        return self._whole[0].digest()

    def is_confirmed_by(self, stored: StoredObject) -> bool:
        """Says whether the store's checksum is that of these bytes, or its entity tag, where it has no checksum.

        A tag is an MD5, of the parts' MD5 for an upload in parts (Amazon S3 User Guide, "Checking object integrity").
        """
        if stored.sha256 is not None:
            in_parts = composite_checksum([sha256.digest() for sha256, _ in self._parts])
            return stored.sha256 in (base64_digest(self.sha256), in_parts)
        md5_of_parts = hashlib.md5(b"".join(md5.digest() for _, md5 in self._parts), usedforsecurity=False)
        return stored.etag in (self._whole[1].hexdigest(), f"{md5_of_parts.hexdigest()}-{len(self._parts)}")


def _adopt(store: Store, index: Index, key: str, outcome: Agreement) -> None:
    """Takes unknown payload into the bag by what is read of it: nobody here saw the store check it."""
    if "\n" in key or "\r" in key:
        raise StoreFailure(
            f"{store.location.url}/{key!r}",
            "somebody put an object here whose key has a line break, which no manifest can name",
            run="remove that object",
        )
    stored = store.head(key)
    if stored is None:
        return
    try:
        digest, checksum = _read_surely(store, key, stored)
    except OtherThanShown:
        if key not in index.doubted():
            raise
        # Read back wrongly before, and now again: nothing refers to it any more, and it is in the way of what does.
        store.delete(key)
        outcome.warnings.append(
            Finding(
                f"{store.location.url}/{key}",
                "the object was neither what was sent nor what the store says, and was removed",
                f"checksum {stored.sha256}",
                "other content",
            )
        )
        return
    index.put_object(ObjectRecord(key, stored.size_bytes, digest, stored.etag, checksum, None, "read_back"))
    outcome.adopted.append(key)


def _read_surely(store: Store, key: str, stored: StoredObject) -> tuple[bytes, str | None]:
    """Returns an object's SHA-256, and the store's checksum where that confirms it.

    An answer can be damaged, and twice in the same way, so something has to confirm it: the store's checksum or entity
    tag; or, where neither can be compared, that all readings agree.
    """
    digests = set()
    for _ in range(_ADOPTION_READS):
        read = read_through(store, key, lambda: Reading(part_bytes_for(stored.size_bytes)))
        if read.size_bytes == stored.size_bytes:
            if read.is_confirmed_by(stored):
                return read.sha256, stored.sha256
            digests.add(read.sha256)
    is_comparable = stored.sha256 is not None and "-" not in stored.sha256
    if len(digests) == 1 and not is_comparable:
        return digests.pop(), None
    failure = OtherThanShown if is_comparable else StoreFailure
    raise failure(
        f"{store.location.url}/{key}",
        "the object is not what the store says" if is_comparable else "the object reads differently each time",
        expected=f"checksum {stored.sha256}" if is_comparable else "",
        found=", ".join(sorted(f"checksum {base64_digest(digest)}" for digest in digests)),
        run="run again; if it stays so, remove that object",
    )
