"""Disks that are gone, or lie over something, since what lies in the workspace was counted: NOT SAFE, not gone data."""

from __future__ import annotations

import os
from typing import Any

from decamp.census import Census
from decamp.entries import Kind, State, plain_path, shown, sort_key
from decamp.findings import Finding
from decamp.index import Index
from decamp.rules import GARBAGE, TIERS, RuleBook
from decamp.spec import Spec

_GARBAGE = TIERS.index(GARBAGE)
_NOTHING = "no mount point"


def mount_findings(spec: Spec, earlier: dict[str, Any], census: Census, index: Index, when: str) -> list[Finding]:
    """Reasons for roots, and places below them, where something else is mounted than before, or nothing.

    Args:
        spec: the roots, and what is worth keeping.
        earlier: what an earlier census said of its `mounts`.
        census: has read the mounts as they are now.
        index: what was counted since then.
        when: names the time of the earlier census.
    """
    return [*_root_findings(earlier, census, when), *_inner_findings(spec, earlier, census, index, when)]


def _root_findings(earlier: dict[str, Any], census: Census, when: str) -> list[Finding]:
    found = []
    for root, mount in census.mounts_of_roots().items():
        before = earlier.get("mounts", {}).get(root)
        if before and mount and before[:2] != mount[:2]:
            found.append(
                Finding(
                    root,
                    f"the root is on another filesystem than {when}",
                    f"{before[1]} mounted at {before[0]}",
                    f"{mount[1]} mounted at {mount[0]}",
                    "mount it again, or name the mount point in the spec (mount: ...) if this is meant",
                )
            )
    return found


def _inner_findings(spec: Spec, earlier: dict[str, Any], census: Census, index: Index, when: str) -> list[Finding]:
    if "mounts_below" not in earlier:
        return []
    before: dict[str, str] = earlier["mounts_below"]
    now = {os.fsdecode(point): filesystem for point, filesystem in census.mounts_below_roots().items()}
    found = []
    for name in sorted(before.keys() | now.keys()):
        point, was, filesystem = os.fsencode(name), before.get(name, _NOTHING), now.get(name, _NOTHING)
        if was != filesystem and _is_worth_keeping(spec, index, point, was != _NOTHING):
            found.append(
                Finding(
                    shown(point),
                    f"something else is mounted here than {when}",
                    was,
                    filesystem,
                    "mount it as it was, or evacuate once with `mount: /` in the spec if this is meant",
                )
            )
    return found


def _is_worth_keeping(spec: Spec, index: Index, point: bytes, was_mounted: bool) -> bool:
    """Whether something worth keeping was counted below a mount point, or could be on what was mounted there.

    What comes and goes over garbage, or where nothing was counted, is nobody's business.
    """
    root = next((root for root in spec.roots if point.startswith(root.rstrip(b"/") + b"/")), None)
    if root is None:
        return False  # the spec has other roots by now
    book = RuleBook(spec.rules, spec.default_tier)
    cut = len(root.rstrip(b"/")) + 1
    tier, rule = book.decide(point[cut:], True)
    if was_mounted and tier != _GARBAGE:
        return True
    if book.is_garbage_throughout(tier, rule):
        return False
    key = sort_key(point)
    below = index.entries("path>? AND path<? AND state!=?", (key + b"\0", key + b"\1", int(State.GONE)))
    return any(book.decide(plain_path(one.path)[cut:], one.kind == Kind.DIRECTORY)[0] != _GARBAGE for one in below)
