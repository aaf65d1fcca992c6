"""How long a node still has is said in the same words by every command, and a deadline that cannot be read says so."""

from __future__ import annotations

from datetime import datetime, timezone


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
