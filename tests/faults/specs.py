"""Random specs, with a judge of tiers of its own so that the engine's reading of the rules is checked as well."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from typing import Any

TIERS = ("irreplaceable", "useful", "garbage")


@dataclass(frozen=True)
class Rule:
    """One rule of a spec in a form whose gitignore meaning is plain: see `matches`."""

    pattern: str
    tier: str

    def matches(self, path: bytes, kind: str) -> bool:
        """Whether gitignore's rules apply the pattern to a path: itself, or a directory above it.

        Forms: `a/b/**` (all below), `a/b/` (that directory and all below), `a/` (every directory of that name and
        all below), `/a` (that entry and all below), `*.x` (every name that ends so, and all below).
        """
        raw = self.pattern.encode()
        if raw.endswith(b"/**"):
            return path.startswith(raw[:-2])
        if raw.startswith(b"*."):
            return any(part.endswith(raw[1:]) for part in path.split(b"/"))
        if raw.endswith(b"/") and b"/" in raw[:-1]:
            return path.startswith(raw) or (path == raw[:-1] and kind == "directory")
        if raw.endswith(b"/"):
            directories = path.split(b"/") if kind == "directory" else path.split(b"/")[:-1]
            return raw[:-1] in directories
        if raw.startswith(b"/"):
            return path == raw[1:] or path.startswith(raw[1:] + b"/")
        raise ValueError(f"no judge for the pattern {self.pattern}")


@dataclass
class Spec:
    """A spec to write down for the engine and to judge by."""

    roots: list[str]
    rules: list[Rule] = field(default_factory=list)
    default_tier: str = "irreplaceable"
    more: dict[str, Any] = field(default_factory=dict)

    def tier(self, path: bytes, kind: str) -> str:
        """The tier of an entry named relative to its root; the root itself is of the default tier."""
        if path:
            for rule in self.rules:
                if rule.matches(path, kind):
                    return rule.tier
        return self.default_tier

    def keeps(self, path: bytes, kind: str) -> bool:
        return self.tier(path, kind) != "garbage"

    def text(self) -> str:
        """The spec as YAML (JSON is YAML)."""
        document: dict[str, Any] = {
            "root": self.roots if len(self.roots) > 1 else self.roots[0],
            "default_tier": self.default_tier,
            "rules": [
                {"match": rule.pattern, "tier": rule.tier, "optional": True}
                | ({"reason": "made again by a script"} if rule.tier == "garbage" else {})
                for rule in self.rules
            ],
        }
        return json.dumps(document | self.more, indent=1)


def random_spec(rng: random.Random, roots: list[str], directories: list[str], suffixes: list[str]) -> Spec:
    """A spec over the given roots with up to four rules that name existing directories and suffixes."""
    forms = [f"{name}/**" for name in directories] + [f"{name}/" for name in directories]
    forms += [f"/{name}" for name in directories if "/" not in name] + [f"*{suffix}" for suffix in suffixes]
    patterns = rng.sample(forms, min(len(forms), rng.randint(0, 4)))
    rules = [Rule(pattern, rng.choices(TIERS, (2, 3, 3))[0]) for pattern in patterns]
    default = rng.choices(TIERS[:2], (4, 1))[0]
    return Spec(roots, rules, default)
