"""An evacuation: census, look, copy, prove, verdict. SAFE only when everything worth keeping is proven to be there.

The order of one run is: recall what the bag says, list the store, walk the workspace; where nothing differs from
the receipt, its proof still holds. Else the receipt goes first, then rounds of walking and copying until a walk
after the copy finds the workspace as it was before; then the tag files, a closing listing and a closing walk, and
last the receipt.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from decamp.agreement import Agreement, agree
from decamp.bag import RECEIPT
from decamp.census import Census
from decamp.checking import failed_checks
from decamp.copying import Copier
from decamp.elsewhere import ExistingContent
from decamp.entries import State, plain_path, shown
from decamp.errors import StoreFailure
from decamp.findings import Finding
from decamp.hindrances import rule_findings, writer_findings
from decamp.host import read_identity, read_mounts
from decamp.index import Index
from decamp.index_file import copy_index, remove_index
from decamp.memory import PROGRESS_FACT, RECEIPT_FACT, recall
from decamp.mounts import mount_findings
from decamp.outcome import SAFE, Outcome
from decamp.progress import Progress
from decamp.proving import TAGS_FACT, Proving, utc_now
from decamp.reading import COARSE_TICK_S, TICK_S
from decamp.receipt import Receipt
from decamp.reconcile import Changes, reconcile
from decamp.rules import TIERS
from decamp.spec import Spec
from decamp.state_directory import index_path, lock_index, usable_index
from decamp.store.client import Store
from decamp.store.failures import StoreUnreachable
from decamp.store.probe import StoreTraits, probe_store
from decamp.system_record import record_system

ROUNDS = 5
_SHOWN_CHANGED = 20
_MOUNTS_FACT = "mounts"


class Evacuation:
    """One run of `decamp evacuate`.

    Args:
        spec: what is worth how much.
        spec_path: where the spec was read from, for the receipt.
        store: the bag's place.
        progress: where progress is told.
        read_back: read every object back, whatever the store attests.
        hindrances: reasons for NOT SAFE that are known beforehand, such as a service that could not be stopped.
            Everything is copied all the same, but no receipt is written.
    """

    def __init__(
        self,
        spec: Spec,
        spec_path: str,
        store: Store,
        progress: Progress,
        *,
        read_back: bool = False,
        hindrances: Sequence[str] = (),
    ) -> None:
        self._spec = spec
        self._spec_path = spec_path
        self._store = store
        self._progress = progress
        self._read_back = read_back
        self._identity = read_identity()
        self._traits: StoreTraits | None = None
        self._started_at = utc_now()
        self._standing: list[Finding] = []
        self._mounts: dict[str, Any] = {}
        self._writers: dict[Finding, None] = {}
        self._index: Index
        self._side = ThreadPoolExecutor(1, "system")
        self._system: Future[dict[str, bytes]] = Future()
        self.outcome = Outcome(store.location.node, store.location.url)
        self._hindrances = [Finding(store.location.node, hindrance) for hindrance in hindrances]

    def run(self) -> Outcome:
        """Evacuates and returns the outcome; can be ended and started again at any moment.

        Raises:
            StoreFailure: the store cannot be reached or trusted, before anything was changed.
            BusyIndex: another evacuation of this bag is running here.
            NotSafe: the state directory is full or cannot be written, or the index in it is damaged.
        """
        path = index_path(self._store.location.url, self._store.endpoint_url, self._spec.roots)
        with usable_index(path), lock_index(path):
            self._index = Index(path, is_kept=True)
            try:
                self._run()
            except BaseException:
                with contextlib.suppress(sqlite3.Error):
                    self._index.roll_back()
                raise
            finally:
                with contextlib.suppress(sqlite3.Error, OSError):
                    self._index.close(is_settled=self.outcome.receipt is not None)
        self._progress.finish()
        return self.outcome

    def rehearse(self) -> Outcome:
        """Tells what a run would do, and whether the proof holds now; changes nothing, here or in the store."""
        path = index_path(self._store.location.url, self._store.endpoint_url, self._spec.roots)
        copy = Path(f"{path}.dry-run-{os.getpid()}")
        try:
            with usable_index(path):
                copy_index(path, copy)
                self._index = Index(copy, is_kept=True)
                self.outcome.is_dry_run = True
                self._run(is_dry_run=True)
                self._index.close()
        finally:
            with contextlib.suppress(OSError):
                remove_index(copy)
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
            census = Census(self._spec, read_mounts())
            outcome.reasons.extend(census.check_roots())
        if outcome.reasons:
            return  # the workspace is not what the spec speaks of, so nothing of the bag is touched
        with self._phase("look"):
            receipt = recall(self._store, index, self._spec.rules, self._identity, outcome.warnings)
            self._check_mounts(receipt, census)
            if outcome.reasons:
                return
            index.release_held()
            agreement = self._agree(is_dry_run)
        changes = self._walk(census)
        holds = self._proof_holds(receipt, agreement, census, changes)
        if holds and self._read_back:
            self._proving().read_everything_back()
            if not outcome.reasons:
                # That took its time: the answer is about the workspace as it is after it.
                census = Census(self._spec, read_mounts())
                changes = self._walk(census)
                holds = self._proof_holds(receipt, agreement, census, changes)
            elif not is_dry_run:
                self._withdraw_receipt(census)  # verify, which need not read everything, would go by it
        if holds:
            outcome.reasons.extend(self._standing)  # writers, say: the archive stays as it is, and so does its receipt
            outcome.is_unchanged = True
            outcome.receipt = RECEIPT if not outcome.reasons else None
            outcome.marked = failed_checks(index, self._spec.rules)[1]
            return
        if is_dry_run:
            self._tell_pending(receipt)
            return
        self._known_traits()  # a store that cannot be written to is told before anything is changed
        try:
            self._copy_and_prove(census)
        except StoreFailure as failure:
            self._note_failure(failure)

    def _note_failure(self, failure: StoreFailure) -> None:
        self.outcome.reasons.append(
            Finding(
                failure.where,
                failure.what,
                failure.expected,
                failure.found,
                failure.run or "run the same command again",
            )
        )
        self.outcome.has_store_failed = isinstance(failure, StoreUnreachable)

    def _known_traits(self) -> StoreTraits:
        if self._traits is None:
            self._traits = probe_store(self._store)
        return self._traits

    def _agree(self, is_dry_run: bool = False) -> Agreement:
        agreement = agree(self._store, self._index, look_only=is_dry_run)
        self.outcome.warnings.extend(agreement.warnings)
        return agreement

    def _check_mounts(self, receipt: Receipt | None, census: Census) -> None:
        """Other mounts than last time, at a root or below one: a disk is probably not mounted."""
        if self._spec.mount == "/":
            return  # whatever was mounted, now it is meant to be as it is
        if receipt is None:
            earlier = json.loads(self._index.fact(_MOUNTS_FACT) or "{}")  # of a run that did not come to its receipt
        else:
            earlier = receipt.document if receipt.machine_id == self._identity.machine_id else {}
        if self._spec.mount is not None:
            earlier = {**earlier, "mounts": {}}  # the spec says itself where the roots have to be
        found = mount_findings(self._spec, earlier, census, self._index, "at the last evacuation")
        self.outcome.reasons.extend(found)

    def _check_same_mounts(self, census: Census) -> None:
        if not self._mounts:
            self._mounts = census.mounts()
        found = mount_findings(self._spec, self._mounts, census, self._index, "when this run began")
        census.findings.extend(found)

    def _walk(self, census: Census) -> Changes:
        """Walks, and looks for writers right after: whoever can still change what was counted is found then."""
        self._progress.start("census")
        self._check_same_mounts(census)
        with self._phase("census"):
            changes = reconcile(census, self._index, self._spec.rules)
        for number, (entries, size) in enumerate(changes.tiers):
            totals = self.outcome.tiers[TIERS[number]]
            totals.entries, totals.bytes = entries, size
        with self._phase("writers"):
            # A writer counts for the rest of the run: through a mapping it may have changed, without a new time
            # stamp, what was copied while it was there.
            self._writers.update(dict.fromkeys(writer_findings(self._spec, self._index)))
            self._standing = [
                *self._hindrances,
                *census.findings,
                *changes.findings,
                *rule_findings(self._spec, census, self.outcome.warnings),
                *self._writers,
            ]
        return changes

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
        return (
            not agreement.dropped
            and not agreement.adopted
            and not changes.rewritten
            and self._pending()[0] == 0
            and all(agreement.tags.get(key) == value for key, value in tags.items())
            and receipt.census_sha256 == census.sha256
            and receipt.spec_sha256 == self._spec.sha256
            and receipt.machine_id == self._identity.machine_id
            and receipt.host_keys == self._identity.host_keys
        )

    def _tell_pending(self, receipt: Receipt | None) -> None:
        count, size = self._pending()
        self.outcome.reasons.extend(self._standing)
        found = f"{count} files with {size} bytes to prove" if count else "a workspace or archive that changed"
        self.outcome.reasons.append(
            Finding(
                self._store.location.url,
                "the archive does not hold all of the workspace" if receipt else "there is no receipt that holds",
                "a receipt that holds now",
                found,
                "decamp evacuate, without --dry-run",
            )
        )

    def _copy_and_prove(self, census: Census) -> None:
        outcome, index = self.outcome, self._index
        self._system = self._side.submit(record_system)  # other programs' work: it is done while we copy
        with self._phase("probe"):
            traits = self._known_traits()
            self._withdraw_receipt(census)
        has_earlier = index.query("SELECT 1 FROM object LIMIT 1").fetchone() is not None
        if has_earlier:
            index.build_content_lookup()
        is_attesting = traits.checks_puts and traits.shows_checksums and not self._read_back
        existing = ExistingContent(self._store, self._spec.prefer_existing, is_attesting, index.doubted())
        outcome.warnings.extend(existing.warnings)
        with Copier(self._store, index, self._spec.rules, traits, existing, self._progress, has_earlier) as copier:
            copier.left_uploads.adopt()
            settled = False
            for round_number in range(1, ROUNDS + 1):
                self._copy_round(copier)
                if copier.failure is not None:
                    break
                if self._pending()[0] == 0:
                    with self._phase("prove"):
                        settled = self._proving().prove(census, self._standing, copier.findings, traits)
                if settled or round_number == ROUNDS:
                    break
                census = Census(self._spec, read_mounts())
                self._walk(census)
            if copier.failure is None:
                copier.left_uploads.drop()
            self._note_totals(copier)
        if copier.failure is not None:
            self._note_failure(copier.failure)
            outcome.reasons.extend([*self._standing, *copier.findings.values()])
        elif not settled:
            outcome.reasons.extend([*self._standing, *copier.findings.values()])
            self._name_unsettled()
            with self._phase("prove"):
                self._proving().write_tags(traits)

    def _withdraw_receipt(self, census: Census) -> None:
        """Deletes the old receipt: from here on the archive is not what it speaks of."""
        index = self._index
        index.set_fact(PROGRESS_FACT, self._identity.machine_id + ":")
        index.set_fact(_MOUNTS_FACT, json.dumps(census.mounts()))
        index.set_fact(RECEIPT_FACT, None)
        index.commit()
        self._store.delete(RECEIPT)
        if self._store.exists(RECEIPT):
            raise StoreFailure(
                f"{self._store.location.url}/{RECEIPT}",
                "the store does not delete the old receipt",
                expected="none",
                found="the old one",
                run="give these credentials the right to delete it",
            )

    def _proving(self) -> Proving:
        return Proving(
            self._spec,
            self._spec_path,
            self._store,
            self._index,
            self._identity,
            self._progress,
            self.outcome,
            self._read_back,
            self._started_at,
            self._system,
        )

    def _copy_round(self, copier: Copier) -> None:
        with self._phase("copy"):
            size = self._pending()[1]
            self._wait_for_tick()
            self._progress.start("copy", size, 0)
            for tier in (0, 1):
                if copier.failure is None:
                    copier.copy_tier(tier)
            copier.settle_hard_links()
            self._index.commit()

    def _wait_for_tick(self) -> None:
        """Lets the clock that stamps files move on, so that a change after the walk cannot carry an old stamp."""
        coarse = self._index.query(
            f"SELECT 1 FROM entry WHERE state={int(State.PENDING)} AND ctime_ns % 1000000000 = 0 LIMIT 1"
        ).fetchone()
        time.sleep(COARSE_TICK_S if coarse else TICK_S)

    def _note_totals(self, copier: Copier) -> None:
        for number, tier in enumerate(TIERS):
            self.outcome.tiers[tier].sent_bytes = copier.totals.sent.get(number, 0)
            self.outcome.tiers[tier].already_there = copier.totals.already_there.get(number, 0)

    def _name_unsettled(self) -> None:
        """Says which entries did not come to rest, and at worst that none could be named."""
        unsettled = list(self._index.entries(f"state={int(State.PENDING)} ORDER BY path LIMIT {_SHOWN_CHANGED}"))
        for entry in unsettled:
            self.outcome.reasons.append(
                Finding(
                    shown(plain_path(entry.path)),
                    "the file changed while it was copied",
                    f"no change within {ROUNDS} rounds",
                    "another size, time or content",
                    "stop what writes to it and run again",
                )
            )
        if not self.outcome.reasons:
            self.outcome.reasons.append(
                Finding(
                    self._store.location.url,
                    "the workspace or the store changed during every round",
                    "no change",
                    "changes",
                    "stop what writes and run again",
                )
            )
