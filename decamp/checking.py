"""Applies the checks that an entry is due, and keeps what they found in the form that the index stores."""

from __future__ import annotations

import json

from decamp.checks import CheckResult, applies, check_basis, check_whole, run_check
from decamp.entries import Entry, State, encode_checks, plain_path, shown
from decamp.findings import Finding
from decamp.index import Index
from decamp.reading import EntryChanged, OpenedFile
from decamp.rules import Rule


def check_entry(entry: Entry, rules: tuple[Rule, ...]) -> str | None:
    """Returns the results of an entry's checks as JSON, or None where none applied.

    Raises:
        OSError: the file could not be read.
    """
    path = plain_path(entry.path)
    results: list[CheckResult] = []
    check = rules[entry.rule].check if entry.rule >= 0 else None
    if check is not None and applies(check.kind, path):
        results.append(run_check(check, path))
    else:
        whole = check_whole(path)
        if whole is not None:
            results.append(whole)
    return encode_checks([result.document() for result in results]) if results else None


def check_further_names(index: Index, rules: tuple[Rule, ...]) -> dict[bytes, OSError]:
    """Checks hard-linked files under their further names as well, where a name asks for other checks than the first.

    Returns:
        Files that could not be read, by path as the index has it; files that changed are pending again.
    """
    unread: dict[bytes, OSError] = {}
    for entry in list(index.entries(f"hardlink IS NOT NULL AND state={int(State.PROVEN)}")):
        first = next(index.entries("path=?", (entry.hardlink,)))
        if _basis(entry, rules) == _basis(first, rules):
            continue
        try:
            with OpenedFile(entry) as file:
                checks = check_entry(entry, rules)
                file.confirm()
        except EntryChanged:
            index.set_state(entry.path, State.PENDING)
        except OSError as error:
            unread[entry.path] = error
        else:
            index.execute("UPDATE entry SET checks=? WHERE path=?", (checks, entry.path))
    return unread


def _basis(entry: Entry, rules: tuple[Rule, ...]) -> object:
    return check_basis(rules[entry.rule].check if entry.rule >= 0 else None, plain_path(entry.path))


def failed_checks(index: Index, rules: tuple[Rule, ...]) -> tuple[list[Finding], list[Finding]]:
    """Returns the failed checks of entries worth keeping: those that refuse, and those that only mark."""
    refusing: list[Finding] = []
    marking: list[Finding] = []
    # A further name repeats its first one's results; under a rule of its own they may refuse where those only mark.
    first = "SELECT 1 FROM entry f WHERE f.path=entry.hardlink AND f.checks IS entry.checks AND f.rule=entry.rule"
    own = f"(hardlink IS NULL OR NOT EXISTS ({first}))"
    for entry in index.entries(f"checks LIKE '%\"passed\":false%' AND state={int(State.PROVEN)} AND {own}"):
        mark_only = rules[entry.rule].mark_only if entry.rule >= 0 else False
        for result in json.loads(entry.checks or "[]"):
            if not result["passed"]:
                finding = Finding(
                    shown(plain_path(entry.path)),
                    f"the check {result['kind']} failed",
                    result.get("expected", ""),
                    result.get("found", ""),
                    "mend the data, or mark the rule: on_failure: mark",
                )
                (marking if mark_only else refusing).append(finding)
    return refusing, marking
