"""What an evacuation came to: verdict, reasons and figures."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from decamp.errors import EXIT_DONE, EXIT_NOT_SAFE, EXIT_STORE
from decamp.findings import Finding
from decamp.rules import TIERS

SAFE = "SAFE"
NOT_SAFE = "NOT SAFE"


@dataclass
class TierTotals:
    """Entries and bytes of one tier: all of them, those sent in this run, those that the store had already."""

    entries: int = 0
    bytes: int = 0
    sent_bytes: int = 0
    already_there: int = 0


@dataclass
class Outcome:
    """The outcome of one evacuation.

    Attributes:
        reasons: every reason for NOT SAFE; SAFE has none.
        warnings: what a person should know and that does not stand in the way.
        marked: failed checks whose rules only mark.
        seconds: duration of each phase.
        is_unchanged: nothing had changed since the receipt was written.
        has_store_failed: the store failed in a way that makes its word worthless, or was out of reach.
    """

    node: str
    store: str
    reasons: list[Finding] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)
    marked: list[Finding] = field(default_factory=list)
    tiers: dict[str, TierTotals] = field(default_factory=lambda: {tier: TierTotals() for tier in TIERS})
    seconds: dict[str, float] = field(default_factory=dict)
    receipt: str | None = None
    is_unchanged: bool = False
    is_dry_run: bool = False
    has_store_failed: bool = False

    @property
    def verdict(self) -> str:
        return SAFE if self.receipt is not None and not self.reasons else NOT_SAFE

    @property
    def exit_code(self) -> int:
        if self.verdict == SAFE:
            return EXIT_DONE
        return EXIT_STORE if self.has_store_failed else EXIT_NOT_SAFE

    def document(self) -> dict[str, Any]:
        """The JSON of `decamp evacuate --json`; docs/exit-codes.md describes it."""
        return {
            "verdict": self.verdict,
            "node": self.node,
            "store": self.store,
            "receipt": self.receipt,
            "unchanged": self.is_unchanged,
            "dry_run": self.is_dry_run,
            "reasons": [finding.document() for finding in self.reasons],
            "warnings": [finding.document() for finding in self.warnings],
            "marked": [finding.document() for finding in self.marked],
            "tiers": {
                name: {
                    "entries": tier.entries,
                    "bytes": tier.bytes,
                    "sent_bytes": tier.sent_bytes,
                    "already_there": tier.already_there,
                }
                for name, tier in self.tiers.items()
            },
            "seconds": {name: round(value, 3) for name, value in self.seconds.items()},
        }
