"""Does the store still hold what the index says? Asked before and after every copy; the store's word counts."""

from __future__ import annotations

from dataclasses import dataclass, field

from decamp.bag import PAYLOAD
from decamp.entries import State, plain_path, shown
from decamp.errors import StoreFailure
from decamp.findings import Finding
from decamp.index import Index, ObjectRecord
from decamp.memory import RECEIPT_FACT
from decamp.store.client import Store, StoredObject, base64_digest
from decamp.store.probe import PROBE_PREFIX
from decamp.transfer import read_digest

_ADOPTION_READS = 5


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
        _drop(index, key, outcome)
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


def _drop(index: Index, key: str, outcome: Agreement) -> None:
    gone = int(State.GONE)
    for entry in index.entries("object=? AND state=?", (key, gone)):
        outcome.warnings.append(
            Finding(
                shown(plain_path(entry.path)),
                "gone from the node, and now from the store too",
                f"its object {key}",
                "nothing, or other content",
            )
        )
    index.execute("DELETE FROM entry WHERE object=? AND state=?", (key, gone))
    index.drop_object(key)


def _adopt(store: Store, index: Index, key: str, outcome: Agreement) -> None:
    """Takes unknown payload into the bag by what is read of it: nobody here saw the store check it."""
    stored = store.head(key)
    if stored is None:
        return
    # An answer can be damaged: the store's checksum of the whole confirms it, or, where it has none, a second reading.
    attested = stored.sha256 if stored.sha256 is not None and "-" not in stored.sha256 else None
    earlier = b""
    for _ in range(_ADOPTION_READS):
        digest, size = read_digest(store, key)
        is_confirmed = base64_digest(digest) == attested if attested is not None else digest == earlier
        if size == stored.size_bytes and is_confirmed:
            break
        earlier = digest
    else:
        raise StoreFailure(
            f"{store.location.url}/{key}",
            "the object reads differently each time" if attested is None else "the object is not what the store says",
            expected="" if attested is None else f"checksum {attested}",
            found="" if attested is None else f"checksum {base64_digest(digest)}",
            run="run again; if it stays so, remove that object",
        )
    index.put_object(ObjectRecord(key, size, digest, stored.etag, attested, None, "read_back"))
    outcome.adopted.append(key)
