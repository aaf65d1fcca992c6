"""Turns figures into words a person reads: sizes, times left, and the table of an evacuation."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from decamp.deadline import deadline_words, duration_words

sys.path.pop(0)

TIERS = ("irreplaceable", "useful", "garbage")


def size_words(size_bytes: float) -> str:
    """Returns 1536 as `1.5 KiB`."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def spot_words(spot: dict[str, Any]) -> str:
    """Returns what the fact `spot_notice_found` means for somebody who wants to keep what is on the node."""
    state = spot.get("state")
    if state == "notice":
        return f"SPOT: EC2 is taking it back ({spot.get('action') or 'interrupt'}): {deadline_words(spot.get('time'))}"
    if state == "rebalance":
        return f"SPOT: EC2 recommends to leave since {spot.get('since') or 'now'}: notice may come any minute"
    if state == "none":
        return "spot: no notice from EC2"
    return f"spot: unknown whether EC2 is taking it back ({spot.get('why') or 'no answer'})"


def reason_words(reason: Any) -> str:
    """Returns one reason of a verdict as `<path>: <what>: expected <x>, found <y>; run: <command>`."""
    if not isinstance(reason, dict):
        return str(reason)
    text = f"{reason.get('path') or ''}: {reason.get('what') or ''}".strip(": ")
    sides = [f"{side} {reason[side]}" for side in ("expected", "found") if reason.get(side)]
    text += f": {', '.join(sides)}" if sides else ""
    return text + (f"; run: {reason['run']}" if reason.get("run") else "")


def holder_words(holder: dict[str, Any]) -> str:
    """Returns one holder that the module process_holders found."""
    unit = f", {holder['unit']}" if holder.get("unit") else ""
    who = f"process {holder['pid']} ({holder['user']}{unit}: {holder['command']})" if holder.get("pid") else "a process"
    return f"{who} that {', '.join(holder['why'])}"


def evacuation_table(results: dict[str, Any]) -> list[str]:
    """Returns the closing table: {node: outcome} to lines with tiers, counts, bytes, seconds and every reason."""
    head = f"{'node':<14} {'tier':<14} {'entries':>9} {'size':>11} {'sent':>11} {'there':>9}"
    lines = [head, "-" * len(head)]
    for node, outcome in sorted(results.items()):
        tiers = outcome.get("tiers") or {}
        for tier in [tier for tier in TIERS if tier in tiers]:
            row = tiers[tier]
            sizes = [size_words(row.get(key) or 0) for key in ("bytes", "sent_bytes")]
            there = row.get("already_there") or 0
            lines.append(f"{node:<14} {tier:<14} {row.get('entries', 0):>9} {sizes[0]:>11} {sizes[1]:>11} {there:>9}")
        seconds = outcome.get("seconds") or {}
        if seconds:
            phases = ", ".join(f"{phase} {value:.1f}" for phase, value in seconds.items())
            lines.append(f"{node:<14} seconds: {phases}")
        lines += [f"{node:<14} reason: {reason_words(reason)}" for reason in outcome.get("reasons") or []]
    return lines


class FilterModule:
    """The filters by the names that playbooks use."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        words = (
            *(size_words, duration_words, deadline_words, spot_words, reason_words, holder_words),
            evacuation_table,
        )
        return {word.__name__: word for word in words}
