"""What an evacuation tells people: the report in the bag, and the table on a terminal."""

from __future__ import annotations

import html
import json
from typing import Any

import decamp
from decamp.entries import State, plain_path, shown
from decamp.host import HostIdentity
from decamp.index import Index
from decamp.outcome import Outcome
from decamp.progress import human_bytes
from decamp.rules import TIERS
from decamp.spec import Spec

_CHECKS_SHOWN = 200
_STYLE = """body{font:15px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:60rem;padding:0 1rem;color:#1a1a1a}
table{border-collapse:collapse;margin:1rem 0}td,th{padding:.25rem .8rem;border-bottom:1px solid #ddd;text-align:left}
td.n,th.n{text-align:right;font-variant-numeric:tabular-nums}code{font-size:.92em}.bad{color:#a40000}
.bar{background:#4a7fb5;height:.8em;display:inline-block}"""


def left_behind(index: Index, spec: Spec) -> list[dict[str, Any]]:
    """Garbage by rule: pattern, reason, number of entries, bytes."""
    rows = index.query(
        "SELECT rule, count(*), sum(size) FROM entry WHERE state=? GROUP BY rule ORDER BY rule",
        (int(State.LEFT_BEHIND),),
    )
    told = []
    for rule, entries, size in rows:
        known = spec.rules[rule] if 0 <= rule < len(spec.rules) else None
        told.append(
            {
                "rule": known.match if known else "(default tier)",
                "reason": known.reason if known else "",
                "entries": entries,
                "bytes": size,
            }
        )
    return told


def check_summary(index: Index) -> dict[str, dict[str, int]]:
    """How many checks of each kind passed and failed."""
    summary: dict[str, dict[str, int]] = {}
    for entry in index.entries("checks IS NOT NULL AND state=?", (int(State.PROVEN),)):
        for result in json.loads(entry.checks or "[]"):
            counts = summary.setdefault(result["kind"], {"passed": 0, "failed": 0})
            counts["passed" if result["passed"] else "failed"] += 1
    return summary


def render_report(outcome: Outcome, index: Index, spec: Spec, identity: HostIdentity) -> bytes:
    """Returns the report as one HTML page without scripts or outside parts.

    It is written before the receipt and speaks of the census, not of the verdict: that is the receipt's.
    """

    def table(heads: list[str], rows: list[list[str]]) -> str:
        numeric = [index > 0 and all(row[index][:1].isdigit() for row in rows) for index in range(len(heads))]

        def cells(row: list[str], tag: str) -> str:
            return "".join(
                f"<{tag}{' class=n' if numeric[number] else ''}>{html.escape(cell)}</{tag}>"
                for number, cell in enumerate(row)
            )

        return (
            "<table><tr>"
            + cells(heads, "th")
            + "</tr>"
            + "".join(f"<tr>{cells(row, 'td')}</tr>" for row in rows)
            + "</table>"
        )

    parts = [
        f"<!doctype html><meta charset=utf-8><title>Archive of {html.escape(outcome.node)}</title>",
        f"<style>{_STYLE}</style><h1>Archive of {html.escape(outcome.node)}</h1>",
        f"<p>In <code>{html.escape(outcome.store)}</code>, by decamp {decamp.__version__}. Whether all of it is "
        "proven stands in <code>decamp/receipt.json</code>; without that file nothing is.</p>",
        f"<p>Machine <code>{html.escape(identity.machine_id or 'unknown')}</code>; roots "
        + ", ".join(f"<code>{html.escape(shown(root))}</code>" for root in spec.roots)
        + ".</p>",
        "<h2>Tiers</h2>",
        table(
            ["Tier", "Entries", "Bytes"],
            [[name, f"{tier.entries:,}", human_bytes(tier.bytes)] for name, tier in outcome.tiers.items()],
        ),
    ]
    behind = left_behind(index, spec)
    if behind:
        parts += [
            "<h2>Left behind</h2>",
            table(
                ["Rule", "Entries", "Bytes", "Reason"],
                [[item["rule"], f"{item['entries']:,}", human_bytes(item["bytes"]), item["reason"]] for item in behind],
            ),
        ]
    parts.append("<h2>Checks</h2>")
    parts += _checks(index) or ["<p>No entry was due a check.</p>"]
    return "\n".join(parts).encode("utf-8", "backslashreplace")


def _checks(index: Index) -> list[str]:
    parts = []
    interesting = "(checks LIKE '%\"passed\":false%' OR checks LIKE '%\"measures\"%')"
    shown_entries = index.entries(
        f"{interesting} AND state=? ORDER BY path LIMIT {_CHECKS_SHOWN}", (int(State.PROVEN),)
    )
    for kind, counts in sorted(check_summary(index).items()):
        parts.append(f"<p>{html.escape(kind)}: {counts['passed']:,} passed, {counts['failed']:,} failed.</p>")
    for entry in shown_entries:
        path = html.escape(shown(plain_path(entry.path)))
        for result in json.loads(entry.checks or "[]"):
            state = "passed" if result["passed"] else "<b class=bad>failed</b>"
            parts.append(f"<h3><code>{path}</code>: {html.escape(result['kind'])} {state}</h3>")
            if not result["passed"]:
                parts.append(
                    f"<p>Expected {html.escape(result.get('expected', ''))}, found "
                    f"{html.escape(result.get('found', ''))}.</p>"
                )
            parts += _measures(result.get("measures", {}))
    return parts


def _measures(measures: dict[str, Any]) -> list[str]:
    parts = []
    figures = ", ".join(
        f"{html.escape(str(name))} {value:,.6g}" for name, value in measures.items() if isinstance(value, (int, float))
    )
    if figures:
        parts.append(f"<p>{figures}</p>")
    bins = measures.get("histogram") or []
    most = max((item["rows"] for item in bins), default=0)
    if most:
        rows = "".join(
            f"<tr><td class=n>{item['from']:,.4g} to {item['to']:,.4g}<td class=n>{item['rows']:,}"
            f"<td><span class=bar style='width:{30 * item['rows'] / most:.1f}em'></span>"
            for item in bins
        )
        parts.append(
            f"<table><tr><th class=n>sum of {html.escape(str(measures.get('column')))} in a row"
            f"<th class=n>rows<th>{rows}</table>"
        )
    return parts


def outcome_lines(outcome: Outcome) -> list[str]:
    """The outcome for a terminal: a table of the tiers, every reason, the verdict last."""
    lines = [f"{'tier':<14}{'entries':>10}{'bytes':>12}{'sent':>12}{'already there':>15}"]
    for name in TIERS:
        tier = outcome.tiers[name]
        lines.append(
            f"{name:<14}{tier.entries:>10,}{human_bytes(tier.bytes):>12}{human_bytes(tier.sent_bytes):>12}"
            f"{human_bytes(tier.already_there):>15}"
        )
    lines.append("seconds: " + ", ".join(f"{name} {value:.2f}" for name, value in outcome.seconds.items()))
    lines += [f"warning: {finding}" for finding in outcome.warnings]
    lines += [f"marked: {finding}" for finding in outcome.marked]
    lines += [f"reason: {finding}" for finding in outcome.reasons]
    proof = "nothing changed since its receipt was written" if outcome.is_unchanged else "receipt written"
    lines.append(
        f"{outcome.verdict}: {outcome.store}"
        + (f" ({proof})" if outcome.receipt and not outcome.reasons else f" ({len(outcome.reasons)} reasons)")
    )
    return lines
