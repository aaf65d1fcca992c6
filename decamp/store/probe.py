"""Finds out, before the first byte is sent, what a store's answers are worth."""

from __future__ import annotations

import hashlib
import secrets
from dataclasses import dataclass

from decamp.errors import StoreFailure
from decamp.store.client import Store, base64_digest, composite_checksum
from decamp.store.failures import StoreRefusal, StoreUnreachable

PROBE_PREFIX = "decamp/.probe/"
_PART_BYTES = 5 << 20  # the smallest part that S3 allows before the last; a single part may be smaller


@dataclass(frozen=True)
class StoreTraits:
    """What the store was seen to do.

    Attributes:
        checks_puts: it refuses a body that does not match its SHA-256, and keeps one that does.
        checks_parts: the same for the parts of a multipart upload.
        shows_checksums: a HEAD gives back the SHA-256 that an object came with.
    """

    checks_puts: bool
    checks_parts: bool
    shows_checksums: bool

    def document(self) -> dict[str, bool]:
        return {
            "checks_puts": self.checks_puts,
            "checks_parts": self.checks_parts,
            "shows_checksums": self.shows_checksums,
        }


def probe_store(store: Store) -> StoreTraits:
    """Returns what the store attests, after writing, reading, listing and removing a few small objects.

    Raises:
        StoreFailure: it cannot be reached, lacks a permission, or gives back or lists something else than it was
            given: then nothing that it says can be proof.
    """
    try:
        return _probe(store)
    except StoreUnreachable:
        raise
    except StoreFailure as failure:
        if isinstance(failure, StoreRefusal) and not failure.is_damaged_body:
            raise
    return _probe(store)  # one body that was damaged on its way does not make a store that changes what it is given


def _probe(store: Store) -> StoreTraits:
    name = PROBE_PREFIX + secrets.token_hex(8)
    keys = [f"{name}/{number}" for number in range(3)]
    bodies = {key: secrets.token_bytes(256 + number) for number, key in enumerate(keys)}
    try:
        for key, body in bodies.items():
            store.put_bytes(key, body)
        for key, body in list(bodies.items())[:1]:
            found = store.get_bytes(key)
            if found != body:
                raise StoreFailure(
                    f"{store.location.url}/{key}",
                    "the store does not keep what it is given",
                    expected=f"{len(body)} bytes as sent",
                    found=f"{len(found)} other bytes",
                )
        _check_listing(store, name, keys, bodies)
        checks_puts = _refuses_wrong_put(store, f"{name}/wrong")
        shown = store.head(keys[0])
        shows = shown is not None and shown.sha256 == base64_digest(hashlib.sha256(bodies[keys[0]]).digest())
        checks_parts = _refuses_wrong_part(store, f"{name}/parts")
    finally:
        _remove(store, [*keys, f"{name}/wrong", f"{name}/parts"])
    return StoreTraits(checks_puts, checks_parts, shows)


def _check_listing(store: Store, name: str, keys: list[str], bodies: dict[str, bytes]) -> None:
    listed = {item.key: item for item in store.list_objects(name + "/", page_size=2)}
    where = f"{store.location.url}/{name}/"
    if sorted(listed) != keys:
        raise StoreFailure(
            where, "the store's listing cannot be trusted", expected="3 keys over 2 pages", found=f"{len(listed)} keys"
        )
    for key in keys:
        if listed[key].size_bytes != len(bodies[key]):
            raise StoreFailure(
                where,
                "the store's listing cannot be trusted",
                expected=f"size {len(bodies[key])} of {key}",
                found=str(listed[key].size_bytes),
            )


def _refuses_wrong_put(store: Store, key: str) -> bool:
    body = secrets.token_bytes(300)
    try:
        store.put_bytes(key, body, hashlib.sha256(body + b"other").digest())
    except StoreRefusal as refusal:
        if refusal.status in (401, 403) or refusal.status >= 500:
            raise
        return True
    return False


def _refuses_wrong_part(store: Store, key: str) -> bool:
    """A wrong part is refused, and a right one is kept and counted into the composite checksum."""
    upload_id = store.create_upload(key)
    try:
        body = secrets.token_bytes(300)
        digest = hashlib.sha256(body).digest()
        try:
            store.put_part(key, upload_id, 1, body, hashlib.sha256(body + b"other").digest())
            refused = False
        except StoreRefusal as refusal:
            if refusal.status in (401, 403) or refusal.status >= 500:
                raise
            refused = True
        etag = store.put_part(key, upload_id, 1, body, digest).etag
        store.complete_upload(key, upload_id, [(etag, digest)])
    except BaseException:
        store.abort_upload(key, upload_id)
        raise
    stored = store.head(key)
    if stored is None or stored.size_bytes != len(body):
        raise StoreFailure(
            f"{store.location.url}/{key}",
            "the store does not keep what it is given",
            expected=f"{len(body)} bytes",
            found="nothing" if stored is None else str(stored.size_bytes),
        )
    return refused and stored.sha256 in (composite_checksum([digest]), None)


def _remove(store: Store, keys: list[str]) -> None:
    """Clears up; what is left after a failure is removed by the next run, which lists this prefix."""
    for key in keys:
        try:
            store.delete(key)
        except StoreFailure:
            return
