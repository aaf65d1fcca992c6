"""The proof: tag files, a closing listing and a closing walk, and the receipt when all of it agrees."""

from __future__ import annotations

import json
import time
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import decamp
from decamp.agreement import agree, drop
from decamp.bag import RECEIPT, REPORT, SYSTEM, TagFiles, write_tag_files, write_tag_manifest
from decamp.census import Census
from decamp.checking import failed_checks
from decamp.entries import State, plain_path, shown
from decamp.errors import StoreFailure
from decamp.findings import Finding
from decamp.hindrances import writer_findings
from decamp.host import HostIdentity, read_mounts
from decamp.index import Index
from decamp.memory import PROGRESS_FACT, RECEIPT_FACT
from decamp.mounts import mount_findings
from decamp.outcome import SAFE, Outcome
from decamp.progress import Progress
from decamp.receipt import FORMAT, parse_receipt, seal
from decamp.report import check_summary, left_behind, render_report
from decamp.spec import Spec
from decamp.store.client import Store
from decamp.store.probe import StoreTraits
from decamp.transfer import read_digest

TAGS_FACT = "tags"
_RECEIPT_ATTEMPTS = 3


@dataclass
class Proving:
    """What one run's proof rests on.

    Attributes:
        spec, spec_path, store, index, identity: of this run.
        progress: where progress is told.
        outcome: gets reasons and, at the end, the receipt.
        read_back: read every object back, whatever the store attests.
        started_at: RFC 3339.
        system: the record of the node's system, in the making or made.
    """

    spec: Spec
    spec_path: str
    store: Store
    index: Index
    identity: HostIdentity
    progress: Progress
    outcome: Outcome
    read_back: bool
    started_at: str
    system: Future[dict[str, bytes]]

    def prove(
        self, census: Census, standing: list[Finding], unreadable: dict[bytes, Finding], traits: StoreTraits
    ) -> bool:
        """Proves what the last copy brought about, and writes the receipt when nothing stands against it.

        Args:
            census: the walk before the copy; the closing walk has to find the same.
            standing: reasons that were found by then.
            unreadable: what is known of entries that could not be read, by path as the index has it.

        Returns:
            False when something changed meanwhile, so that another round is due. Reasons that no round can mend
            are added to the outcome, and True is returned.
        """
        outcome, index = self.outcome, self.index
        refusing, outcome.marked = failed_checks(index, self.spec.rules)
        unread = [
            unreadable.get(entry.path) or Finding(shown(plain_path(entry.path)), "the entry cannot be read")
            for entry in index.entries(f"state={int(State.UNREADABLE)}")
        ]
        self.progress.start("prove")
        tags, tag_manifest_sha256, listed_sha256 = self.write_tags(traits)
        if not self._is_in_the_store(tags):
            return False
        if self.read_back:
            self.read_everything_back()
        closing = Census(self.spec, read_mounts())
        for _ in closing.walk():
            pass
        if closing.sha256 != census.sha256 or closing.findings != census.findings:
            return False
        if closing.mounts_of_roots() != census.mounts_of_roots():
            return False
        if mount_findings(self.spec, census.mounts(), closing, index, "before"):
            return False
        for reason in (*standing, *writer_findings(self.spec, index), *refusing, *unread):
            if reason not in outcome.reasons:
                outcome.reasons.append(reason)
        if not outcome.reasons:
            if listed_sha256 != census.sha256:
                return False  # entries.jsonl is not the list of what the walk met
            return self._write_receipt(census, tags, tag_manifest_sha256, traits)
        return True

    def _is_in_the_store(self, tags: TagFiles) -> bool:
        """Whether a listing shows what the index has and the tag files say, and nothing else."""
        agreement = agree(self.store, self.index)
        self.outcome.warnings.extend(agreement.warnings)
        if agreement.dropped or agreement.adopted:
            return False
        return all(agreement.tags.get(key) == value for key, value in tags.stored.items())

    def write_tags(self, traits: StoreTraits) -> tuple[TagFiles, str, str]:
        """Stores the tag files of the bag as the index has it now.

        Returns:
            The files, the tag manifest's SHA-256, and the digest of a census that meets what entries.jsonl lists.
        """
        self.index.drop_unused_elsewhere()
        tags = TagFiles(self.store, self.index.path, traits.checks_puts and traits.checks_parts and not self.read_back)
        tags.put_all({SYSTEM + name: content for name, content in self.system.result().items()})
        listed = write_tag_files(tags, self.index, self.store, self.spec.rules, self.identity.machine_id)
        tags.put(REPORT, render_report(self.outcome, self.index, self.spec, self.identity))
        digest = write_tag_manifest(tags)
        return tags, digest, listed

    def read_everything_back(self) -> None:
        """Reads every object of the payload; one with other content is a reason, and is sent anew by the next run.

        An answer can be damaged too, so it looks twice before it says so.
        """
        total = self.index.query("SELECT coalesce(sum(size), 0) FROM object").fetchone()[0]
        self.progress.start("read back", total)
        for record in list(self.index.objects()):
            store, key = self.store.elsewhere(record.url) if record.url else (self.store, record.key)
            wanted = record.sha256, record.size
            found = read_digest(store, key, self.progress.advance)
            if found != wanted and (found := read_digest(store, key)) != wanted:
                digest, size = found
                self.outcome.reasons.append(
                    Finding(
                        f"{self.store.location.url}/{record.key}",
                        "the store holds something else than was sent",
                        f"{record.size} bytes, sha256 {record.sha256.hex()}",
                        f"{size} bytes, sha256 {digest.hex()}",
                        "the same command again: it sends the object anew",
                    )
                )
                self.outcome.warnings.extend(drop(self.index, record.key))
                self.index.doubt(record.url or record.key)
        self.index.commit()

    def _write_receipt(self, census: Census, tags: TagFiles, tag_manifest_sha256: str, traits: StoreTraits) -> bool:
        """Stores the receipt; returns False, and takes it back, where the archive is not what it speaks of any more."""
        outcome, index, store = self.outcome, self.index, self.store
        evidence = {
            row[0]: {"objects": row[1], "bytes": row[2]}
            for row in index.query("SELECT evidence, count(*), sum(size) FROM object GROUP BY evidence")
        }
        document: dict[str, Any] = {
            "format": FORMAT,
            "software": f"decamp {decamp.__version__}",
            "verdict": SAFE,
            "node": store.location.node,
            "store": store.location.url,
            "host": {"machine_id": self.identity.machine_id, "host_keys": list(self.identity.host_keys)},
            "started_at": self.started_at,
            "finished_at": utc_now(),
            "spec": self.spec.document,
            "spec_path": self.spec_path,
            "spec_sha256": self.spec.sha256,
            **census.mounts(),
            "census_sha256": census.sha256,
            "entries": census.entries,
            "manifest_sha256": tags.digests["manifest-sha256.txt"],
            "tag_manifest_sha256": tag_manifest_sha256,
            "totals": {name: {"entries": tier.entries, "bytes": tier.bytes} for name, tier in outcome.tiers.items()},
            "left_behind": left_behind(index, self.spec),
            "evidence": evidence,
            "read_back": self.read_back,
            "store_traits": traits.document(),
            "checks": check_summary(index),
            "marked": [finding.document() for finding in outcome.marked],
            "warnings": [finding.document() for finding in outcome.warnings],
        }
        body = seal(document)
        for _ in range(_RECEIPT_ATTEMPTS):
            store.put_bytes(RECEIPT, body)
            stored = store.get_bytes(RECEIPT)
            if stored == body:
                break
        else:
            store.delete(RECEIPT)
            raise StoreFailure(
                f"{store.location.url}/{RECEIPT}",
                "the store does not keep what it is given",
                expected=f"{len(body)} bytes as sent",
                found=f"{len(stored)} other bytes",
            )
        # Another host may have evacuated to the same archive since the closing listing.
        if not self._is_in_the_store(tags):
            store.delete(RECEIPT)
            return False
        index.set_fact(RECEIPT_FACT, parse_receipt(body, store.location.url).sha256)
        index.set_fact(TAGS_FACT, json.dumps(tags.stored))
        index.set_fact(PROGRESS_FACT, None)
        index.commit()
        outcome.receipt = RECEIPT
        return True


def utc_now() -> str:
    """The time now, RFC 3339, in whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
