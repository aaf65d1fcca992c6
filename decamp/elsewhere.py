"""Content that lies in the store already, outside the bag: looked for by checksum, never by name."""

from __future__ import annotations

import base64
import sqlite3

from decamp.errors import StoreFailure
from decamp.findings import Finding
from decamp.index import ObjectRecord
from decamp.store.client import Store, base64_digest
from decamp.transfer import read_digest


class ExistingContent:
    """The objects below a spec's `prefer_existing` places.

    Args:
        store: the bag; the places are reached over its connections.
        places: `s3://bucket/prefix/`.
        is_attesting: the store was seen to check and to show checksums, so that the shown ones count.
        doubted: URLs of objects of which they do not count.

    Attributes:
        is_empty: the spec names no such place.
        warnings: places that could not be listed; their content is then copied.
    """

    def __init__(self, store: Store, places: tuple[str, ...], is_attesting: bool, doubted: frozenset[str]) -> None:
        self._store = store
        self._is_attesting = is_attesting
        self._doubted = doubted
        self._database = sqlite3.connect(":memory:" if not places else "", check_same_thread=False)
        self._database.execute(
            "CREATE TABLE existing (url TEXT PRIMARY KEY, size INTEGER, etag TEXT, sha256 BLOB, "
            "evidence TEXT) WITHOUT ROWID"
        )
        self._database.execute("CREATE INDEX existing_size ON existing (size)")
        self.is_empty = not places
        self.warnings: list[Finding] = []
        for place in places:
            self._list(place)

    def _list(self, place: str) -> None:
        other, prefix = self._store.elsewhere(place)
        own = self._store.location.url + "/"
        bucket = place.removeprefix("s3://").partition("/")[0]
        try:
            for item in other.list_objects(prefix):
                url = f"s3://{bucket}/{item.key}"
                if not url.startswith(own) and " " not in url and "\n" not in url and "%" not in url:
                    self._database.execute(
                        "INSERT OR REPLACE INTO existing VALUES (?, ?, ?, NULL, NULL)",
                        (url, item.size_bytes, item.etag),
                    )
        except StoreFailure as failure:
            self.warnings.append(Finding(place, "the place cannot be listed", "its objects", failure.found))

    def has_size(self, size: int) -> bool:
        """Tells whether some object there has this size."""
        return (
            not self.is_empty
            and size > 0
            and self._database.execute("SELECT 1 FROM existing WHERE size=? LIMIT 1", (size,)).fetchone() is not None
        )

    def find(self, key: str, digest: bytes, size: int) -> ObjectRecord | None:
        """Returns a record that names an object with this very content, or None.

        An object counts when the store attests the SHA-256 of its whole content, or after reading it back.

        Args:
            key: the payload key that fetch.txt is to give it.
            digest, size: of the content looked for.
        """
        if not self.has_size(size):
            return None
        name = key.rsplit("/", 1)[-1]
        rows = self._database.execute(
            "SELECT url, etag, sha256, evidence FROM existing WHERE size=? ORDER BY url NOT LIKE '%/' || ?, url",
            (size, name),
        ).fetchall()
        for url, etag, known, evidence in rows:
            if known is None:
                known, evidence = self._attest(url, size)
                self._database.execute("UPDATE existing SET sha256=?, evidence=? WHERE url=?", (known, evidence, url))
            if known == digest:
                checksum = base64_digest(digest) if evidence == "attested" else None
                return ObjectRecord(key, size, digest, etag, checksum, url, evidence)
        return None

    def _attest(self, url: str, size: int) -> tuple[bytes, str]:
        other, key = self._store.elsewhere(url)
        stored = other.head(key)
        if stored is None or stored.size_bytes != size:
            return b"", "missing"
        is_attested = self._is_attesting and url not in self._doubted
        if is_attested and stored.sha256 is not None and "-" not in stored.sha256:
            return base64.b64decode(stored.sha256), "attested"
        digest, found_size = read_digest(other, key)
        return (digest, "read_back") if found_size == size else (b"", "missing")
