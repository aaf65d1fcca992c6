"""Brings an index in line with the bag in the store before a run: trusted, continued, or built anew from the bag."""

from __future__ import annotations

import hashlib
import sqlite3
from collections.abc import Callable
from pathlib import Path

from decamp.bag import ENTRIES, OBJECTS, TAG_MANIFEST, parse_object
from decamp.entries import Kind, State, parse_entry
from decamp.errors import DamagedArchive
from decamp.findings import Finding
from decamp.host import HostIdentity
from decamp.index import Index
from decamp.receipt import DamagedReceipt, Receipt, find_receipt, parse_receipt
from decamp.rules import Rule
from decamp.store.client import Store
from decamp.store.failures import StoreRefusal
from decamp.transfer import fetch_to

RECEIPT_FACT = "receipt_sha256"
PROGRESS_FACT = "in_progress"
_BATCH = 2000
# What is no line of ours: no JSON, or too deep for it; a value too large for the index, or of no type of its.
_NOT_UNDERSTOOD = (
    ValueError,
    OverflowError,
    RecursionError,
    sqlite3.IntegrityError,
    sqlite3.InterfaceError,
    sqlite3.ProgrammingError,
)


def recall(
    store: Store, index: Index, rules: tuple[Rule, ...], identity: HostIdentity, warnings: list[Finding]
) -> Receipt | None:
    """Makes the index say what the bag says; returns the bag's receipt where it has a good one.

    Afterwards an entry is PROVEN only when it was proven on this very machine, and only until the walk finds it
    changed or the listing finds its object gone.
    """
    body = find_receipt(store)
    receipt = None
    if body is not None:
        try:
            receipt = parse_receipt(body, store.location.url)
        except DamagedReceipt as damage:
            warnings.append(Finding(damage.where, damage.what, damage.expected, damage.found))
    if receipt is not None and index.fact(RECEIPT_FACT) == receipt.sha256:
        return receipt
    if body is None and index.fact(PROGRESS_FACT) == identity.machine_id + ":":
        return None
    index.clear()
    trusted = (
        receipt is not None
        and receipt.machine_id == identity.machine_id != ""
        and receipt.store_url == store.location.url
    )
    try:
        load_bag(store, index, rules, receipt)
    except DamagedArchive as damage:
        index.clear()
        warnings.append(
            Finding(
                store.location.url,
                "the archive's own records are damaged; everything is read anew",
                found=str(damage)[:300],
            )
        )
        return None
    if not trusted:
        index.execute(
            "UPDATE entry SET state=? WHERE kind=? AND state=?", (int(State.PENDING), int(Kind.FILE), int(State.PROVEN))
        )
        index.commit()
        return None
    return receipt


def load_bag(store: Store, index: Index, rules: tuple[Rule, ...], receipt: Receipt | None) -> None:
    """Fills an empty index from the bag's entries.jsonl and objects.jsonl; leaves it empty where there are none.

    Args:
        receipt: when given, both files have to be the ones that it speaks of.

    Raises:
        DamagedArchive: they are not, or a line cannot be understood.
    """
    try:
        _load(store, index, rules, receipt)
    except _NOT_UNDERSTOOD as error:
        found = f"{type(error).__name__} {error}"[:300]
        raise DamagedArchive(store.location.url, "the archive's records cannot be understood", found=found) from error


def _load(store: Store, index: Index, rules: tuple[Rule, ...], receipt: Receipt | None) -> None:
    digests = _tag_digests(store, receipt)
    numbers = {rule.match: number for number, rule in reversed(list(enumerate(rules)))}

    def take_objects(line: bytes) -> None:
        index.put_object(parse_object(line))

    batch = []

    def take_entry(line: bytes) -> None:
        batch.append(parse_entry(line, numbers))
        if len(batch) >= _BATCH:
            index.put_entries(batch)
            batch.clear()

    if not _read_lines(store, index, OBJECTS, digests, take_objects):
        return
    _read_lines(store, index, ENTRIES, digests, take_entry)
    index.put_entries(batch)
    # Without a receipt the two files can be of different runs: content counts only where both agree.
    lost = (
        f"UPDATE entry SET state=CASE WHEN kind={int(Kind.FILE)} AND state={int(State.PROVEN)} "
        f"THEN {int(State.PENDING)} ELSE state END, sha256=NULL, object=NULL, offset=NULL, stored_size=NULL "
        "WHERE object IS NOT NULL AND "
    )
    index.execute(lost + "object NOT IN (SELECT key FROM object)")
    index.execute(lost + "offset IS NULL AND sha256 IS NOT (SELECT o.sha256 FROM object o WHERE o.key=entry.object)")
    index.commit()


def _tag_digests(store: Store, receipt: Receipt | None) -> dict[str, str] | None:
    if receipt is None:
        return None
    try:
        body = store.get_bytes(TAG_MANIFEST)
    except StoreRefusal as refusal:
        raise DamagedArchive(
            f"{store.location.url}/{TAG_MANIFEST}", "the tag manifest cannot be read", found=refusal.found
        ) from refusal
    found = hashlib.sha256(body).hexdigest()
    if found != receipt.tag_manifest_sha256:
        raise DamagedArchive(
            f"{store.location.url}/{TAG_MANIFEST}",
            "the tag manifest was changed",
            expected=f"sha256 {receipt.tag_manifest_sha256}",
            found=found,
        )
    return parse_manifest(body)


def parse_manifest(body: bytes) -> dict[str, str]:
    """The digests of a small manifest, by file."""
    lines = (line.split(None, 1) for line in body.decode("utf-8").splitlines() if line)
    return {name: digest for digest, name in lines}


def _read_lines(
    store: Store, index: Index, key: str, digests: dict[str, str] | None, take: Callable[[bytes], None]
) -> bool:
    path = Path(f"{index.path}.{key.rsplit('/', 1)[-1]}")
    try:
        try:
            found = fetch_to(store, key, path)
        except StoreRefusal as refusal:
            if refusal.code not in ("NoSuchKey", "404"):
                raise
            if digests is not None:
                raise DamagedArchive(f"{store.location.url}/{key}", "a file of the archive is missing") from refusal
            return False
        if digests is not None and digests.get(key) != found:
            raise DamagedArchive(
                f"{store.location.url}/{key}",
                "a file of the archive was changed",
                expected=f"sha256 {digests.get(key)}",
                found=found,
            )
        with open(path, "rb") as file:
            for line in file:
                take(line)
        return True
    finally:
        path.unlink(missing_ok=True)
