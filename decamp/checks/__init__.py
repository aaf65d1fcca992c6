"""Is data good, not only copied? Checks that a rule asks for, and checks for being whole that run by themselves.

A check reads a file and returns a CheckResult; it raises nothing for bad data. Readers of large formats are
imported when the first such file is met, because most evacuations meet none.
"""

from __future__ import annotations

import math
import shlex
from typing import TYPE_CHECKING, Any

from decamp.checks.result import CheckResult

if TYPE_CHECKING:
    from decamp.rules import Check

_COLUMN_LIMITS = ("min_mean", "max_mean", "min_sum", "max_sum", "min_mean_sum", "max_mean_sum", "max_null_fraction")
_NUMBERS: dict[str, tuple[str, ...]] = {
    "jsonl": ("min_rows", "max_rows", *_COLUMN_LIMITS),
    "json": (),
    "arrow": ("min_rows", "max_rows", *_COLUMN_LIMITS),
    "parquet": ("min_rows", "max_rows", *_COLUMN_LIMITS),
    "safetensors": ("min_tensors",),
    "command": ("timeout_s",),
}
CHECK_KINDS = tuple(_NUMBERS)

__all__ = [
    "CHECK_KINDS",
    "CheckResult",
    "applies",
    "check_basis",
    "check_parameter_problems",
    "check_whole",
    "run_check",
]

_SUFFIX_KINDS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "json",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".ipc": "arrow",
    ".parquet": "parquet",
    ".safetensors": "safetensors",
    ".gz": "gzip",
    ".tgz": "gzip",
    ".bz2": "bzip2",
    ".xz": "xz",
    ".zst": "zstd",
    ".tar": "tar",
    ".zip": "zip",
    ".pt": "checkpoint",
    ".pth": "checkpoint",
    ".ckpt": "checkpoint",
    ".bin": "bin",
    ".npz": "zip",
    ".npy": "npy",
    ".md": "text",
    ".txt": "text",
    ".log": "text",
    ".lock": "text",
    ".py": "text",
    ".sh": "text",
    ".yml": "text",
    ".yaml": "text",
    ".toml": "text",
}


def _suffix_kind(path: bytes) -> str | None:
    name = path.rsplit(b"/", 1)[-1]
    dot = name.rfind(b".")
    return _SUFFIX_KINDS.get(name[dot:].decode("ascii", "replace").lower()) if dot > 0 else None


def check_parameter_problems(kind: str, parameters: dict[str, Any]) -> list[str]:
    """Returns one line for each parameter that the kind of check does not have or cannot use."""
    problems = []
    numbers = _NUMBERS[kind]
    texts = {"command": ("run",)}.get(kind, ("column",) if "min_mean" in numbers else ())
    lists = ("required",) if kind in ("jsonl", "json") else ()
    for name, value in parameters.items():
        if name in numbers:
            if not _is_number(value):
                problems.append(f"{name}: expected a number, found {str(value)[:60]!r}")
            elif name == "timeout_s" and value <= 0:
                problems.append(f"{name}: expected seconds above 0, found {value!r}")
        elif name == "run" and name in texts:
            if not _is_command(value):
                problems.append(f"{name}: expected a command, as text or as a list of words, found {value!r}")
        elif name in texts:
            if not (isinstance(value, str) and value):
                problems.append(f"{name}: expected text, found {value!r}")
        elif name in lists:
            if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
                problems.append(f"{name}: expected a list of names, found {value!r}")
        else:
            known = ", ".join((*numbers, *texts, *lists)) or "none"
            problems.append(f"{name}: unknown parameter of a {kind} check; known are {known}")
    if kind == "command" and "run" not in parameters:
        problems.append("run: expected the command to run, found nothing")
    if "column" not in parameters and any(name in parameters for name in _COLUMN_LIMITS):
        problems.append("column: expected the name of the column that the limits are about, found nothing")
    return problems


def _is_number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:
        return False


def _is_command(value: Any) -> bool:
    try:
        words = shlex.split(value) if isinstance(value, str) else value
    except ValueError:  # a quote that is never closed
        return False
    return (
        isinstance(words, list)
        and bool(words)
        and all(isinstance(word, str) for word in words)
        and bool(words[0])
        and not any("\0" in word for word in words)
    )


def applies(kind: str, path: bytes) -> bool:
    """Tells whether a rule's check is about this file: not where the name says that it is of another format.

    A rule such as `data/tokenized/**` also names the small JSON files that lie beside Arrow shards.
    """
    named = _suffix_kind(path)
    return kind == "command" or named is None or named == kind


def check_whole(path: bytes) -> CheckResult | None:
    """Returns whether a file of a format known by its name is complete; None for every other file."""
    kind = _suffix_kind(path)
    if kind is None or kind == "text":
        return None
    from decamp.checks.wholeness import inspect_wholeness

    return inspect_wholeness(kind, path)


def check_basis(check: Check | None, path: bytes) -> object:
    """What decides about a file under this name: equal for two names whose checks come to the same."""
    if check is not None and applies(check.kind, path):
        return check.document()
    kind = _suffix_kind(path)
    return None if kind == "text" else kind


def run_check(check: Check, path: bytes) -> CheckResult:
    """Returns what a rule's check found in a file, with the figures that it measured."""
    if check.kind == "command":
        from decamp.checks.command import run_command_check

        return run_command_check(path, check.parameters)
    from decamp.checks.goodness import inspect_goodness

    return inspect_goodness(check.kind, path, check.parameters)
