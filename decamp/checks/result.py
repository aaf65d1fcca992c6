"""What a check found."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class CheckResult:
    """The outcome of one check of one file.

    Attributes:
        kind: what was checked, for instance `arrow` or `whole:gzip`.
        passed: whether the data is as it should be.
        expected: what would have been right; empty when passed.
        found: what was there.
        measures: figures for the report: rows, means, a histogram.
    """

    kind: str
    passed: bool
    expected: str = ""
    found: str = ""
    measures: dict[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        told: dict[str, Any] = {"kind": self.kind, "passed": self.passed}
        if self.expected:
            told["expected"] = self.expected
        if self.found:
            told["found"] = self.found
        if self.measures:
            told["measures"] = self.measures
        return told
