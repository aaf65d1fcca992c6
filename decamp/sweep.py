"""`decamp sweep`: what costs money or blocks and is in no stack is listed; it goes only when its id was typed back."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

from decamp.aws.account import Account
from decamp.aws.leftovers import ELSEWHERE, HELD, LOST, REMOVED_BY_HAND, Leftover, find_leftovers, remove
from decamp.errors import EXIT_DONE, BadInput
from decamp.stack import find_project, run_pulumi

YOUNG_UPLOAD_H = 24.0

DESCRIPTION = f"""\
List what Decamp has made in an AWS account and no stack holds any more.

An `up` that is killed while EC2 starts an instance leaves it running, and a
`destroy` afterwards succeeds on a state that never knew it. Everything carries
tags with project, stack and node, so it can be found: instances, volumes,
addresses and unfinished uploads, each with its age and what it costs an hour;
and what is free, but uses up quotas, takes names or leaves rights behind: VPCs,
security groups, key pairs, placement groups, roles and instance profiles.

  lost        its stack is in this backend and does not hold it
  elsewhere   its stack is not in this backend: somebody else's may hold it
  held        its stack holds it (shown with --all)

Nothing is removed unless --remove names it, and then only after its id was
typed back on standard input. WHAT AN INSTANCE OR A VOLUME HOLDS IS LOST with
it: no archive is looked at. What a stack holds is refused (`pulumi destroy` is
its way), and so is what is `elsewhere`, unless --stack says whose it is, and
an upload that is younger than {YOUNG_UPLOAD_H:.0f} hours. Buckets are never removed.
What is free is listed alone: --remove answers with the command that does it.

It needs the stacks (PULUMI_BACKEND_URL) and AWS credentials.
Exit codes: 0 done (also when something was found), 2 refused input or refused
by AWS, 4 AWS gives no answer.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options to its parser."""
    parser.description = DESCRIPTION
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--region", required=True, metavar="R", help="the region to look through")
    parser.add_argument("--profile", default="", metavar="P", help="profile in the AWS configuration")
    parser.add_argument("--stack", default="", metavar="S", help="only what is tagged with this stack")
    parser.add_argument("--all", action="store_true", help="show what stacks hold as well")
    parser.add_argument("--remove", nargs="+", default=[], metavar="ID", help="remove these, each id typed back")
    parser.add_argument("--json", action="store_true", help="one JSON document on standard output")


def run(options: argparse.Namespace) -> int:
    """Lists leftovers, and removes those named and confirmed; returns the exit code.

    Raises:
        BadInput: an id that is not to be removed, or another one typed; what was confirmed before it is gone.
        UnreadableStack: the backend's stacks cannot be read, so nothing can be said about what they hold.
    """
    account, now = Account(options.region, options.profile), datetime.now(timezone.utc)
    found = find_leftovers(account, read_stacks())
    if options.stack:
        found = [one for one in found if one.stack == options.stack]
    if options.remove:
        _remove(account, found, options, now)
        return EXIT_DONE
    shown = [one for one in found if options.all or one.belongs != HELD]
    if options.json:
        print(json.dumps({"leftovers": [one.to_document(now) for one in shown]}, sort_keys=True))
        return EXIT_DONE
    for one in shown:
        print(describe(one, now))
    print(_sum_up(shown, options.region))
    return EXIT_DONE


def read_stacks() -> dict[str, frozenset[str]]:
    """Returns every stack of the backend with the ids that its state holds."""
    project = find_project()
    names = [str(stack["name"]) for stack in run_pulumi(["stack", "ls", "--json"], None, project)]
    return {name.rsplit("/", 1)[-1]: _read_ids(run_pulumi(["stack", "export"], name, project)) for name in names}


def _read_ids(state: Any) -> frozenset[str]:
    resources: Iterable[Any] = (state.get("deployment") or {}).get("resources") or []
    return frozenset(str(one["id"]) for one in resources if one.get("id"))


def describe(leftover: Leftover, now: datetime) -> str:
    """Returns a leftover on one line."""
    age = leftover.age_hours(now)
    aged = "age unknown" if age is None else f"{age:,.1f} h old"
    price = leftover.price_per_hour
    cost = "price unknown" if price is None else f"{price:,.4f} dollars an hour"
    if leftover.kind in REMOVED_BY_HAND:
        cost = "free"
    whose = f"stack {leftover.stack or '?'}, node {leftover.node or '-'}, owner {leftover.owner or '?'}"
    return f"{leftover.belongs:9}  {leftover.kind:8}  {leftover.id}  {leftover.detail}; {aged}, {cost}; {whose}"


def _sum_up(shown: list[Leftover], region: str) -> str:
    if not shown:
        return f"nothing of Decamp's in {region} is outside a stack"
    lost = [one for one in shown if one.belongs == LOST]
    free = sum(1 for one in lost if one.kind in REMOVED_BY_HAND)
    per_hour = sum(one.price_per_hour or 0.0 for one in lost)
    line = f"{len(lost)} lost in {region} ({free} free), {per_hour:,.2f} dollars an hour, {per_hour * 24:,.2f} a day"
    return f"{line}; run: decamp sweep --region {region} --remove ID" if lost else line


def _remove(account: Account, found: list[Leftover], options: argparse.Namespace, now: datetime) -> None:
    known = {one.id: one for one in found}
    chosen = [choose(known, wanted, options, now) for wanted in options.remove]
    for leftover in chosen:
        sys.stderr.write(f"{describe(leftover, now)}\n")
        if leftover.kind in ("instance", "volume"):
            sys.stderr.write("  What it holds and the store does not is lost.\n")
        sys.stderr.write(f"Type {leftover.id} to remove it: ")
        sys.stderr.flush()
        typed = sys.stdin.readline().strip()
        if typed != leftover.id:
            raise BadInput(leftover.id, "not removed", expected=f'"{leftover.id}"', found=f'"{typed}"')
        remove(account, leftover)
        sys.stderr.write(f"removed {leftover.id}\n")


def choose(known: dict[str, Leftover], wanted: str, options: argparse.Namespace, now: datetime) -> Leftover:
    """Returns what an id names, if it may be removed.

    Raises:
        BadInput: it is nothing that was found, a stack holds it, somebody else's may, or an evacuation may be at it.
    """
    leftover = known.get(wanted)
    if leftover is None:
        raise BadInput(wanted, "is nothing that a sweep lists", run=f"decamp sweep --region {options.region} --all")
    if leftover.belongs == HELD:
        raise BadInput(
            wanted, f"its stack {leftover.stack} holds it", expected="what no stack holds", run="pulumi destroy"
        )
    if leftover.belongs == ELSEWHERE and options.stack != leftover.stack:
        raise BadInput(
            wanted,
            f"its stack {leftover.stack} is not in this backend: somebody else's may hold it",
            expected=f"--stack {leftover.stack}, once its owner ({leftover.owner}) has agreed",
        )
    if leftover.kind in REMOVED_BY_HAND:
        run = f"{REMOVED_BY_HAND[leftover.kind]} {leftover.id}  # after what it holds"
        raise BadInput(wanted, f"is a {leftover.kind}: free, and only listed", run=run)
    age = leftover.age_hours(now)
    if leftover.kind == "upload" and (age is None or age < YOUNG_UPLOAD_H):
        raise BadInput(wanted, "an evacuation may be at it", expected=f"{YOUNG_UPLOAD_H:.0f} hours old", found=f"{age}")
    return leftover
