"""Whatever AWS would refuse, and whatever would cost twice, is found and named before anything is declared."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from decamp.aws.account import Account, translated
from decamp.aws.instance_types import InstanceType, count_vcpus, describe_type, find_quota
from decamp.aws.reservations import Reservation, check_reservation, format_instant, read_reservation
from decamp.aws.tags import NODE, make_filters, read_tags
from decamp.errors import BadInput, DecampError
from infra.aws.estimate import Estimate, check_limit, estimate
from infra.aws.places import ask_address, attempt, check_bucket, check_image, choose_sources, choose_zone
from infra.aws.settings import AwsSettings, Found
from infra.aws.state import Held
from infra.config import ConfigRefused, StackConfig

_ALIVE = ("pending", "running", "stopping", "stopped")


@dataclass(frozen=True)
class Examined:
    """The settings with what the account has said, the cost, and nodes whose instance is no more."""

    config: StackConfig
    estimate: Estimate
    vanished: tuple[str, ...]


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
    new_nodes = sum(1 for node in config.nodes if not any(name == node.name for name, _ in alive))
    reservation = attempt(problems, lambda: _read_reservation(account, settings))
    if reservation is not None:
        block = settings.purchase.option == "capacity_block"
        key = "decamp:aws.purchase.reservation_id"
        problems += check_reservation(
            reservation, key=key, block=block, instance_type=settings.instance_type, new_nodes=new_nodes, now=now
        )
    kind = attempt(problems, lambda: describe_type(account, settings.instance_type))
    zone = choose_zone(account, settings, reservation, problems)
    attempt(problems, lambda: check_image(account, settings))
    declare_bucket = attempt(problems, lambda: check_bucket(account, config, account_id, held))
    ssh_from = attempt(problems, lambda: choose_sources(settings, find_address or ask_address)) or ()
    found = estimate(account, settings, zone, len(config.nodes))
    problems += check_limit(found, config.max_price_per_hour)
    if kind is not None and new_nodes:
        problems += check_quota(account, settings, kind, new_nodes)
    if problems:
        raise ConfigRefused(stack, problems)
    gpu = kind.gpu if kind else ""
    facts = Found(account_id, zone, ssh_from, bool(declare_bucket), gpu)
    completed = _complete(config, settings, facts, reservation, found)
    vanished = {node.name for node in config.nodes} - {name for name, _ in alive}
    return Examined(completed, found, tuple(sorted(vanished)))


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


def find_alive(account: Account, stack: str) -> list[tuple[str, str]]:
    """Returns node and instance id of every instance that carries the stack's tags and has not ended."""
    states = [{"Name": "instance-state-name", "Values": list(_ALIVE)}]
    with translated("instances of the stack"):
        pages = account.ec2.get_paginator("describe_instances").paginate(Filters=[*make_filters(stack), *states])  # type: ignore[list-item]  # plain mappings
        told = [one for page in pages for reservation in page["Reservations"] for one in reservation["Instances"]]
    return sorted((read_tags(one.get("Tags")).get(NODE, ""), str(one["InstanceId"])) for one in told)


def find_unheld(alive: Sequence[tuple[str, str]], held: Held, stack: str) -> list[BadInput]:
    """Returns one problem for each living instance of the stack that its state does not hold.

    An `up` that was killed while EC2 started an instance leaves one. The next would start, and pay for, a second.
    """
    return [
        BadInput(
            instance_id,
            f'is tagged as {node} of "{stack}" and costs money, but the stack does not hold it:'
            " an interrupted up has left it",
            run="decamp sweep  # or, to keep it, pulumi import aws:ec2/instance:Instance",
        )
        for node, instance_id in alive
        if instance_id not in held.instance_ids
    ]


def check_quota(account: Account, settings: AwsSettings, kind: InstanceType, new_nodes: int) -> list[BadInput]:
    """Returns the quota that has too few vCPUs left for the new nodes, counting what runs in the region already.

    What else takes of it, such as an unused reservation, only EC2 knows, and says when an instance starts.
    """
    quota = find_quota(settings.instance_type, settings.purchase.option)
    if quota is None:
        return []
    try:
        with translated(quota.name):
            told = account.connect("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=quota.code)
    except DecampError:
        return []  # no permission to ask: EC2 itself will say
    allowed, needed = int(told["Quota"]["Value"]), kind.vcpus * new_nodes
    used = count_vcpus(account, quota)
    if used + needed <= allowed:
        return []
    return [
        BadInput(
            "decamp:nodes",
            f'the account\'s quota "{quota.name}" is too small in {account.region}',
            expected=f"{needed} vCPUs for {new_nodes} x {settings.instance_type}",
            found=f"{max(0, allowed - used)} left: {allowed} allowed, {used} in use by running instances",
            run=f"aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {quota.code}"
            f" --desired-value {used + needed} --region {account.region}",
        )
    ]
