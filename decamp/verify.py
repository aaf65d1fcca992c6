"""Verifies an archive from what the store says of it, or by reading all of it back.

Stage by stage, each on top of the one before: receipt, tag files, records against each other, listing, content.
Every finding is told, not the first alone.
"""

from __future__ import annotations

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from decamp.bag import MANIFEST, PAYLOAD, TAG_MANIFEST
from decamp.entries import Kind, State, plain_path, shown
from decamp.errors import DamagedArchive
from decamp.findings import Finding
from decamp.index import Index, ObjectRecord
from decamp.memory import load_bag, parse_manifest
from decamp.progress import Progress
from decamp.receipt import Receipt, read_receipt
from decamp.scratch import make_scratch
from decamp.store.client import Store
from decamp.store.failures import StoreRefusal
from decamp.transfer import fetch_to, read_digest

_WORKERS = 8
_RUN_AGAIN = "decamp evacuate on the node, while it is there"
_READ_AGAIN = "decamp evacuate --read-back on the node, while it is there"  # the store may show the old checksum


@dataclass
class Verification:
    """What was verified, and every finding. No findings: the archive holds.

    Attributes:
        objects, size_bytes: payload objects that were verified, and their size.
        read_back_bytes: how much of it was read.
    """

    receipt: Receipt
    findings: list[Finding] = field(default_factory=list)
    objects: int = 0
    size_bytes: int = 0
    read_back_bytes: int = 0


def verify_bag(store: Store, read_back: bool = False, progress: Progress | None = None) -> Verification:
    """Verifies the bag at a location.

    Without `read_back` an object's content counts as proven when the store shows the very checksum that it
    verified on arrival; an object without one is read back in any case.

    Raises:
        MissingReceipt, DamagedReceipt: there is nothing to verify against.
        StoreFailure: the store cannot be reached or trusted.
    """
    progress = progress or Progress()
    receipt = read_receipt(store)
    outcome = Verification(receipt)
    with make_scratch("verify") as directory:
        index = Index(directory / "index.sqlite")
        try:
            if not _verify_tag_files(store, receipt, directory, outcome):
                return outcome
            try:
                load_bag(store, index, (), receipt)
            except DamagedArchive as damage:
                outcome.findings.append(
                    Finding(
                        store.location.url, "the archive's records are damaged", found=str(damage)[:300], run=_RUN_AGAIN
                    )
                )
                return outcome
            _verify_records(store, index, directory, outcome)
            listed = _verify_listing(store, index, outcome)
            _verify_content(store, index, listed, read_back, progress, outcome)
        finally:
            index.close()
    progress.finish()
    return outcome


def _verify_tag_files(store: Store, receipt: Receipt, directory: Path, outcome: Verification) -> bool:
    """Every tag file is the one that the receipt speaks of, by way of the tag manifest."""
    url = store.location.url
    try:
        body = store.get_bytes(TAG_MANIFEST)
    except StoreRefusal as refusal:
        if refusal.status != 404:
            raise
        outcome.findings.append(Finding(f"{url}/{TAG_MANIFEST}", "the tag manifest is missing", run=_RUN_AGAIN))
        return False
    found = hashlib.sha256(body).hexdigest()
    if found != receipt.tag_manifest_sha256:
        outcome.findings.append(
            Finding(
                f"{url}/{TAG_MANIFEST}",
                "the tag manifest was changed",
                f"sha256 {receipt.tag_manifest_sha256}",
                found,
                _RUN_AGAIN,
            )
        )
        return False
    digests = parse_manifest(body)
    if digests.get(MANIFEST) != receipt.manifest_sha256:
        outcome.findings.append(
            Finding(
                f"{url}/{MANIFEST}",
                "the receipt speaks of another manifest",
                f"sha256 {receipt.manifest_sha256}",
                str(digests.get(MANIFEST)),
                _RUN_AGAIN,
            )
        )
    for key, digest in digests.items():
        path = directory / "tag"
        try:
            found = fetch_to(store, key, path)
        except StoreRefusal as refusal:
            if refusal.status != 404:
                raise
            found = "nothing"
        if found != digest:
            outcome.findings.append(
                Finding(f"{url}/{key}", "a tag file is missing or was changed", f"sha256 {digest}", found, _RUN_AGAIN)
            )
        elif key == MANIFEST:
            path.rename(directory / "manifest")
    return not outcome.findings


def _verify_records(store: Store, index: Index, directory: Path, outcome: Verification) -> None:
    """Manifest and objects.jsonl name the same payload, and every entry worth keeping has its content in it."""
    url = store.location.url
    records = index.objects()
    with open(directory / "manifest", "rb") as manifest:
        for line in manifest:
            digest, key = line.decode("utf-8").rstrip("\n").split("  ", 1)
            record = next(records, None)
            if record is None or (record.key, record.sha256.hex()) != (key, digest):
                outcome.findings.append(
                    Finding(
                        f"{url}/{MANIFEST}",
                        "manifest and objects.jsonl differ",
                        key,
                        record.key if record else "nothing",
                        _RUN_AGAIN,
                    )
                )
                return
    extra = next(records, None)
    if extra is not None:
        outcome.findings.append(
            Finding(f"{url}/{MANIFEST}", "the manifest lacks an object", extra.key, "nothing", _RUN_AGAIN)
        )
    bad = (
        f"kind={int(Kind.FILE)} AND tier<2 AND state NOT IN ({int(State.GONE)}, {int(State.LEFT_BEHIND)}) "
        f"AND (state!={int(State.PROVEN)} OR object IS NULL OR sha256 IS NULL OR stored_size!=size)"
    )
    for entry in index.entries(bad):
        outcome.findings.append(
            Finding(
                shown(plain_path(entry.path)),
                "the entry's content is not proven",
                "an object with its digest",
                "none",
                _RUN_AGAIN,
            )
        )
    beyond = (
        "SELECT e.path, e.object FROM entry e LEFT JOIN object o ON o.key=e.object WHERE e.object IS NOT NULL "
        "AND (o.key IS NULL OR coalesce(e.offset, 0)+e.stored_size>o.size "
        "OR (e.offset IS NULL AND (o.sha256!=e.sha256 OR o.size!=e.stored_size)))"
    )
    for path, key in index.query(beyond):
        outcome.findings.append(
            Finding(
                shown(plain_path(path)),
                "the entry's content does not lie in its object",
                key,
                "another size or digest",
                _RUN_AGAIN,
            )
        )


def _verify_listing(store: Store, index: Index, outcome: Verification) -> set[str]:
    """The store lists no payload besides the manifest's; returns the keys of objects that need more than a look."""
    url = store.location.url
    index.take_listing((item.key, item.size_bytes, item.etag) for item in store.list_objects())
    for key in index.unknown_listed(PAYLOAD):
        outcome.findings.append(
            Finding(f"{url}/{key}", "an object that the manifest does not name", "nothing", "an object", _RUN_AGAIN)
        )
    return {record.key for record in index.objects_listed_otherwise() if record.url is None}


def _verify_content(
    store: Store,
    index: Index,
    suspects: set[str],
    read_back: bool,
    progress: Progress,
    outcome: Verification,
) -> None:
    """Every object's content is what the manifest says: attested by the store, or read."""
    total = index.query("SELECT coalesce(sum(size), 0) FROM object").fetchone()[0]
    progress.start("verify", total if read_back else 0)

    def verify(record: ObjectRecord) -> tuple[ObjectRecord, Finding | None, int]:
        url = record.url or f"{store.location.url}/{record.key}"
        place, key = store.elsewhere(record.url) if record.url else (store, record.key)
        stored = place.head(key)
        if stored is None:
            return record, Finding(url, "the object is missing", f"{record.size} bytes", "nothing", _RUN_AGAIN), 0
        if record.checksum is not None and stored.sha256 is not None and stored.sha256 != record.checksum:
            return (
                record,
                Finding(
                    url, "the store attests another content", f"checksum {record.checksum}", stored.sha256, _RUN_AGAIN
                ),
                0,
            )
        attested = record.checksum is not None and stored.sha256 == record.checksum and stored.size_bytes == record.size
        if attested and not read_back and record.key not in suspects:
            progress.advance(record.size, 1)
            return record, None, 0
        digest, size = read_digest(place, key, progress.advance)
        if (digest, size) != (record.sha256, record.size):
            return (
                record,
                Finding(
                    url,
                    "the object's content was changed",
                    f"{record.size} bytes, sha256 {record.sha256.hex()}",
                    f"{size} bytes, sha256 {digest.hex()}",
                    _READ_AGAIN,
                ),
                size,
            )
        return record, None, size

    with ThreadPoolExecutor(_WORKERS) as pool:
        for record, finding, size in pool.map(verify, index.objects()):
            outcome.objects += 1
            outcome.size_bytes += record.size
            outcome.read_back_bytes += size
            if finding is not None:
                outcome.findings.append(finding)
