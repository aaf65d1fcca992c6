"""A reservation says itself until when its instances live; that end, not a warning, is the deadline."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from decamp.aws.account import Account, CloudRefusal, translated
from decamp.errors import BadInput

# EC2 User Guide, "Capacity Blocks for ML" (2025): blocks end at 11:30 UTC; instances are terminated from 11:00 on.
TERMINATION_LEAD = timedelta(minutes=30)


@dataclass(frozen=True)
class Reservation:
    """A capacity reservation or capacity block as EC2 describes it; an `end` of None means until it is cancelled."""

    id: str
    instance_type: str
    zone: str
    state: str
    total: int
    available: int
    start: datetime | None
    end: datetime | None
    is_block: bool
    owner: str

    @property
    def deadline(self) -> datetime | None:
        """When EC2 begins to terminate the instances; None when it never does by itself."""
        if self.end is None:
            return None
        return self.end - TERMINATION_LEAD if self.is_block else self.end


def format_instant(instant: datetime | None) -> str:
    """Returns RFC 3339 in UTC; empty for None."""
    return "" if instant is None else instant.astimezone(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


def read_reservation(account: Account, reservation_id: str, key: str) -> Reservation:
    """Returns a reservation of the account, or one shared with it.

    Args:
        account: whose region is asked.
        reservation_id: `cr-...`.
        key: the configuration key it came from, for messages.

    Raises:
        BadInput: the region has none of this id that the account may see.
    """
    try:
        with translated(key):
            told = account.ec2.describe_capacity_reservations(CapacityReservationIds=[reservation_id])
    except CloudRefusal as refusal:
        if not refusal.code.startswith("InvalidCapacityReservationId"):
            raise
        told = {"CapacityReservations": []}  # type: ignore[typeddict-item]  # as if it were not listed
    if not told["CapacityReservations"]:
        raise BadInput(
            key,
            f"no such reservation in {account.region}, or it is another account's and not shared with this one",
            found=reservation_id,
            run=f"aws ec2 describe-capacity-reservations --region {account.region}",
        )
    return parse_reservation(told["CapacityReservations"][0])


def parse_reservation(told: Mapping[str, Any]) -> Reservation:
    """Returns EC2's description typed."""
    return Reservation(
        id=str(told["CapacityReservationId"]),
        instance_type=str(told["InstanceType"]),
        zone=str(told["AvailabilityZone"]),
        state=str(told["State"]),
        total=int(told.get("TotalInstanceCount", 0)),
        available=int(told.get("AvailableInstanceCount", 0)),
        start=told.get("StartDate"),
        end=told.get("EndDate"),
        is_block=told.get("ReservationType") == "capacity-block",
        owner=str(told.get("OwnerId", "")),
    )


def check_reservation(
    found: Reservation, *, key: str, block: bool, instance_type: str, new_nodes: int, now: datetime
) -> list[BadInput]:
    """Returns every reason why nodes cannot be started in a reservation now.

    Args:
        found: the reservation.
        key: the configuration key it came from.
        block: a capacity block is asked for, not an ordinary reservation.
        instance_type: type asked for.
        new_nodes: how many instances would be started; those that run in it already need no new place.
        now: the current time.
    """
    problems: list[BadInput] = []
    if found.is_block != block:
        kinds = {True: "capacity_block", False: "reservation"}
        problems.append(
            BadInput(
                key.rsplit(".", 1)[0] + ".option",
                f"{found.id} is not of this kind",
                expected=kinds[found.is_block],
                found=kinds[block],
            )
        )
    if found.instance_type != instance_type:
        problems.append(
            BadInput(
                "decamp:aws.instance_type",
                f"{found.id} is for another type",
                expected=found.instance_type,
                found=instance_type,
            )
        )
    deadline = found.deadline
    if deadline is not None and deadline <= now:
        problems.append(
            BadInput(key, f"{found.id} is over: no instance can live in it", found=f"ended {format_instant(deadline)}")
        )
    elif found.state in ("scheduled", "payment-pending"):
        problems.append(
            BadInput(
                key,
                f"{found.id} has not begun ({found.state})",
                expected=f"an up after {format_instant(found.start) or 'its start'}",
                found=format_instant(now),
            )
        )
    elif found.state != "active":
        problems.append(BadInput(key, f"{found.id} is not active", expected="active", found=found.state))
    elif new_nodes > found.available:
        problems.append(
            BadInput(
                "decamp:nodes",
                f"{found.id} has too few free instances",
                expected=f"at most {found.available} new nodes ({found.total} in all)",
                found=str(new_nodes),
            )
        )
    return problems
