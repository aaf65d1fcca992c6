"""A record that a person gave a node up holds for that very machine, for a day, and for nothing else."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from datetime import datetime, timedelta, timezone

from decamp.errors import DamagedArchive, NotSafe
from decamp.store.client import Store

# A node that was silent may come back and be worked on again: what was given up must not stay given up for ever.
VALID_FOR = timedelta(hours=24)
_CLOCK_SKEW = timedelta(minutes=10)


@dataclass(frozen=True)
class Abandonment:
    """Who gave which machine up, when and why; `at` is RFC 3339."""

    node: str
    host_key: str
    machine_id: str
    reason: str
    who: str
    at: str


class Outdated(NotSafe):
    """The node was abandoned, but too long ago for the record to hold."""


def find_key(host_key: str, machine_id: str) -> str:
    """The record's key, beside the receipt: one for each machine that ever had the node's name."""
    identity = hashlib.sha256(f"{host_key}\n{machine_id}".encode()).hexdigest()
    return f"decamp/abandoned/{identity[:32]}.json"


def write_record(store: Store, record: Abandonment) -> str:
    """Writes the record to the node's place in the store and returns its key.

    Raises:
        StoreFailure: it could not be written.
    """
    key = find_key(record.host_key, record.machine_id)
    store.put_bytes(key, json.dumps(asdict(record), indent=2, ensure_ascii=False).encode() + b"\n")
    return key


def find_record(store: Store, node: str, host_key: str, machine_id: str) -> Abandonment | None:
    """Returns the record for exactly this machine under this name, or None when it was not abandoned.

    Raises:
        StoreFailure: the store does not answer.
        DamagedArchive: there is a record that cannot be read or is about another machine.
        Outdated: the record is older than a day.
    """
    key = find_key(host_key, machine_id)
    where = f"{store.location.url}/{key}"
    if not store.exists(key):
        return None
    try:
        record = Abandonment(**json.loads(store.get_bytes(key)))
        at = datetime.fromisoformat(record.at)
        age = datetime.now(timezone.utc) - at
    except (ValueError, TypeError) as error:
        raise DamagedArchive(where, "not a record of an abandoned node", found=str(error)) from None
    if (record.node, record.host_key, record.machine_id) != (node, host_key, machine_id):
        raise DamagedArchive(where, "about another machine", expected=machine_id, found=record.machine_id)
    if not -_CLOCK_SKEW <= age <= VALID_FOR:
        raise Outdated(
            where,
            "the node was abandoned, but the record no longer holds",
            expected=f"one of the last {VALID_FOR // timedelta(hours=1)} hours",
            found=record.at,
        )
    return record
