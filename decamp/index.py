"""What is known of a bag and its workspace, in an SQLite file beside neither: the memory of an evacuation.

The store is the truth. The index makes a rerun cheap: it remembers which content, read from which file at which
time, the store has taken. Before any of that counts, the store's own listing has to agree (see `decamp.bag`), and
a lost or foreign index is rebuilt from the bag.

An index that is kept between runs is a checked file; `decamp.index_file` says how.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from decamp.entries import Entry, Kind, State
from decamp.errors import DecampError
from decamp.index_file import digest_path, has_its_digest, keep_digest, remove_index
from decamp.index_rows import INSERT_ENTRY, SCHEMA, SCHEMA_VERSION, SELECT_ENTRY, entry_of, row_of


@dataclass(frozen=True)
class ObjectRecord:
    """An object of the bag's payload, and what proves it.

    Attributes:
        key: relative to the bag, `data/...`.
        size, sha256: of its content; the digest as bytes.
        etag: as the store told it.
        checksum: base64 SHA-256 that the store attests, composite for a multipart upload; None where it has none.
        url: where it really is, for payload that was in the store already and is named in fetch.txt; else None.
        evidence: `attested` (the store refused what did not match), `read_back` (read again and hashed).
    """

    key: str
    size: int
    sha256: bytes
    etag: str
    checksum: str | None
    url: str | None
    evidence: str


_DOUBTED_FACT = "doubted"


class BusyIndex(DecampError):
    """Another evacuation of the same bag is running on this machine."""


class Index:
    """The index of one bag. Used from one thread.

    Args:
        path: the SQLite file; made where there is none.
        is_kept: it is kept between runs, with its digest; else it serves one command and is removed.

    Raises:
        sqlite3.Error: it cannot be opened or written.
        OSError: its digest cannot be written.
    """

    def __init__(self, path: Path, *, is_kept: bool = False) -> None:
        self.path = path
        self._is_kept = is_kept
        if is_kept and not has_its_digest(path):
            remove_index(path)
        self._connection = self._connect(path)
        self._reader: sqlite3.Connection | None = None
        if is_kept:
            self._connection.execute("PRAGMA wal_autocheckpoint=0")
            if not digest_path(path).exists():
                self._bring_in_log()
            # The last connection to close moves the log to the main file, unless it may only read.
            self._reader = self.snapshot()
            self._reader.execute("SELECT 1 FROM sqlite_master").fetchall()

    @staticmethod
    def _connect(path: Path) -> sqlite3.Connection:
        for attempt in (1, 2):
            connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            try:
                connection.execute("PRAGMA journal_mode=WAL")
                connection.execute("PRAGMA synchronous=NORMAL")
                connection.execute("PRAGMA cache_size=-16384")
                version = connection.execute("PRAGMA user_version").fetchone()[0]
                if version == SCHEMA_VERSION:
                    return connection
                if version == 0 and not connection.execute("SELECT 1 FROM sqlite_master").fetchone():
                    connection.executescript(f"BEGIN;{SCHEMA}PRAGMA user_version={SCHEMA_VERSION};COMMIT;")
                    return connection
            except sqlite3.DatabaseError:
                if attempt == 2:
                    raise
            connection.close()
            remove_index(path)  # unreadable or of another version: the bag has all of it
        raise AssertionError("unreachable")

    def close(self, *, is_settled: bool = True) -> None:
        """Closes the index.

        Args:
            is_settled: the bag has all that the index says. Else the log stays as it is, for the next run: nothing
                that happens here can cost what this one proved.
        """
        log = Path(f"{self.path}-wal")
        try:
            self.commit()
            if self._is_kept and is_settled and log.exists() and log.stat().st_size:
                self._bring_in_log()
        finally:
            self._connection.close()
            if self._reader is not None:
                self._reader.close()

    def _bring_in_log(self) -> None:
        """Moves what the log holds to the main file, and keeps the new digest.

        A kill in between leaves a file with another digest, and the next run builds the index anew from the bag.
        """
        is_busy, *_ = self._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        if is_busy:
            raise sqlite3.OperationalError("another connection reads the index")
        keep_digest(self.path)

    # Transactions: writes gather in one and are made durable by commit().

    def _begin(self) -> None:
        if not self._connection.in_transaction:
            self._connection.execute("BEGIN")

    def commit(self) -> None:
        if self._connection.in_transaction:
            self._connection.execute("COMMIT")

    def roll_back(self) -> None:
        """Forgets what was written since the last commit: a run that is broken off may be amid several statements."""
        if self._connection.in_transaction:
            self._connection.execute("ROLLBACK")

    def execute(self, statement: str, arguments: Iterable[object] = ()) -> sqlite3.Cursor:
        """Runs a statement that writes, inside the open transaction."""
        self._begin()
        return self._connection.execute(statement, tuple(arguments))

    def query(self, statement: str, arguments: Iterable[object] = ()) -> sqlite3.Cursor:
        return self._connection.execute(statement, tuple(arguments))

    def snapshot(self) -> sqlite3.Connection:
        """A second connection that sees what is committed now and is not disturbed by later writes."""
        self.commit()
        connection = sqlite3.connect(
            f"file:{self.path}?mode=ro", uri=True, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA cache_size=-4096")
        return connection

    # Facts about the bag as a whole.

    def fact(self, name: str) -> str | None:
        row = self.query("SELECT value FROM meta WHERE name=?", (name,)).fetchone()
        return row[0] if row else None

    def set_fact(self, name: str, value: str | None) -> None:
        if value is None:
            self.execute("DELETE FROM meta WHERE name=?", (name,))
        else:
            self.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (name, value))

    def clear(self) -> None:
        """Forgets everything; what follows is built anew from the bag and the workspace."""
        for table in ("meta", "entry", "object", "upload", "part", "held"):
            self.execute(f"DELETE FROM {table}")
        self.execute("DROP INDEX IF EXISTS entry_sha256")
        self.execute("DROP INDEX IF EXISTS entry_size")
        self.commit()

    # Entries.

    def put_entries(self, entries: Iterable[Entry]) -> None:
        self._begin()
        self._connection.executemany(INSERT_ENTRY, (row_of(entry) for entry in entries))

    def entries(self, where: str = "", arguments: Iterable[object] = ()) -> Iterator[Entry]:
        """Yields entries by path; `where` is a condition with its own ORDER BY where another order is wanted."""
        order = "" if "ORDER BY" in where else " ORDER BY path"
        condition = f" WHERE {where}" if where else ""
        for row in self._connection.execute(f"{SELECT_ENTRY}{condition}{order}", tuple(arguments)):
            yield entry_of(row)

    def batches(self, where: str, arguments: tuple[object, ...] = (), size: int = 2000) -> Iterator[list[Entry]]:
        """Yields lists of matching entries by path; entries may be changed between two lists."""
        last = b""
        while True:
            rows = [
                entry_of(row)
                for row in self._connection.execute(
                    f"{SELECT_ENTRY} WHERE ({where}) AND path > ? ORDER BY path LIMIT ?", (*arguments, last, size)
                )
            ]
            if not rows:
                return
            last = rows[-1].path
            yield rows

    def set_stored(self, rows: Iterable[tuple[bytes, str, int | None, int, str | None, bytes]]) -> None:
        """Marks entries PROVEN; each row is sha256, object key, offset, stored size, checks as JSON, path."""
        self._begin()
        self._connection.executemany(
            f"UPDATE entry SET state={int(State.PROVEN)}, sha256=?, object=?, offset=?, stored_size=?, checks=? "
            "WHERE path=?",
            rows,
        )

    def forget_content(self, path: bytes, key: str) -> None:
        """Says that an entry's object is about to be written anew, so that nobody relies on what it held."""
        self.execute("UPDATE entry SET sha256=NULL, object=NULL, offset=NULL, stored_size=NULL WHERE path=?", (path,))
        self.execute("DELETE FROM object WHERE key=?", (key,))

    def set_state(self, path: bytes, state: State) -> None:
        self.execute("UPDATE entry SET state=? WHERE path=?", (int(state), path))

    def hold(self, paths: Iterable[bytes]) -> None:
        """Remembers files that somebody could write to while they were read; see release_held."""
        self._begin()
        self._connection.executemany("INSERT OR IGNORE INTO held VALUES (?)", ((path,) for path in paths))
        self.commit()

    def release_held(self) -> None:
        """Makes files that were held by a writer pending: what was read then counts for nothing, whatever they show.

        A write through a mapping that is dirty already leaves size and times as they are.
        """
        self.execute(
            f"UPDATE entry SET state={int(State.PENDING)} WHERE kind={int(Kind.FILE)} AND state={int(State.PROVEN)} "
            "AND path IN (SELECT path FROM held)"
        )
        self.execute("DELETE FROM held")
        self.commit()

    def group_hard_links(self) -> None:
        """Makes the first name of every hard-linked file that is worth keeping stand for its other names."""
        kind, left = int(Kind.FILE), int(State.LEFT_BEHIND)
        gone = int(State.GONE)
        self.execute("UPDATE entry SET hardlink=NULL WHERE hardlink IS NOT NULL AND state!=?", (gone,))
        linked = f"kind={kind} AND nlink>1 AND state NOT IN ({left}, {gone})"
        self.execute("DROP TABLE IF EXISTS temp.first_name")
        # The names of one inode share its ctime; a row of a file that is gone, whose inode is reused, does not.
        self.execute(
            "CREATE TEMP TABLE first_name (dev INTEGER, ino INTEGER, ctime_ns INTEGER, path BLOB, "
            "PRIMARY KEY (dev, ino, ctime_ns))"
        )
        self.execute(
            f"INSERT INTO first_name SELECT dev, ino, ctime_ns, min(path) FROM entry WHERE {linked} "
            "GROUP BY dev, ino, ctime_ns HAVING count(*) > 1"
        )
        self.execute(
            f"UPDATE entry SET hardlink=f.path FROM first_name f WHERE {linked} "
            "AND entry.dev=f.dev AND entry.ino=f.ino AND entry.ctime_ns=f.ctime_ns AND entry.path!=f.path"
        )
        self.execute("DROP TABLE temp.first_name")

    def settle_hard_links(self) -> None:
        """Gives every further name of a hard-linked file the content, and the proof, of its first name."""
        self.execute(
            "UPDATE entry SET (state, sha256, object, offset, stored_size, checks) = "
            "(SELECT f.state, f.sha256, f.object, f.offset, f.stored_size, f.checks FROM entry f "
            "WHERE f.path=entry.hardlink) WHERE hardlink IS NOT NULL AND state!=?",
            (int(State.GONE),),
        )

    def build_content_lookup(self) -> None:
        """Makes find_content quick; worth its while only where there is earlier content to find."""
        self.execute("CREATE INDEX IF NOT EXISTS entry_sha256 ON entry (sha256) WHERE object IS NOT NULL")
        self.execute("CREATE INDEX IF NOT EXISTS entry_size ON entry (stored_size) WHERE object IS NOT NULL")

    def find_content(self, sha256: bytes, size: int) -> tuple[str, int | None] | None:
        """Returns object key and offset of content that the bag holds already, or None; see build_content_lookup."""
        row = self.query(
            "SELECT object, offset FROM entry WHERE sha256=? AND object IS NOT NULL AND stored_size=? "
            "AND EXISTS (SELECT 1 FROM object o WHERE o.key=entry.object) ORDER BY offset IS NULL LIMIT 1",
            (sha256, size),
        ).fetchone()
        if row is not None:
            return row[0], row[1]
        return None

    def has_content_of_size(self, size: int) -> bool:
        """Tells whether hashing a file of this size before it is sent could save sending it."""
        return (
            self.query("SELECT 1 FROM entry WHERE stored_size=? AND object IS NOT NULL LIMIT 1", (size,)).fetchone()
            is not None
        )

    def is_referred_to(self, key: str, besides: bytes) -> bool:
        """Tells whether an entry other than the given one keeps its content in the object."""
        row = self.query("SELECT 1 FROM entry WHERE object=? AND path!=? LIMIT 1", (key, besides)).fetchone()
        return row is not None

    # Objects.

    def put_object(self, record: ObjectRecord) -> None:
        self.execute(
            "INSERT OR REPLACE INTO object VALUES (?, ?, ?, ?, ?, ?, ?)",
            (record.key, record.size, record.sha256, record.etag, record.checksum, record.url, record.evidence),
        )

    def objects(self) -> Iterator[ObjectRecord]:
        for row in self.query("SELECT key, size, sha256, etag, checksum, url, evidence FROM object ORDER BY key"):
            yield ObjectRecord(*row)

    def object(self, key: str) -> ObjectRecord | None:
        row = self.query(
            "SELECT key, size, sha256, etag, checksum, url, evidence FROM object WHERE key=?", (key,)
        ).fetchone()
        return ObjectRecord(*row) if row else None

    def doubt(self, place: str) -> None:
        """Remembers an object, by its key or its URL elsewhere, that was read back as something else than was sent."""
        self.set_fact(_DOUBTED_FACT, json.dumps(sorted({*self.doubted(), place})))

    def doubted(self) -> frozenset[str]:
        """Objects whose checksum, as the store shows it, counts for nothing."""
        return frozenset(json.loads(self.fact(_DOUBTED_FACT) or "[]"))

    def drop_unused_elsewhere(self) -> None:
        """Forgets payload elsewhere in the store that no entry refers to any more; nothing of the bag is lost by it."""
        if self.query("SELECT 1 FROM object WHERE url IS NOT NULL LIMIT 1").fetchone():
            used = "SELECT object FROM entry WHERE object IS NOT NULL"
            self.execute(f"DELETE FROM object WHERE url IS NOT NULL AND key NOT IN ({used})")

    # What the store's listing showed, beside what the index says. Stores list in different orders, so it is joined.

    def take_listing(self, items: Iterable[tuple[str, int, str]]) -> None:
        """Keeps a listing of the bag, as key, size and entity tag, for the questions below."""
        self.execute(
            "CREATE TEMP TABLE IF NOT EXISTS listed (key TEXT PRIMARY KEY, size INTEGER, etag TEXT) WITHOUT ROWID"
        )
        self.execute("DELETE FROM listed")
        self._connection.executemany("INSERT OR REPLACE INTO listed VALUES (?, ?, ?)", items)

    def listed(self, prefix: str = "") -> Iterator[tuple[str, int, str]]:
        """Yields what was listed below a prefix, by key."""
        yield from self.query(
            "SELECT key, size, etag FROM listed WHERE key>=? AND substr(key, 1, ?)=? ORDER BY key",
            (prefix, len(prefix), prefix),
        )

    def objects_listed_otherwise(self) -> list[ObjectRecord]:
        """Returns the objects that were not listed, or with another size or entity tag, or that lie elsewhere."""
        rows = self.query(
            "SELECT o.key, o.size, o.sha256, o.etag, o.checksum, o.url, o.evidence FROM object o "
            "LEFT JOIN listed l ON l.key=o.key "
            "WHERE l.key IS NULL OR o.url IS NOT NULL OR l.size!=o.size OR l.etag!=o.etag ORDER BY o.key"
        )
        return [ObjectRecord(*row) for row in rows]

    def unknown_listed(self, prefix: str) -> Iterator[str]:
        """Yields the keys that were listed below a prefix and are no objects that the index knows."""
        for key, _, _ in list(self.listed(prefix)):
            if self.query("SELECT 1 FROM object WHERE key=?", (key,)).fetchone() is None:
                yield key

    def drop_object(self, key: str) -> None:
        """Forgets an object that the store does not have as it was: what lay in it is to be proven again.

        No row may point to it any more, whatever its state: rows are where content is looked for.
        """
        proven, pending = int(State.PROVEN), int(State.PENDING)
        self.execute("DELETE FROM entry WHERE object=? AND state=?", (key, int(State.GONE)))
        self.execute(
            f"UPDATE entry SET state=CASE state WHEN {proven} THEN {pending} ELSE state END, "
            "sha256=NULL, object=NULL, offset=NULL, stored_size=NULL WHERE object=?",
            (key,),
        )
        self.execute("DELETE FROM object WHERE key=?", (key,))

    # Multipart uploads that are under way.

    def accepted_parts(self, upload_id: str) -> dict[tuple[int, str], str]:
        """Returns the checksums that the store attested when it took parts, by number and entity tag."""
        rows = self.query("SELECT number, etag, checksum FROM part WHERE upload_id=?", (upload_id,))
        return {(number, etag): checksum for number, etag, checksum in rows}

    def drop_upload(self, key: str, upload_id: str | None = None) -> None:
        """Forgets the uploads of a key, or one of them, that were completed or ended."""
        condition, values = "key=?", [key]
        if upload_id is not None:
            condition, values = "key=? AND upload_id=?", [key, upload_id]
        self.execute(f"DELETE FROM part WHERE upload_id IN (SELECT upload_id FROM upload WHERE {condition})", values)
        self.execute(f"DELETE FROM upload WHERE {condition}", values)
