"""`decamp capacity`: capacity blocks are listed for nothing and bought only when the fee was typed back."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import asdict, dataclass
from datetime import datetime, timezone
from typing import Any

from decamp.aws.account import Account, CloudRefusal, CloudSilent, translated
from decamp.aws.instance_types import list_zones
from decamp.aws.reservations import Reservation, format_instant, parse_reservation
from decamp.errors import EXIT_DONE, BadInput

# EC2 User Guide, "Find and purchase Capacity Blocks" (2025): 1 to 14 days by the day, then by the week up to 182 days;
# 64 instances at most.
MAX_HOURS = 182 * 24
MAX_COUNT = 64
# EC2 API Reference, "Server error codes" (2025): the request may have been carried out all the same.
_UNDECIDED = ("InternalError", "InternalFailure", "RequestTimeout", "ServiceUnavailable", "Unavailable")

DESCRIPTION = """\
Find and buy EC2 Capacity Blocks for ML: GPU instances for fixed dates, paid in
full when bought, NEVER refunded, not to be cancelled, moved or split.

  find   lists what is offered now, with dates and fee; changes nothing
  buy    buys one offering. It shows type, count, dates and fee, and buys only
         after the fee was typed back exactly. There is no option to skip that.
         A script that must buy says the fee it expects:
             echo 22968.29 | decamp capacity buy OFFERING --instance-type ...

An offering is listed for a short time and its id is forgotten after; `buy`
lists again with the same options and refuses an id that is no longer offered.
`pulumi up` never buys: it takes the reservation's id that `buy` prints.
Exit codes: 0 done, 2 refused input or refused by AWS (nothing was bought),
4 AWS gives no answer: after a `buy`, look at what was bought before retrying:
    aws ec2 describe-capacity-reservations --filters Name=state,Values=scheduled,payment-pending,active
"""


@dataclass(frozen=True)
class Offering:
    """A capacity block on offer; the fee is for all of it, in `currency`, as EC2 writes it."""

    id: str
    instance_type: str
    count: int
    hours: int
    zone: str
    start: str
    end: str
    fee: str
    currency: str

    @property
    def fee_per_instance_hour(self) -> float:
        return float(self.fee) / max(1, self.count * self.hours)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options to its parser."""
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=type(parser))
    find = actions.add_parser("find", help="list what is offered; changes nothing")
    buy = actions.add_parser("buy", help="buy one offering, after its fee was typed back")
    buy.add_argument("offering", metavar="OFFERING", help="cbo-..., as `find` lists it")
    for action in (find, buy):
        action.add_argument("--instance-type", required=True, metavar="TYPE", help="e.g. p6-b200.48xlarge")
        action.add_argument("--count", type=int, default=1, metavar="N", help="instances in the block (default: 1)")
        action.add_argument("--hours", type=int, required=True, metavar="H", help="how long, a multiple of 24")
        action.add_argument("--region", required=True, metavar="R", help="e.g. us-east-1")
        action.add_argument("--profile", default="", metavar="P", help="profile in the AWS configuration")
        action.add_argument("--earliest", metavar="T", help="earliest start, e.g. 2026-03-01T00:00:00Z")
        action.add_argument("--latest", metavar="T", help="latest end")
        action.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    """Lists offerings, or buys one; returns the exit code.

    Raises:
        BadInput: wrong options, an offering that is gone, or another fee typed; nothing was bought.
        CloudSilent: AWS gives no answer.
    """
    _check_options(options)
    account = Account(options.region, options.profile)
    offerings = find_offerings(account, options)
    if options.action == "find":
        _tell_offerings(offerings, options)
        return EXIT_DONE
    return _buy(account, offerings, options)


def _check_options(options: argparse.Namespace) -> None:
    if not 1 <= options.count <= MAX_COUNT:
        raise BadInput("--count", "not allowed", expected=f"1 to {MAX_COUNT}", found=str(options.count))
    if options.hours % 24 or not 24 <= options.hours <= MAX_HOURS:
        raise BadInput("--hours", "not allowed", expected=f"24 to {MAX_HOURS} in steps of 24", found=str(options.hours))
    if options.hours > 14 * 24 and options.hours % 168:
        raise BadInput("--hours", "not allowed", expected="whole weeks above 14 days", found=str(options.hours))
    for name in ("earliest", "latest"):
        text = getattr(options, name)
        if text:
            _read_instant(f"--{name}", text)


def _read_instant(option: str, text: str) -> datetime:
    try:
        instant = datetime.fromisoformat(text.replace("Z", "+00:00"))
    except ValueError:
        instant = None
    if instant is None or instant.tzinfo is None:
        raise BadInput(option, "not allowed", expected="a time with its zone, e.g. 2026-03-01T00:00:00Z", found=text)
    return instant


def find_offerings(account: Account, options: argparse.Namespace) -> list[Offering]:
    """Returns what EC2 offers now, the earliest first.

    Raises:
        BadInput: the region does not have the type.
    """
    wanted: dict[str, Any] = {
        "InstanceType": options.instance_type,
        "InstanceCount": options.count,
        "CapacityDurationHours": options.hours,
    }
    for name, parameter in (("earliest", "StartDateRange"), ("latest", "EndDateRange")):
        if getattr(options, name):
            wanted[parameter] = _read_instant(f"--{name}", getattr(options, name))
    if not list_zones(account, options.instance_type):
        raise BadInput("--region", f"{account.region} does not offer {options.instance_type}")
    found: list[Offering] = []
    with translated("capacity block offerings"):
        for page in account.ec2.get_paginator("describe_capacity_block_offerings").paginate(**wanted):
            found += [_read_offering(told) for told in page["CapacityBlockOfferings"]]
    return sorted(found, key=lambda offering: (offering.start, offering.fee))


def _read_offering(told: Any) -> Offering:
    return Offering(
        id=str(told["CapacityBlockOfferingId"]),
        instance_type=str(told["InstanceType"]),
        count=int(told["InstanceCount"]),
        hours=int(told["CapacityBlockDurationHours"]),
        zone=str(told["AvailabilityZone"]),
        start=format_instant(told["StartDate"]),
        end=format_instant(told["EndDate"]),
        fee=str(told["UpfrontFee"]),
        currency=str(told.get("CurrencyCode", "USD")),
    )


def _tell_offerings(offerings: list[Offering], options: argparse.Namespace) -> None:
    if options.json:
        print(json.dumps({"offerings": [asdict(offering) for offering in offerings]}, sort_keys=True))
        return
    if not offerings:
        wanted = f"{options.count} x {options.instance_type} for {options.hours} h in {options.region}"
        print(f"nothing is offered: {wanted}")
        print("try other hours, a smaller count, another region, or a later --latest")
    for offering in offerings:
        print(describe(offering))


def describe(offering: Offering) -> str:
    """Returns an offering on one line: what, when, for how much."""
    each = f"{offering.fee_per_instance_hour:.2f} {offering.currency} an instance-hour"
    return (
        f"{offering.id}  {offering.count} x {offering.instance_type}  {offering.zone}  {offering.hours} h  "
        f"{offering.start} to {offering.end}  fee {offering.fee} {offering.currency} ({each})"
    )


def _buy(account: Account, offerings: list[Offering], options: argparse.Namespace) -> int:
    chosen = next((offering for offering in offerings if offering.id == options.offering), None)
    if chosen is None:
        raise BadInput(
            options.offering,
            "no longer offered with these options; nothing was bought",
            expected=", ".join(offering.id for offering in offerings) or "nothing is offered now",
            run="decamp capacity find ...",
        )
    who = account.identity
    sys.stderr.write(f"{describe(chosen)}\n")
    sys.stderr.write(f"account {who['account']} ({who['arn']}) pays at once; this cannot be cancelled or refunded.\n")
    sys.stderr.write(f"Type the fee ({chosen.fee}) to buy: ")
    sys.stderr.flush()
    typed = sys.stdin.readline().strip()
    if typed != chosen.fee:
        raise BadInput(chosen.id, "nothing was bought", expected=f'"{chosen.fee}"', found=f'"{typed}"')
    bought = _purchase(account, chosen)
    document = {"reservation_id": bought.id, "state": bought.state, "deadline": format_instant(bought.deadline)}
    if options.json:
        print(json.dumps(document, sort_keys=True))
    else:
        print(f"bought {bought.id} ({bought.state}); instances in it live until {document['deadline']}")
        print(f"next: decamp:aws.purchase = {{option: capacity_block, reservation_id: {bought.id}}}, then pulumi up")
    return EXIT_DONE


def _purchase(account: Account, chosen: Offering) -> Reservation:
    tags = [{"Key": "decamp:bought", "Value": format_instant(datetime.now(timezone.utc))}]
    try:
        # One attempt: after a lost answer a second one could buy a second block.
        with translated(chosen.id):
            told = account.connect("ec2", attempts=1).purchase_capacity_block(
                CapacityBlockOfferingId=chosen.id,
                InstancePlatform="Linux/UNIX",
                TagSpecifications=[{"ResourceType": "capacity-reservation", "Tags": tags}],
            )
    except (CloudRefusal, CloudSilent) as failure:
        if isinstance(failure, CloudRefusal) and failure.code not in _UNDECIDED:
            raise
        raise CloudSilent(
            chosen.id,
            "nobody knows whether it was bought: AWS gave no proper answer, and was not asked twice",
            found=failure.found,
            run=f"aws ec2 describe-capacity-reservations --region {account.region}  # before you try again",
        ) from None
    return parse_reservation(told["CapacityReservation"])
