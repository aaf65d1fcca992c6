"""What a stack's state holds of AWS, for checks that must know what is there already; read, never written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decamp.stack import run_pulumi

INSTANCE = "aws:ec2/instance:Instance"
BUCKET = "aws:s3/bucket:Bucket"


@dataclass(frozen=True)
class Held:
    """Ids of what the state holds: instances and buckets."""

    instance_ids: frozenset[str] = frozenset()
    buckets: frozenset[str] = frozenset()


def read_held(stack: str, project: Path) -> Held:
    """Returns what the stack's state holds; nothing for a stack that was never brought up.

    Raises:
        UnreadableStack: no engine, no such stack, or a state that cannot be read.
    """
    return parse_held(run_pulumi(["stack", "export"], stack, project))


def parse_held(state: Any) -> Held:
    """Returns what an exported state holds."""
    deployment = state.get("deployment") if isinstance(state, Mapping) else None
    resources = (deployment or {}).get("resources") or []
    ids = {
        kind: frozenset(str(one["id"]) for one in resources if one.get("type") == kind and one.get("id"))
        for kind in (INSTANCE, BUCKET)
    }
    return Held(ids[INSTANCE], ids[BUCKET])
