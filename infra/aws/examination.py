"""Whatever AWS would refuse, and whatever would cost twice, is found and named before anything is declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from decamp.aws.account import Account, translated
from decamp.aws.instance_types import describe_type
from decamp.aws.reservations import Reservation, check_reservation, format_instant, read_reservation
from decamp.aws.tags import NODE, make_filters, read_tags
from decamp.errors import BadInput
from infra.aws.estimate import Estimate, check_limit, estimate
from infra.aws.places import ask_address, attempt, check_bucket, check_image, choose_sources, choose_zone, find_zones
from infra.aws.quotas import check_quota, measure_demand
from infra.aws.settings import AwsSettings, Found
from infra.aws.state import Held, HeldInstance
from infra.config import ConfigRefused, StackConfig

_ALIVE = ("pending", "running", "stopping", "stopped")


@dataclass(frozen=True)
class Examined:
    """The settings with what the account has said.

    Args:
        config: the settings, completed.
        estimate: the cost.
        vanished: names of nodes whose instance is no more.
        efa: which EFAs the nodes get and who says so; empty for none.
    """

    config: StackConfig
    estimate: Estimate
    vanished: tuple[str, ...]
    efa: str = ""


def examine(
    stack: str,
    config: StackConfig,
    account: Account,
    held: Held,
    now: datetime,
    find_address: Callable[[], str] | None = None,
) -> Examined:
    """Returns the settings completed by the account's answers. Changes nothing.

    Args:
        stack: the stack's name, which is on everything it has made.
        config: settings of the target aws.
        account: asked with the operator's credentials.
        held: what the stack's state holds.
        now: the current time.
        find_address: how the operator's address is found; a service of Amazon's by default.

    Raises:
        ConfigRefused: with everything that is wrong, at once.
        NoCredentials: there are none.
        CloudSilent: AWS does not answer.
    """
    settings = config.aws
    assert settings is not None
    problems: list[BadInput] = []
    account_id = account.identity["account"]
    alive = find_alive(account, stack)
    problems += find_unheld(alive, held, stack)
    zones = attempt(problems, lambda: find_zones(account, settings))
    if zones is None:
        # Image, subnet, reservation, bucket and quota of a wrong region are wrong because of it, and need no word.
        raise ConfigRefused(stack, problems)
    starting, ending = plan_starts(config, settings, alive, held)
    reservation = attempt(problems, lambda: _read_reservation(account, settings))
    if reservation is not None:
        block = settings.purchase.option == "capacity_block"
        key = "decamp:aws.purchase.reservation_id"
        problems += check_reservation(
            reservation, key=key, block=block, instance_type=settings.instance_type, new_nodes=starting, now=now
        )
    kind = attempt(problems, lambda: describe_type(account, settings.instance_type))
    zone = choose_zone(account, settings, zones, reservation, problems)
    attempt(problems, lambda: check_image(account, settings))
    declare_bucket = attempt(problems, lambda: check_bucket(account, config, account_id, held))
    ssh_from = attempt(problems, lambda: choose_sources(settings, find_address or ask_address)) or ()
    found = estimate(account, settings, zone, len(config.nodes))
    problems += check_limit(found, config.max_price_per_hour)
    demand = None if kind is None else measure_demand(account, settings, kind, starting, ending)
    if demand is not None:
        problems += check_quota(account, settings, demand)
    if problems:
        raise ConfigRefused(stack, problems)
    assert kind is not None
    facts = Found(
        account_id,
        zone,
        ssh_from,
        bool(declare_bucket),
        kind.gpu,
        vcpus=kind.vcpus,
        quota_vcpus=demand.total if demand else 0,
        interfaces=kind.interfaces,
    )
    completed = _complete(config, settings, facts, reservation, found)
    vanished = {node.name for node in config.nodes} - {one.node for one in alive}
    return Examined(completed, found, tuple(sorted(vanished)), kind.describe_efa() if settings.efa else "")


def _complete(
    config: StackConfig, settings: AwsSettings, facts: Found, reservation: Reservation | None, found: Estimate
) -> StackConfig:
    end = format_instant(reservation.deadline) if reservation else ""
    price = settings.purchase.price_per_hour if settings.purchase.option == "capacity_block" else found.node_per_hour
    nodes = tuple(
        replace(
            node,
            gpu=node.gpu or facts.gpu or "none",
            price_per_hour=None if price is None else round(price, 4),
            # Whichever comes first: nothing lives longer than its block.
            deadline=min((text for text in (node.deadline, end) if text), key=_as_instant, default=""),
            purchase=settings.purchase.option,
        )
        for node in config.nodes
    )
    expires = settings.expires or end or "unknown"
    return replace(config, nodes=nodes, aws=replace(settings, expires=expires, found=facts))


def _as_instant(text: str) -> datetime:
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def _read_reservation(account: Account, settings: AwsSettings) -> Reservation | None:
    reservation_id = settings.purchase.reservation_id
    return read_reservation(account, reservation_id, "decamp:aws.purchase.reservation_id") if reservation_id else None


@dataclass(frozen=True)
class Alive:
    """An instance of the stack that has not ended; `state` as EC2 names it."""

    node: str
    instance_id: str
    state: str


def find_alive(account: Account, stack: str) -> list[Alive]:
    """Returns every instance that carries the stack's tags and has not ended, sorted by node."""
    states = [{"Name": "instance-state-name", "Values": list(_ALIVE)}]
    with translated("instances of the stack"):
        pages = account.ec2.get_paginator("describe_instances").paginate(Filters=[*make_filters(stack), *states])  # type: ignore[list-item]  # plain mappings
        told = [one for page in pages for reservation in page["Reservations"] for one in reservation["Instances"]]
    found = [
        Alive(read_tags(one.get("Tags")).get(NODE, ""), str(one["InstanceId"]), str(one["State"]["Name"]))
        for one in told
    ]
    return sorted(found, key=lambda one: (one.node, one.instance_id))


def find_unheld(alive: Sequence[Alive], held: Held, stack: str) -> list[BadInput]:
    """Returns one problem for each living instance of the stack that its state does not hold.

    An `up` that was killed while EC2 started an instance leaves one. The next would start, and pay for, a second.
    """
    return [
        BadInput(
            one.instance_id,
            f'is tagged as {one.node} of "{stack}" and costs money, but the stack does not hold it:'
            " an interrupted up has left it",
            run="decamp sweep  # or, to keep it, pulumi import aws:ec2/instance:Instance",
        )
        for one in alive
        if one.instance_id not in held.instances
    ]


def plan_starts(
    config: StackConfig, settings: AwsSettings, alive: Sequence[Alive], held: Held
) -> tuple[int, list[HeldInstance]]:
    """Returns how many instances an `up` would start, and which of those that run end before.

    A node that has an instance of another type, purchase option or reservation gets another instance, which needs a
    place of its own like a new node's. The engine ends the old one first (delete_before_replace), so the place that it
    had is free by then. A node that leaves the stack ends after everything new was started, and frees nothing in time.
    One that is replaced for another reason, such as its image, is started again where it was: no place more, none less.
    """
    wanted = HeldInstance(settings.instance_type, settings.purchase.option, settings.purchase.reservation_id)
    starting, ending = 0, []
    for node in config.nodes:
        own = [one for one in alive if one.node == node.name]
        replaced = [one for one in own if held.instances.get(one.instance_id, wanted) != wanted]
        if replaced or not own:
            starting += 1
        # One that is stopped takes nothing of a quota.
        ending += [held.instances[one.instance_id] for one in replaced if one.state in ("pending", "running")]
    return starting, ending
