"""Multipart uploads that an earlier run left in the bag: continued where their file is as it was, ended elsewhere."""

from __future__ import annotations

from decamp.entries import Entry, State
from decamp.index import Index
from decamp.packs import PACK_PREFIX, PACKED_FILE_LIMIT_BYTES
from decamp.sending import AcceptedPart, ResumedUpload, StartedUpload, upload_identity
from decamp.store.client import Store


class LeftUploads:
    """What can be continued, by the identity of the file's state; used from the thread that owns the index."""

    def __init__(self, store: Store, index: Index) -> None:
        self._store = store
        self._index = index
        self._resumable: dict[str, tuple[str, ResumedUpload]] = {}

    def adopt(self) -> None:
        """Ends multipart uploads that an earlier run left, except those that can be continued."""
        known = {
            (row[0], row[1]): (row[2], row[3])
            for row in self._index.query("SELECT key, upload_id, part_bytes, identity FROM upload")
        }
        live = (
            {
                upload_identity(entry)
                for entry in self._index.entries(f"state={int(State.PENDING)} AND size>{PACKED_FILE_LIMIT_BYTES}")
            }
            if known
            else set()
        )
        for key, upload_id in self._store.list_uploads():
            part_bytes, identity = known.get((key, upload_id), (0, ""))
            if identity in live:
                told = self._index.accepted_parts(upload_id)
                parts = {
                    number: (checksum or told.get((number, etag), ""), etag)
                    for number, (etag, checksum, _) in self._store.list_parts(key, upload_id).items()
                }
                self._resumable[identity] = key, ResumedUpload(upload_id, part_bytes, parts)
            else:
                self._abort(key, upload_id)
        self._index.commit()

    def drop(self) -> None:
        """Ends the multipart uploads that could have been continued and were not needed."""
        while self._resumable:
            _, (key, resumed) = self._resumable.popitem()
            self._abort(key, resumed.upload_id)
        self._index.commit()

    def take(self, entry: Entry, key: str | None) -> tuple[str | None, ResumedUpload | None]:
        """Returns the upload of this very state of a file and the key it is for, or None twice.

        Args:
            entry: the file.
            key: where its content is to lie as a plain object, or None for a pack of its own. An upload to any other
                place is ended.
        """
        started_key, resumed = self._resumable.pop(upload_identity(entry), (None, None))
        if started_key is None or resumed is None:
            return None, None
        if started_key == key or (key is None and started_key.startswith(PACK_PREFIX)):
            return started_key, resumed
        self._abort(started_key, resumed.upload_id)
        return None, None

    def note_started(self, started: StartedUpload) -> None:
        """Remembers an upload, so that the next run can continue it."""
        self._index.execute(
            "INSERT OR REPLACE INTO upload VALUES (?, ?, ?, ?)",
            (started.key, started.upload_id, started.part_bytes, started.identity),
        )
        self._index.commit()

    def note_part(self, part: AcceptedPart) -> None:
        """Remembers a part that the store attested."""
        self._index.execute(
            "INSERT OR REPLACE INTO part VALUES (?, ?, ?, ?)", (part.upload_id, part.number, part.etag, part.checksum)
        )
        self._index.commit()

    def _abort(self, key: str, upload_id: str) -> None:
        self._store.abort_upload(key, upload_id)
        self._index.drop_upload(key, upload_id)
