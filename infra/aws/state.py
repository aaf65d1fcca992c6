"""What a stack's state holds of AWS, for checks that must know what is there already; read, never written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decamp.stack import run_pulumi

INSTANCE = "aws:ec2/instance:Instance"
BUCKET = "aws:s3/bucket:Bucket"


@dataclass(frozen=True)
class HeldInstance:
    """What an instance was started as.

    Args:
        instance_type: e.g. `p5.48xlarge`.
        option: one of infra.aws.settings.PURCHASE_OPTIONS.
        reservation_id: `cr-...` that it was started in; empty for none.
    """

    instance_type: str
    option: str
    reservation_id: str = ""


@dataclass(frozen=True)
class Held:
    """What the state holds: instances by their id, and buckets by their name."""

    instances: Mapping[str, HeldInstance] = field(default_factory=dict)
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
    resources = [one for one in (deployment or {}).get("resources") or [] if one.get("id")]
    instances = {
        str(one["id"]): _read_instance(one.get("inputs") or {}) for one in resources if one.get("type") == INSTANCE
    }
    return Held(instances, frozenset(str(one["id"]) for one in resources if one.get("type") == BUCKET))


def _read_instance(inputs: Mapping[str, Any]) -> HeldInstance:
    # As infra.aws.node asks for them.
    market = (inputs.get("instanceMarketOptions") or {}).get("marketType", "")
    target = (inputs.get("capacityReservationSpecification") or {}).get("capacityReservationTarget") or {}
    reservation_id = str(target.get("capacityReservationId") or "")
    option = {"spot": "spot", "capacity-block": "capacity_block"}.get(
        market, "reservation" if reservation_id else "on_demand"
    )
    return HeldInstance(str(inputs.get("instanceType") or ""), option, reservation_id)
