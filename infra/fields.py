"""Every field of a configuration section is read with its type and limits, and every wrong one is collected."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from typing import TypeVar

from decamp.errors import BadInput

T = TypeVar("T")

_TRUE = ("true",)
_FALSE = ("false",)


class Problems:
    """Wrong values found so far, in the order they were met; nothing is raised before all are known."""

    def __init__(self) -> None:
        self.found: list[BadInput] = []

    def add(self, key: str, what: str, *, expected: str = "", found: object = None, run: str = "") -> None:
        self.found.append(BadInput(key, what, expected=expected, found=shown(found), run=run))


def shown(value: object) -> str:
    """A value as the user wrote it, short enough for one line; empty for a value that is not there."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    text = value if isinstance(value, str) else repr(value)
    return f'"{text if len(text) <= 80 else text[:77] + "..."}"' if isinstance(value, str) else text[:80]


class Section:
    """One mapping of the configuration: typed reads, with unknown keys named when `close` is called.

    Args:
        key: what the mapping is called in messages, e.g. `decamp:nodes[0]`; keys are joined to it.
        values: the mapping; a value may be native or, as Pulumi hands top-level ones over, a string.
        problems: where wrong values are collected.
        separator: what joins the section's key and a field's.
    """

    def __init__(self, key: str, values: Mapping[str, object], problems: Problems, separator: str = ".") -> None:
        self.key = key
        self.values = values
        self.problems = problems
        self._separator = separator
        self._known: set[str] = set()

    def name(self, field: str) -> str:
        return f"{self.key}{self._separator}{field}"

    def raw(self, field: str) -> object | None:
        self._known.add(field)
        value = self.values.get(field)
        return None if value == "" else value

    def close(self) -> None:
        """Names every key that nothing has asked for: a misspelt one would otherwise be silently ignored."""
        for field in sorted(set(self.values) - self._known):
            self.problems.add(self.name(field), "unknown key", expected=f"one of {', '.join(sorted(self._known))}")

    def _read(self, field: str, allowed: str, convert: Callable[[object], T], required: bool, run: str) -> T | None:
        value = self.raw(field)
        if value is None:
            if required:
                self.problems.add(self.name(field), "missing", expected=allowed, run=run)
            return None
        try:
            return convert(value)
        except (ValueError, TypeError):
            self.problems.add(self.name(field), "not allowed", expected=allowed, found=value, run=run)
            return None

    def text(
        self, field: str, *, pattern: str = r".+", allowed: str, required: bool = False, run: str = ""
    ) -> str | None:
        def convert(value: object) -> str:
            if not isinstance(value, str) or not re.fullmatch(pattern, value):
                raise ValueError
            return value

        return self._read(field, allowed, convert, required, run)

    def choice(self, field: str, options: Sequence[str], *, required: bool = False) -> str | None:
        def convert(value: object) -> str:
            if value not in options:
                raise ValueError
            return str(value)

        return self._read(field, " or ".join(options), convert, required, "")

    def integer(self, field: str, low: int, high: int, default: int) -> int:
        def convert(value: object) -> int:
            if isinstance(value, bool) or not isinstance(value, int | str):
                raise ValueError
            number = int(value)
            if not low <= number <= high:
                raise ValueError
            return number

        number = self._read(field, f"a whole number from {low} to {high}", convert, False, "")
        return default if number is None else number

    def price(self, field: str) -> float | None:
        def convert(value: object) -> float:
            if isinstance(value, bool) or not isinstance(value, int | float | str):
                raise ValueError
            number = float(value)
            if not math.isfinite(number) or number < 0:
                raise ValueError
            return number

        return self._read(field, "a price in US dollars an hour, 0 or more", convert, False, "")

    def flag(self, field: str) -> bool:
        def convert(value: object) -> bool:
            if isinstance(value, bool):
                return value
            if value in _TRUE + _FALSE:
                return value in _TRUE
            raise ValueError

        return self._read(field, "true or false", convert, False, "") or False

    def instant(self, field: str) -> str | None:
        """A point in time, RFC 3339 with its zone: a deadline without one is hours off for somebody."""

        def convert(value: object) -> str:
            if not isinstance(value, str) or datetime.fromisoformat(value).tzinfo is None:
                raise ValueError
            return value

        return self._read(field, 'a time with its zone, e.g. "2026-03-01T11:00:00Z"', convert, False, "")

    def section(self, field: str) -> Section:
        value = self.raw(field)
        if value is not None and not isinstance(value, Mapping):
            self.problems.add(self.name(field), "not allowed", expected="a mapping", found=value)
        return Section(self.name(field), value if isinstance(value, Mapping) else {}, self.problems)
