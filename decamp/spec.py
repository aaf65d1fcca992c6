"""The spec of an evacuation: which trees it answers for, and what in them is worth how much.

Every problem of a spec is found before anything is touched, and all of them are told at once.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from decamp.checks import CHECK_KINDS, check_parameter_problems
from decamp.entries import sort_key
from decamp.errors import BadInput
from decamp.rules import TIERS, Check, Rule, compile_pattern

_KEYS = {"root", "default_tier", "rules", "prefer_existing", "allow_empty", "mount"}
_RULE_KEYS = {"match", "tier", "reason", "check", "on_failure", "optional"}


@dataclass(frozen=True)
class Spec:
    """A spec that has been checked.

    Attributes:
        roots: absolute paths as bytes, sorted, none inside another.
        default_tier: the tier of entries that no rule names.
        rules: in the order in which they are tried.
        prefer_existing: `s3://bucket/prefix/` places whose objects need not be copied again.
        allow_empty: a missing or empty root is fine.
        mount: a directory that has to be a mount point for the roots to be what they should be, or None.
        document: the spec as it was written, for the receipt.
    """

    roots: tuple[bytes, ...]
    default_tier: str
    rules: tuple[Rule, ...]
    prefer_existing: tuple[str, ...]
    allow_empty: bool
    mount: str | None
    document: dict[str, Any]

    @property
    def sha256(self) -> str:
        """SHA-256 of the spec's canonical JSON: the same for two files that say the same."""
        canonical = json.dumps(self.document, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
        return hashlib.sha256(canonical.encode()).hexdigest()


class SpecProblems(BadInput):
    """The spec is wrong; `problems` holds one line for each thing to mend."""

    def __init__(self, path: str, problems: list[str]) -> None:
        self.problems = problems
        super().__init__(path, "the spec is wrong:\n  " + "\n  ".join(problems))


def read_spec(path: str | Path) -> Spec:
    """Returns the spec in a YAML file.

    Raises:
        BadInput: the file cannot be read or is no YAML.
        SpecProblems: its content is wrong.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput(str(path), "the spec cannot be read", found=str(error)) from error
    try:
        document = yaml.safe_load(text)
        json.dumps(document, ensure_ascii=False).encode("utf-8", "surrogateescape")
    except (yaml.YAMLError, TypeError, ValueError, RecursionError) as error:  # ValueError: no date, no end, no text
        raise BadInput(str(path), "the spec is no plain YAML", found=" ".join(str(error).split())) from error
    return parse_spec(document, str(path))


def parse_spec(document: Any, path: str = "spec") -> Spec:
    """Returns the spec that a parsed YAML document describes; raises SpecProblems with every problem in it."""
    if not isinstance(document, dict):
        raise SpecProblems(path, [f"expected a mapping with `root` and `rules`, found {_kind(document)}"])
    problems: list[str] = []
    for key in sorted(set(map(str, document)) - _KEYS):
        problems.append(f"{key}: unknown key; known are {', '.join(sorted(_KEYS))}")
    roots = _roots(document.get("root"), problems)
    default_tier = document.get("default_tier", TIERS[0])
    if default_tier not in TIERS:
        problems.append(f"default_tier: expected one of {', '.join(TIERS)}, found {default_tier!r}")
    allow_empty = document.get("allow_empty", False)
    if not isinstance(allow_empty, bool):
        problems.append(f"allow_empty: expected true or false, found {allow_empty!r}")
    mount = document.get("mount")
    if mount is not None and (not isinstance(mount, str) or not mount.startswith("/")):
        problems.append(f"mount: expected an absolute path, found {mount!r}")
    elif mount is not None:
        mount = os.path.normpath(mount)  # as the kernel names it, without a slash at its end
    places = document.get("prefer_existing") or []
    if not isinstance(places, list) or not all(isinstance(p, str) and _is_place(p) for p in places):
        problems.append(f"prefer_existing: expected a list of s3://bucket/prefix/ places, found {places!r}")
    rules = _rules(document.get("rules"), problems)
    if problems:
        raise SpecProblems(path, problems)
    return Spec(roots, default_tier, rules, tuple(places), allow_empty, mount, document)


def _is_place(text: str) -> bool:
    bucket = text.removeprefix("s3://").split("/", 1)[0]
    return text.startswith("s3://") and bool(bucket)


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def _roots(value: Any, problems: list[str]) -> tuple[bytes, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list) or not texts or not all(isinstance(text, str) for text in texts):
        problems.append(f"root: expected an absolute path or a list of them, found {_kind(value)}")
        return ()
    roots = []
    for text in texts:
        if not text.startswith("/"):
            problems.append(f"root: expected an absolute path, found {text!r}")
            continue
        if ".." in text.split("/") or "\0" in text:
            problems.append(f"root: expected a path without '..', found {text!r}")
            continue
        try:
            roots.append(os.path.normpath("/" + text.lstrip("/")).encode("utf-8", "surrogateescape"))
        except UnicodeEncodeError:
            problems.append(f"root: expected text, found {text!r}")
    roots.sort(key=sort_key)  # in the order of the index, which is walked along
    for outer in roots:
        for inner in roots:
            if inner is not outer and (inner == outer or inner.startswith(outer.rstrip(b"/") + b"/")):
                problems.append(f"root: {os.fsdecode(inner)} lies inside {os.fsdecode(outer)}; name the outer one")
    return tuple(roots)


def _rules(value: Any, problems: list[str]) -> tuple[Rule, ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        problems.append(f"rules: expected a list, found {_kind(value)}")
        return ()
    rules = []
    for number, item in enumerate(value):
        where = f"rules[{number}]"
        if not isinstance(item, dict):
            problems.append(f"{where}: expected a mapping with `match` and `tier`, found {_kind(item)}")
            continue
        before = len(problems)
        for key in sorted(set(map(str, item)) - _RULE_KEYS):
            problems.append(f"{where}.{key}: unknown key; known are {', '.join(sorted(_RULE_KEYS))}")
        match, tier, reason = item.get("match"), item.get("tier"), item.get("reason", "")
        if not isinstance(match, str):
            problems.append(f"{where}.match: expected a gitignore pattern, found {match!r}")
        else:
            try:
                compile_pattern(match)
            except ValueError as error:
                problems.append(f"{where}.match: {match!r} {error}")
        if tier not in TIERS:
            problems.append(f"{where}.tier: expected one of {', '.join(TIERS)}, found {tier!r}")
        if not isinstance(reason, str):
            problems.append(f"{where}.reason: expected text, found {_kind(reason)}")
        on_failure = item.get("on_failure", "refuse")
        if on_failure not in ("refuse", "mark"):
            problems.append(f"{where}.on_failure: expected refuse or mark, found {on_failure!r}")
        optional = item.get("optional", False)
        if not isinstance(optional, bool):
            problems.append(f"{where}.optional: expected true or false, found {optional!r}")
        check = _check(item.get("check"), where, problems)
        if check is not None and tier == "garbage":
            problems.append(f"{where}.check: garbage is not copied, so it is not checked either")
        if len(problems) == before:
            rules.append(Rule(str(match), str(tier), reason, check, on_failure == "mark", optional))
    return tuple(rules)


def _check(value: Any, where: str, problems: list[str]) -> Check | None:
    if value is None:
        return None
    if not isinstance(value, dict) or value.get("kind") not in CHECK_KINDS:
        problems.append(
            f"{where}.check: expected a mapping whose kind is one of {', '.join(CHECK_KINDS)}, found {value!r}"
        )
        return None
    parameters = {str(key): item for key, item in value.items() if key != "kind"}
    for problem in check_parameter_problems(value["kind"], parameters):
        problems.append(f"{where}.check.{problem}")
    return Check(value["kind"], parameters)
