"""The bag: names of payload objects, and the tag files that make the whole a valid BagIt bag (RFC 8493)."""

from __future__ import annotations

import hashlib
import json
import time
import unicodedata
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import decamp
from decamp.census import census_line
from decamp.entries import State, line_encoder
from decamp.index import Index, ObjectRecord
from decamp.packs import PACK_PREFIX
from decamp.rules import GARBAGE, TIERS, Rule
from decamp.store.client import Store, base64_digest
from decamp.transfer import confirm_kept, put_file, retried

KEY_LIMIT_BYTES = 1024  # Amazon S3 User Guide, "Naming Amazon S3 objects" (2026)
NAME_LIMIT_BYTES = 255
PAYLOAD = "data/"
MANIFEST = "manifest-sha256.txt"
TAG_MANIFEST = "tagmanifest-sha256.txt"
BAG_INFO = "bag-info.txt"
FETCH = "fetch.txt"
ENTRIES = "decamp/entries.jsonl"
OBJECTS = "decamp/objects.jsonl"
REPORT = "decamp/report.html"
SYSTEM = "decamp/system/"
RECEIPT = "decamp/receipt.json"
ABANDONED = "decamp/abandoned.json"
_GARBAGE = TIERS.index(GARBAGE)
DECLARATION = b"BagIt-Version: 1.0\nTag-File-Character-Encoding: UTF-8\n"


def plain_key(path: bytes, store: Store) -> str | None:
    """The key under which a file can lie as a plain object, or None where its name has to go into a pack.

    Left out is whatever some store, browser or validator would change: names that are not valid, normalized,
    printable UTF-8; blanks at a name's ends; `%` (BagIt escapes with it) and `\\`; keys over 1,024 bytes.

    Args:
        path: absolute path as bytes.
        store: its location's prefix counts towards the key's length.
    """
    try:
        text = path.decode("utf-8")
    except UnicodeDecodeError:
        return None
    if not text.isprintable() or "%" in text or "\\" in text or not unicodedata.is_normalized("NFC", text):
        return None
    parts = text.lstrip("/").split("/")
    if any(part != part.strip() or part in ("", ".", "..") or len(part.encode()) > NAME_LIMIT_BYTES for part in parts):
        return None
    key = PAYLOAD + "/".join(parts)
    if key.startswith(PACK_PREFIX) or key == PACK_PREFIX.rstrip("/"):
        return None
    return key if len(store.location.key(key).encode()) <= KEY_LIMIT_BYTES else None


def collides(index: Index, key: str) -> bool:
    """Tells whether some object of the bag would be a directory of this key, or this key a directory of it.

    Earlier evacuations may have left a file where a directory is now; on a disk, and in stores that are made of
    directories, only one of them fits.
    """
    parts = key.split("/")
    parents = ["/".join(parts[:count]) for count in range(2, len(parts))]
    if (
        parents
        and index.query(
            f"SELECT 1 FROM object WHERE key IN ({','.join('?' * len(parents))}) LIMIT 1", parents
        ).fetchone()
    ):
        return True
    return (
        index.query("SELECT 1 FROM object WHERE key>=? AND key<? LIMIT 1", (key + "/", key + "0")).fetchone()
        is not None
    )


_SIDE_BY_SIDE = 8


class TagFiles:
    """Writes the tag files of a bag and remembers their digests for the tag manifest.

    Args:
        store: the bag.
        scratch: path prefix on the node for files that are too long for memory; they are removed again.
        is_attested: the store was seen to check what it is given; else every file is read back.

    Attributes:
        digests: SHA-256 of each file.
        stored: size and entity tag of each, for the closing listing.
    """

    def __init__(self, store: Store, scratch: Path, is_attested: bool) -> None:
        self._store = store
        self._scratch = scratch
        self._is_attested = is_attested
        self.digests: dict[str, str] = {}
        self.stored: dict[str, tuple[int, str]] = {}

    def put(self, key: str, body: bytes) -> None:
        digest = hashlib.sha256(body).digest()

        def send() -> None:
            answer = self._store.put_bytes(key, body, digest)
            self._note(key, digest, len(body), answer.etag, answer.sha256 == base64_digest(digest))

        retried(send)

    def put_all(self, bodies: dict[str, bytes]) -> None:
        """Stores several small files side by side."""
        with ThreadPoolExecutor(_SIDE_BY_SIDE) as pool:
            for sent in [pool.submit(self.put, key, body) for key, body in bodies.items()]:
                sent.result()

    def _note(self, key: str, digest: bytes, size_bytes: int, etag: str, is_attested: bool) -> None:
        if not (self._is_attested and is_attested):
            confirm_kept(self._store, key, digest, size_bytes)
        self.digests[key] = digest.hex()
        self.stored[key] = (size_bytes, etag)

    def put_lines(self, key: str, write_lines: Callable[[Callable[[bytes], object]], None]) -> None:
        """Stores a file that `write_lines` writes piece by piece through the function that it is given."""
        path = Path(f"{self._scratch}.{key.rsplit('/', 1)[-1]}")
        digest = hashlib.sha256()
        try:
            with open(path, "wb", buffering=1 << 20) as file:

                def write(piece: bytes) -> None:
                    digest.update(piece)
                    file.write(piece)

                write_lines(write)

            def send() -> None:
                etag, is_attested = put_file(self._store, key, path)
                self._note(key, digest.digest(), path.stat().st_size, etag, is_attested)

            retried(send)
        finally:
            path.unlink(missing_ok=True)


def write_tag_files(tags: TagFiles, index: Index, store: Store, rules: tuple[Rule, ...], machine_id: str) -> str:
    """Stores entries.jsonl, objects.jsonl, the manifest, fetch.txt and bag-info.txt as the index has them now.

    Returns:
        The digest of a census that meets exactly what entries.jsonl lists of the node.
    """
    listed = hashlib.sha256()

    def entries(write: Callable[[bytes], object]) -> None:
        encode = line_encoder(rules)
        for entry in index.entries():
            write(encode(entry))
            if entry.tier != _GARBAGE and entry.state != State.GONE:
                listed.update(census_line(entry))

    payload_bytes = payload_count = 0
    fetched: list[ObjectRecord] = []

    def manifest(write: Callable[[bytes], object]) -> None:
        nonlocal payload_bytes, payload_count
        for record in index.objects():
            payload_bytes += record.size
            payload_count += 1
            if record.url is not None:
                fetched.append(record)
            write(f"{record.sha256.hex()}  {record.key}\n".encode())

    def objects(write: Callable[[bytes], object]) -> None:
        for record in index.objects():
            write(object_line(record))

    tags.put_lines(ENTRIES, entries)
    tags.put_lines(OBJECTS, objects)
    tags.put_lines(MANIFEST, manifest)
    if fetched:
        tags.put(FETCH, "".join(f"{record.url} {record.size} {record.key}\n" for record in fetched).encode())
    elif store.exists(FETCH):
        store.delete(FETCH)
    tags.put("bagit.txt", DECLARATION)
    tags.put(
        BAG_INFO,
        (
            f"Bag-Software-Agent: decamp {decamp.__version__}\n"
            f"Bagging-Date: {time.strftime('%Y-%m-%d', time.gmtime())}\n"
            f"External-Identifier: {store.location.node}\n"
            f"Internal-Sender-Identifier: {machine_id or 'unknown'}\n"
            f"Payload-Oxum: {payload_bytes}.{payload_count}\n"
        ).encode(),
    )
    return listed.hexdigest()


def write_tag_manifest(tags: TagFiles) -> str:
    """Stores the tag manifest, the last file before the receipt; returns its SHA-256."""
    body = "".join(f"{digest}  {key}\n" for key, digest in sorted(tags.digests.items())).encode()
    tags.put(TAG_MANIFEST, body)
    return tags.digests.pop(TAG_MANIFEST)


def object_line(record: ObjectRecord) -> bytes:
    """The line of objects.jsonl for an object of the payload: its digest and the evidence for it."""
    document = {
        "key": record.key,
        "size": record.size,
        "sha256": record.sha256.hex(),
        "etag": record.etag,
        "store_checksum": record.checksum,
        "evidence": record.evidence,
    }
    if record.url is not None:
        document["url"] = record.url
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode() + b"\n"


def parse_object(line: bytes) -> ObjectRecord:
    """The object that a line of objects.jsonl describes; raises ValueError for anything else."""
    try:
        document = json.loads(line)
        sha256 = bytes.fromhex(document["sha256"])
        url = document.get("url")
        if len(sha256) != 32 or not str(document["key"]).startswith(PAYLOAD):
            raise ValueError("no payload object")
        if url is not None and not url.startswith("s3://"):
            raise ValueError(f"url {url!r} is no place in a store")
        return ObjectRecord(
            document["key"],
            int(document["size"]),
            sha256,
            str(document["etag"]),
            document["store_checksum"],
            url,
            str(document["evidence"]),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{type(error).__name__} {error}") from error
