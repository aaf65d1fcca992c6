"""Which tier an entry belongs to: the first rule that names it decides.

Patterns are gitignore patterns (gitignore(5), git 2.39) relative to their root. They are turned into regular
expressions by `pathspec`, and matched here without its "last match wins": in a spec the first match wins, so
that a reader can stop reading at the rule that fits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from pathspec.patterns.gitignore.basic import GitIgnoreBasicPattern

IRREPLACEABLE = "irreplaceable"
USEFUL = "useful"
GARBAGE = "garbage"
TIERS = (IRREPLACEABLE, USEFUL, GARBAGE)


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

    A directory's path is given with a slash at its end. A name may hold any character, line ends included:
    hence DOTALL, and `\\Z` in place of `$`, which would also accept a name with a line end appended.

    Raises:
        ValueError: the text is no gitignore pattern, or one that names nothing.
    """
    compiled = GitIgnoreBasicPattern(pattern)
    if compiled.include is None:
        raise ValueError("is empty or a comment")
    if not compiled.include:
        raise ValueError("excludes with '!': the first matching rule wins here, so put the exception before it")
    assert compiled.regex is not None
    text = compiled.regex.pattern
    text = text.decode() if isinstance(text, bytes) else text
    if text.endswith("|$)"):
        text = text[:-2] + "\\Z)"
    elif text.endswith("$"):
        text = text[:-1] + "\\Z"
    if pattern.rstrip().endswith("/**"):
        text += "."  # everything inside the directory, but not the directory
    return re.compile(text, re.DOTALL)


class RuleBook:
    """Decides tier and rule of every entry below one root, and remembers which rules named something."""

    def __init__(self, rules: tuple[Rule, ...], default_tier: str) -> None:
        self.rules = rules
        self.default_tier_number = TIERS.index(default_tier)
        self._matchers = [(compile_pattern(rule.match).match, number) for number, rule in enumerate(rules)]
        self._tier_numbers = [TIERS.index(rule.tier) for rule in rules]
        self.matched: set[int] = set()

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
