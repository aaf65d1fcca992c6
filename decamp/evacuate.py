"""An evacuation: census, look, copy, prove, verdict. SAFE only when everything worth keeping is proven to be there.

The order of one run is: recall what the bag says, list the store, walk the workspace; where nothing differs from
the receipt, its proof still holds. Else the receipt goes first, then rounds of walking and copying until a walk
after the copy finds the workspace as it was before; then the tag files, a closing listing and a closing walk, and
last the receipt.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import decamp
from decamp.agreement import Agreement, agree
from decamp.bag import RECEIPT, REPORT, SYSTEM, TagFiles, write_tag_files, write_tag_manifest
from decamp.census import Census
from decamp.checking import failed_checks
from decamp.copying import Copier
from decamp.elsewhere import ExistingContent
from decamp.entries import State, plain_path, shown
from decamp.errors import NotSafe, StoreFailure
from decamp.findings import Finding
from decamp.host import find_writers, read_identity, read_mounts
from decamp.index import BusyIndex, Index, index_path
from decamp.memory import PROGRESS_FACT, RECEIPT_FACT, recall
from decamp.outcome import SAFE, Outcome
from decamp.progress import Progress
from decamp.receipt import FORMAT, Receipt, parse_receipt, seal
from decamp.reconcile import Changes, reconcile
from decamp.report import check_summary, left_behind, render_report
from decamp.rules import TIERS
from decamp.spec import Spec
from decamp.store.client import Store
from decamp.store.failures import StoreUnreachable
from decamp.store.probe import StoreTraits, probe_store
from decamp.system_record import record_system
from decamp.transfer import read_digest

ROUNDS = 5
TAGS_FACT = "tags"
_TICK_S = 0.025  # longer than the tick that kernels stamp files with (10 ms at 100 Hz)
_COARSE_TICK_S = 2.1  # filesystems that keep whole seconds
_SHOWN_CHANGED = 20


class Evacuation:
    """One run of `decamp evacuate`.

    Args:
        spec: what is worth how much.
        spec_path: where the spec was read from, for the receipt.
        store: the bag's place.
        progress: where progress is told.
        read_back: read every object back, whatever the store attests.
    """

    def __init__(self, spec: Spec, spec_path: str, store: Store, progress: Progress, *,
                 read_back: bool = False) -> None:
        self._spec = spec
        self._spec_path = spec_path
        self._store = store
        self._progress = progress
        self._read_back = read_back
        self._identity = read_identity()
        self._mounts = read_mounts()
        self._traits: StoreTraits | None = None
        self._started_at = _now()
        self._index: Index
        self.outcome = Outcome(store.location.node, store.location.url)

    def run(self) -> Outcome:
        """Evacuates and returns the outcome; can be ended and started again at any moment.

        Raises:
            StoreFailure: the store cannot be reached or trusted, before anything was changed.
            BusyIndex: another evacuation of this bag is running here.
            NotSafe: the state directory is full.
        """
        path = index_path(self._store.location.url, self._store.endpoint_url, self._spec.roots)
        with _locked(path):
            try:
                self._index = Index(path)
                try:
                    self._run()
                finally:
                    with contextlib.suppress(sqlite3.Error):
                        self._index.close()
            except sqlite3.OperationalError as error:
                raise NotSafe(str(path), "the state directory cannot be written", found=str(error),
                              run="DECAMP_STATE_DIR=/dev/shm/decamp decamp evacuate ...") from error
        self._progress.finish()
        return self.outcome

    def rehearse(self) -> Outcome:
        """Tells what a run would do, and whether the proof holds now; changes nothing, here or in the store."""
        path = index_path(self._store.location.url, self._store.endpoint_url, self._spec.roots)
        copy = Path(f"{path}.dry-run-{os.getpid()}")
        try:
            self._index = Index(path).copy_to(copy)
            self.outcome.is_dry_run = True
            self._run(is_dry_run=True)
            self._index.close()
        finally:
            for suffix in ("", "-wal", "-shm"):
                Path(f"{copy}{suffix}").unlink(missing_ok=True)
        self._progress.finish()
        return self.outcome

    @contextlib.contextmanager
    def _phase(self, name: str) -> Iterator[None]:
        started = time.monotonic()
        try:
            yield
        finally:
            seconds = self.outcome.seconds
            seconds[name] = seconds.get(name, 0.0) + time.monotonic() - started

    def _run(self, is_dry_run: bool = False) -> None:
        outcome, index = self.outcome, self._index
        with self._phase("census"):
            census = Census(self._spec, self._mounts)
            outcome.reasons.extend(census.check_roots())
        if outcome.reasons:
            return  # the workspace is not what the spec speaks of, so nothing of the bag is touched
        with self._phase("look"):
            receipt = recall(self._store, index, self._spec.rules, self._identity, outcome.warnings)
            self._check_mounts(receipt, census)
            if outcome.reasons:
                return
            agreement = self._agree(is_dry_run)
        changes = self._walk(census)
        if self._proof_holds(receipt, agreement, census, changes):
            if self._read_back:
                self._read_everything_back()
            outcome.reasons.extend(self._standing)  # writers, say: the archive stays as it is, and so does its receipt
            outcome.is_unchanged = True
            outcome.receipt = RECEIPT if not outcome.reasons else None
            outcome.marked = failed_checks(index, self._spec.rules)[1]
            return
        if is_dry_run:
            self._tell_pending(receipt)
            return
        try:
            self._copy_and_prove(census)
        except StoreFailure as failure:
            self._note_failure(failure)

    def _note_failure(self, failure: StoreFailure) -> None:
        self.outcome.reasons.append(Finding(failure.where, failure.what, failure.expected, failure.found,
                                            failure.run or "run the same command again"))
        self.outcome.has_store_failed = isinstance(failure, StoreUnreachable)

    def _known_traits(self) -> StoreTraits:
        if self._traits is None:
            self._traits = probe_store(self._store)
        return self._traits

    def _agree(self, is_dry_run: bool = False) -> Agreement:
        agreement = agree(self._store, self._index, None if is_dry_run else self._known_traits)
        self.outcome.warnings.extend(agreement.warnings)
        return agreement

    def _check_mounts(self, receipt: Receipt | None, census: Census) -> None:
        """A root on another kind of filesystem, or mount point, than last time: its disk is probably not mounted."""
        if receipt is None or self._spec.mount is not None or receipt.machine_id != self._identity.machine_id:
            return
        earlier = receipt.document.get("mounts", {})
        for root, mount in census.mounts_of_roots().items():
            before = earlier.get(root)
            if before and mount and before[:2] != mount[:2]:
                self.outcome.reasons.append(Finding(
                    root, "the root is on another filesystem than at the last evacuation",
                    f"{before[1]} mounted at {before[0]}", f"{mount[1]} mounted at {mount[0]}",
                    "mount it again, or name the mount point in the spec (mount: ...) if this is meant"))

    def _walk(self, census: Census) -> Changes:
        """Walks, and looks for writers right after: whoever can still change what was counted is found then."""
        self._progress.start("census")
        with self._phase("census"):
            changes = reconcile(census, self._index, self._spec.rules)
        for number, (entries, size) in enumerate(changes.tiers):
            totals = self.outcome.tiers[TIERS[number]]
            totals.entries, totals.bytes = entries, size
        with self._phase("writers"):
            self._standing = [*census.findings, *changes.findings, *self._rule_findings(census),
                              *self._writer_findings()]
        return changes

    def _rule_findings(self, census: Census) -> list[Finding]:
        matched = census.matched_rules()
        findings = []
        for number, rule in enumerate(self._spec.rules):
            if number in matched or rule.optional or rule.tier == TIERS[2]:
                continue
            finding = Finding(rule.match, "the rule names data to keep and matches nothing", "at least one entry",
                              "none", "correct the pattern, or mark the rule: optional: true")
            if rule.tier == TIERS[0] or rule.check is not None:
                findings.append(finding)
            elif finding not in self.outcome.warnings:
                self.outcome.warnings.append(finding)
        return findings

    def _writer_findings(self) -> list[Finding]:
        writers = find_writers()
        findings = []
        if writers.unseen:
            findings.append(Finding("/proc", f"open files of {writers.unseen} processes cannot be seen",
                                    "to see every process's open files", f"user id {os.geteuid()}", "run as root"))
        found = {writer.path: writer for writer in writers.below(self._spec.roots)}
        inodes = [(device, inode) for device, inode in writers.by_identity]
        for start in range(0, len(inodes), 500):
            part = inodes[start:start + 500]
            marks = ",".join("?" * len(part))
            signed = [inode - (1 << 64) if inode >= 1 << 63 else inode for _, inode in part]
            for entry in self._index.entries(f"ino IN ({marks}) AND kind=0", signed):
                path = plain_path(entry.path)
                with contextlib.suppress(OSError):
                    status = os.lstat(path)
                    writer = writers.by_identity.get((status.st_dev, status.st_ino))
                    if writer is not None:
                        found[path] = writer
        for path, writer in sorted(found.items()):
            if self._is_garbage(path):
                continue
            findings.append(Finding(shown(path), "the file is open for writing", "no writer",
                                    f"process {writer.pid} ({writer.command})", "stop the process and run again"))
        return findings

    def _is_garbage(self, path: bytes) -> bool:
        entry = next(self._index.entries("path=?", (path.replace(b"/", b"\0"),)), None)
        return entry is not None and entry.state == State.LEFT_BEHIND

    def _pending(self) -> tuple[int, int]:
        row = self._index.query(f"SELECT count(*), coalesce(sum(size), 0) FROM entry WHERE state={int(State.PENDING)}")
        count, size = row.fetchone()
        return count, size

    def _proof_holds(self, receipt: Receipt | None, agreement: Agreement, census: Census, changes: Changes) -> bool:
        """Nothing differs from what the receipt speaks of: neither store, workspace, spec nor machine."""
        fact = self._index.fact(TAGS_FACT)
        if receipt is None or receipt.verdict != SAFE or fact is None:
            return False
        if self._index.fact(RECEIPT_FACT) != receipt.sha256:
            return False
        tags = {key: tuple(value) for key, value in json.loads(fact).items()}
        return (not agreement.dropped and not agreement.adopted and not changes.rewritten
                and self._pending()[0] == 0
                and all(agreement.tags.get(key) == value for key, value in tags.items())
                and receipt.census_sha256 == census.sha256 and receipt.spec_sha256 == self._spec.sha256
                and receipt.machine_id == self._identity.machine_id
                and receipt.host_keys == self._identity.host_keys)

    def _tell_pending(self, receipt: Receipt | None) -> None:
        count, size = self._pending()
        self.outcome.reasons.extend(self._standing)
        found = f"{count} files with {size} bytes to prove" if count else "a workspace or archive that changed"
        self.outcome.reasons.append(Finding(
            self._store.location.url, "the archive does not hold all of the workspace" if receipt else
            "there is no receipt that holds", "a receipt that holds now", found, "decamp evacuate, without --dry-run"))

    def _copy_and_prove(self, census: Census) -> None:
        outcome, index = self.outcome, self._index
        with self._phase("probe"):
            traits = self._known_traits()
            index.set_fact(PROGRESS_FACT, self._identity.machine_id + ":")
            index.set_fact(RECEIPT_FACT, None)
            index.commit()
            self._store.delete(RECEIPT)
        has_earlier = index.query("SELECT 1 FROM entry WHERE object IS NOT NULL LIMIT 1").fetchone() is not None
        if has_earlier:
            index.build_content_lookup()
        existing = ExistingContent(self._store, self._spec.prefer_existing,
                                   traits.checks_puts and traits.shows_checksums)
        outcome.warnings.extend(existing.warnings)
        with Copier(self._store, index, self._spec.rules, traits, existing, self._progress, has_earlier) as copier:
            copier.adopt_uploads()
            settled = False
            for round_number in range(1, ROUNDS + 1):
                self._copy_round(copier)
                if copier.failure is not None:
                    break
                if self._pending()[0] == 0:
                    settled = self._prove(census, traits)
                if settled or round_number == ROUNDS:
                    break
                census = Census(self._spec, self._mounts)
                self._walk(census)
            if copier.failure is None:
                copier.drop_uploads()
            self._note_totals(copier)
            outcome.reasons.extend(copier.findings)
        if copier.failure is not None:
            self._note_failure(copier.failure)
            outcome.reasons.extend(self._standing)
        elif not settled:
            outcome.reasons.extend(self._standing)
            self._name_unsettled()
            with self._phase("prove"):
                self._write_tags(traits)

    def _copy_round(self, copier: Copier) -> None:
        with self._phase("copy"):
            size = self._pending()[1]
            self._wait_for_tick()
            self._progress.start("copy", size, 0)
            for tier in (0, 1):
                if copier.failure is None:
                    copier.copy_tier(tier)
            self._index.settle_hard_links()
            self._index.commit()

    def _wait_for_tick(self) -> None:
        """Lets the clock that stamps files move on, so that a change after the walk cannot carry an old stamp."""
        coarse = self._index.query(
            f"SELECT 1 FROM entry WHERE state={int(State.PENDING)} AND ctime_ns % 1000000000 = 0 LIMIT 1").fetchone()
        time.sleep(_COARSE_TICK_S if coarse else _TICK_S)

    def _note_totals(self, copier: Copier) -> None:
        for number, tier in enumerate(TIERS):
            self.outcome.tiers[tier].sent_bytes = copier.totals.sent.get(number, 0)
            self.outcome.tiers[tier].already_there = copier.totals.already_there.get(number, 0)

    def _name_unsettled(self) -> None:
        """Says which entries did not come to rest, and at worst that none could be named."""
        unsettled = list(self._index.entries(f"state={int(State.PENDING)} ORDER BY path LIMIT {_SHOWN_CHANGED}"))
        for entry in unsettled:
            self.outcome.reasons.append(Finding(shown(plain_path(entry.path)), "the file changed while it was copied",
                                                f"no change within {ROUNDS} rounds", "another size, time or content",
                                                "stop what writes to it and run again"))
        if not self.outcome.reasons:
            self.outcome.reasons.append(Finding(
                self._store.location.url, "the workspace or the store changed during every round", "no change", "changes",
                "stop what writes and run again"))

    def _prove(self, census: Census, traits: StoreTraits) -> bool:
        """Writes the tag files, lists and walks once more, and writes the receipt if all of it agrees.

        Returns False when something changed meanwhile, so that another round is due; reasons that no round can
        mend are added to the outcome, and True is returned.
        """
        outcome = self.outcome
        with self._phase("prove"):
            refusing, outcome.marked = failed_checks(self._index, self._spec.rules)
            unreadable = [Finding(shown(plain_path(entry.path)), "the file cannot be read", "its content", "an error")
                          for entry in self._index.entries(f"state={int(State.UNREADABLE)}")]
            self._progress.start("prove")
            tags, tag_manifest_sha256 = self._write_tags(traits)
            agreement = self._agree()
            if agreement.dropped or agreement.adopted:
                return False
            if any(agreement.tags.get(key) != value for key, value in tags.stored.items()):
                return False
            if self._read_back:
                self._read_everything_back()
        with self._phase("census"):
            closing = Census(self._spec, self._mounts)
            for _ in closing.walk():
                pass
            if closing.sha256 != census.sha256 or closing.findings != census.findings:
                return False
        with self._phase("writers"):
            writers = self._writer_findings()
        reasons = [*self._standing, *(finding for finding in writers if finding not in self._standing), *refusing,
                   *unreadable]
        outcome.reasons.extend(reason for reason in reasons if reason not in outcome.reasons)
        if outcome.reasons:
            return True
        with self._phase("prove"):
            self._write_receipt(census, tags, tag_manifest_sha256, traits)
        return True

    def _write_tags(self, traits: StoreTraits) -> tuple[TagFiles, str]:
        tags = TagFiles(self._store, self._index.path, traits.checks_puts and traits.checks_parts)
        for name, content in record_system().items():
            tags.put(SYSTEM + name, content)
        write_tag_files(tags, self._index, self._store, self._spec.rules, self._identity.machine_id)
        tags.put(REPORT, render_report(self.outcome, self._index, self._spec, self._identity))
        digest = write_tag_manifest(tags)
        return tags, digest

    def _read_everything_back(self) -> None:
        self._progress.start("read back")
        for record in self._index.objects():
            store, key = self._store.elsewhere(record.url) if record.url else (self._store, record.key)
            digest, size = read_digest(store, key, self._progress.advance)
            if (digest, size) != (record.sha256, record.size):
                self.outcome.reasons.append(Finding(
                    f"{self._store.location.url}/{record.key}", "the store holds something else than was sent",
                    f"{record.size} bytes, sha256 {record.sha256.hex()}", f"{size} bytes, sha256 {digest.hex()}",
                    "run again: the object is sent anew"))
                self._index.drop_object(record.key)

    def _write_receipt(self, census: Census, tags: TagFiles, tag_manifest_sha256: str, traits: StoreTraits) -> None:
        evidence = {row[0]: {"objects": row[1], "bytes": row[2]} for row in self._index.query(
            "SELECT evidence, count(*), sum(size) FROM object GROUP BY evidence")}
        document: dict[str, Any] = {
            "format": FORMAT, "software": f"decamp {decamp.__version__}", "verdict": SAFE,
            "node": self._store.location.node, "store": self._store.location.url,
            "host": {"machine_id": self._identity.machine_id, "host_keys": list(self._identity.host_keys)},
            "started_at": self._started_at, "finished_at": _now(), "spec": self._spec.document,
            "spec_path": self._spec_path, "spec_sha256": self._spec.sha256, "mounts": census.mounts_of_roots(),
            "census_sha256": census.sha256, "entries": census.entries,
            "manifest_sha256": tags.digests["manifest-sha256.txt"], "tag_manifest_sha256": tag_manifest_sha256,
            "totals": {name: {"entries": tier.entries, "bytes": tier.bytes}
                       for name, tier in self.outcome.tiers.items()},
            "left_behind": left_behind(self._index, self._spec), "evidence": evidence,
            "read_back": self._read_back, "store_traits": traits.document(),
            "checks": check_summary(self._index),
            "marked": [finding.document() for finding in self.outcome.marked],
            "warnings": [finding.document() for finding in self.outcome.warnings],
        }
        body = seal(document)
        etag = self._store.put_bytes(RECEIPT, body)
        stored = self._store.get_bytes(RECEIPT)
        if stored != body:
            self._store.delete(RECEIPT)
            raise StoreFailure(f"{self._store.location.url}/{RECEIPT}", "the store does not keep what it is given",
                               expected=f"{len(body)} bytes as sent", found=f"{len(stored)} other bytes, etag {etag}")
        self._index.set_fact(RECEIPT_FACT, parse_receipt(body, self._store.location.url).sha256)
        self._index.set_fact(TAGS_FACT, json.dumps(tags.stored))
        self._index.set_fact(PROGRESS_FACT, None)
        self._index.commit()
        self.outcome.receipt = RECEIPT


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    with open(f"{path}.lock", "w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BusyIndex(str(path), "another evacuation of this archive is running here",
                            run="wait for it to end, then run again") from error
        yield


def _now() -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
