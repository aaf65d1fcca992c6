"""Which tier an entry belongs to: the first rule that names it decides.

Patterns are gitignore patterns (gitignore(5), git 2.39) relative to their root, with two differences: in a spec the
first match wins, so that a reader can stop reading at the rule that fits, and `?` and `[...]` stand for a character
where git has a byte. What git would quietly match with nothing is refused.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

IRREPLACEABLE = "irreplaceable"
USEFUL = "useful"
GARBAGE = "garbage"
TIERS = (IRREPLACEABLE, USEFUL, GARBAGE)
_STAR = "[^/]*"


@dataclass(frozen=True)
class Check:
    """A test of whether data is good: its kind and the parameters of that kind."""

    kind: str
    parameters: dict[str, Any] = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        return {"kind": self.kind, **self.parameters}


@dataclass(frozen=True)
class Rule:
    """One line of a spec's `rules`.

    Attributes:
        match: the gitignore pattern as it was written.
        tier: one of TIERS.
        reason: why the tier is what it is; the report repeats it.
        check: a test that every regular file the rule names has to pass, or None.
        mark_only: a failed check marks the entry in the report and does not make the verdict NOT SAFE.
        optional: naming nothing is fine.
    """

    match: str
    tier: str
    reason: str = ""
    check: Check | None = None
    mark_only: bool = False
    optional: bool = False


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Returns an expression whose `match` accepts exactly the paths that the gitignore pattern names.

    A pattern that names a directory names all that it holds. A directory's path is given with a slash at its end.
    A name may hold any character, line ends included: hence DOTALL, and `\\Z` in place of `$`, which would also
    accept a name with a line end appended.

    Raises:
        ValueError: the text is no gitignore pattern, or one that names nothing.
    """
    pattern = _without_trailing_blanks(pattern)
    if not pattern or pattern.startswith("#"):
        raise ValueError("is empty or a comment")
    if pattern.startswith("!"):
        raise ValueError("excludes with '!': the first matching rule wins here, so put the exception before it")
    directories_only = pattern.endswith("/")
    parts = _parts(pattern[:-1] if directories_only else pattern)
    is_anchored = len(parts) > 1
    if is_anchored and not parts[0]:
        parts = parts[1:]
    if any(part in ([], ["\\."], ["\\.", "\\."]) for part in parts):
        raise ValueError("names nothing: it has an empty or dotted part")
    text = "" if is_anchored else "(?:.+/)?"
    for number, part in enumerate(parts):
        is_last = number == len(parts) - 1
        if set(part) == {_STAR}:
            if is_anchored and len(part) > 1:
                if not is_last:
                    text += "(?:.+/)?"
                    continue
                return re.compile(text + (".+/" if directories_only else "."), re.DOTALL)
            text += "[^/]+"
        else:
            text += "".join(part)
        text += "/" if not is_last or directories_only else "(?:/|\\Z)"
    return re.compile(text, re.DOTALL)


def _without_trailing_blanks(pattern: str) -> str:
    kept = pattern.rstrip(" ")
    slashes = len(kept) - len(kept.rstrip("\\"))
    return kept + " " if slashes % 2 and len(kept) < len(pattern) else kept


def _parts(pattern: str) -> list[list[str]]:
    """The parts of a pattern between its slashes, each a list of expressions for one character or one star."""
    parts: list[list[str]] = [[]]
    rest = iter(pattern)
    for character in rest:
        if character == "\\":
            character = next(rest, "")
            if not character:
                raise ValueError("ends with a backslash that escapes nothing")
            expression = re.escape(character)
        elif character == "[":
            expression = _character_class(rest)
        else:
            expression = {"*": _STAR, "?": "[^/]"}.get(character) or re.escape(character)
        if character == "/":
            parts.append([])
        else:
            parts[-1].append(expression)
    return parts


def _character_class(rest: Iterator[str]) -> str:
    """The expression for what stands between brackets; reads up to the closing one. It never stands for a slash."""
    content, is_negated, is_first = "", False, True
    for character in rest:
        if is_first and not is_negated and character in "!^":
            is_negated = True
            continue
        if character == "]" and not is_first:
            try:
                re.compile(f"[{content}]")
            except re.error as error:
                raise ValueError(f"has brackets that cannot be understood: {error}") from error
            return f"(?!/)[{'^' if is_negated else ''}{content}]"
        if character == ":" and content.endswith("\\["):
            raise ValueError("has a class such as [:alpha:] in brackets: name a range such as a-z")
        if character == "\\":
            character = next(rest, "")
            content += re.escape(character)
        else:
            content += "-" if character == "-" and not is_first else re.escape(character)
        is_first = False
    raise ValueError("has a bracket that is never closed")


class RuleBook:
    """Decides tier and rule of every entry below one root, and remembers which rules named something."""

    def __init__(self, rules: tuple[Rule, ...], default_tier: str) -> None:
        self.rules = rules
        self.default_tier_number = TIERS.index(default_tier)
        self._matchers = [(compile_pattern(rule.match).match, number) for number, rule in enumerate(rules)]
        self._tier_numbers = [TIERS.index(rule.tier) for rule in rules]
        self.matched: set[int] = set()

    def is_garbage_throughout(self, tier: int, rule: int) -> bool:
        """Says whether all that lies in a directory is garbage too: no rule before the directory's own names keepers.

        Args:
            tier, rule: what `decide` says of the directory.
        """
        if TIERS[tier] != GARBAGE:
            return False
        before = self._tier_numbers[:rule] if rule >= 0 else self._tier_numbers
        return all(TIERS[number] == GARBAGE for number in before)

    def decide(self, relative: bytes, is_directory: bool) -> tuple[int, int]:
        """Returns the tier's number in TIERS and the rule's number, -1 where only the default applies.

        Args:
            relative: path below the root, as bytes, without a slash at either end; empty for the root itself.
            is_directory: whether the entry is a directory, which patterns such as `logs/` ask for.
        """
        if not relative:
            return self.default_tier_number, -1
        text = relative.decode("utf-8", "surrogateescape")
        if is_directory:
            text += "/"
        for matches, number in self._matchers:
            if matches(text):
                self.matched.add(number)
                return self._tier_numbers[number], number
        return self.default_tier_number, -1
