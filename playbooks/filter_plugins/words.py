"""Turns figures into words a person reads: sizes, times left, and the table of an evacuation."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

TIERS = ("irreplaceable", "useful", "garbage")


def size_words(size_bytes: float) -> str:
    """Returns 1536 as `1.5 KiB`."""
    value = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(value) < 1024:
            return f"{value:.0f} {unit}" if unit == "B" else f"{value:.1f} {unit}"
        value /= 1024
    return f"{value:.1f} TiB"


def duration_words(seconds: float) -> str:
    """Returns 93784 as `1 d 2 h 3 min`, and less than two minutes in seconds."""
    whole = int(abs(seconds))
    if whole < 120:
        return f"{whole} s"
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    parts = [(days, "d"), (hours, "h"), (minutes, "min")]
    return " ".join(f"{value} {unit}" for value, unit in parts if value) or "0 min"


def deadline_words(deadline: str | None) -> str:
    """Returns what a node's deadline (RFC 3339) means now; an unreadable one says so rather than hide."""
    if not deadline:
        return "no deadline"
    try:
        end = datetime.fromisoformat(deadline.replace("Z", "+00:00"))
    except ValueError:
        return f"deadline {deadline!r} cannot be read: expected RFC 3339"
    if end.tzinfo is None:
        end = end.replace(tzinfo=timezone.utc)
    left_s = (end - datetime.now(timezone.utc)).total_seconds()
    if left_s <= 0:
        return f"DEADLINE PASSED {duration_words(left_s)} ago ({deadline})"
    return f"{duration_words(left_s)} left until {deadline}"


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
        words = (size_words, duration_words, deadline_words, reason_words, holder_words, evacuation_table)
        return {word.__name__: word for word in words}
