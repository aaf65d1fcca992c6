"""Lists what an archive holds."""

from __future__ import annotations

import time
from collections.abc import Callable

from decamp.entries import Entry, Kind, entry_document, plain_path, shown
from decamp.index import Index
from decamp.memory import load_bag
from decamp.receipt import MissingReceipt, Receipt, read_receipt
from decamp.rules import TIERS
from decamp.scratch import make_scratch
from decamp.store.client import Store

_LETTERS = {
    Kind.FILE: "-",
    Kind.DIRECTORY: "d",
    Kind.SYMLINK: "l",
    Kind.SOCKET: "s",
    Kind.FIFO: "p",
    Kind.BLOCK_DEVICE: "b",
    Kind.CHARACTER_DEVICE: "c",
}


def list_bag(store: Store, take: Callable[[Entry], None]) -> Receipt | None:
    """Gives every entry of an archive to `take`, by path; returns the receipt, or None for an unfinished archive.

    Raises:
        DamagedArchive: the records are not the ones that the receipt speaks of.
        MissingReceipt: there is no archive at all.
    """
    try:
        receipt: Receipt | None = read_receipt(store)
    except MissingReceipt:
        if not store.exists("decamp/entries.jsonl"):
            raise
        receipt = None
    with make_scratch("ls") as directory:
        index = Index(directory / "index.sqlite")
        try:
            load_bag(store, index, (), receipt)
            for entry in index.entries():
                take(entry)
        finally:
            index.close()
    return receipt


def entry_row(entry: Entry) -> str:
    """An entry as a line for people."""
    kind = Kind(entry.kind)
    mtime_s = entry.mtime_ns // 1_000_000_000
    try:
        stamp = time.strftime("%Y-%m-%d %H:%M", time.gmtime(mtime_s))
    except (OverflowError, OSError, ValueError):  # a file can have a time that no calendar has
        stamp = f"@{mtime_s}"
    arrow = f" -> {shown(entry.link)}" if entry.link is not None else ""
    state = str(entry_document(entry, ())["state"])
    return (
        f"{_LETTERS[kind]}{entry.mode:04o} {TIERS[entry.tier]:<13} {state:<11} {entry.size:>14,} {stamp} "
        f"{shown(plain_path(entry.path))}{arrow}"
    )
