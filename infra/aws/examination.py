"""Whatever AWS would refuse, and whatever would cost twice, is found and named before anything is declared."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from ipaddress import ip_address
from typing import Any

from decamp.aws.account import Account, CloudRefusal, translated
from decamp.aws.instance_types import InstanceType, describe_type, find_quota, list_zones
from decamp.aws.reservations import Reservation, check_reservation, format_instant, read_reservation
from decamp.aws.tags import NODE, PROJECT, PROJECT_NAME, make_filters, read_tags
from decamp.errors import BadInput, DecampError
from decamp.store.location import StoreLocation
from infra.aws.estimate import Estimate, check_limit, estimate
from infra.aws.origin import find_image
from infra.aws.settings import AwsSettings, Found
from infra.aws.state import Held
from infra.config import ConfigRefused, StackConfig

ADDRESS_URL = "https://checkip.amazonaws.com"
ADDRESS_TIMEOUT_S = 10
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
    reservation = _try(problems, lambda: _read_reservation(account, settings))
    if reservation is not None:
        block = settings.purchase.option == "capacity_block"
        key = "decamp:aws.purchase.reservation_id"
        problems += check_reservation(
            reservation, key=key, block=block, instance_type=settings.instance_type, new_nodes=new_nodes, now=now
        )
    kind = _try(problems, lambda: describe_type(account, settings.instance_type))
    zone = _choose_zone(account, settings, reservation, problems)
    _try(problems, lambda: _check_image(account, settings))
    declare_bucket = _try(problems, lambda: check_bucket(account, config, account_id, held))
    ssh_from = _try(problems, lambda: choose_sources(settings, find_address or ask_address)) or ()
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


def _try(problems: list[BadInput], ask: Callable[[], Any]) -> Any:
    try:
        return ask()
    except BadInput as problem:
        problems.append(problem)
        return None


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


def _choose_zone(
    account: Account, settings: AwsSettings, reservation: Reservation | None, problems: list[BadInput]
) -> str:
    zones: list[str] = _try(problems, lambda: list_zones(account, settings.instance_type)) or []
    name, region = settings.instance_type, settings.region
    if not zones:
        problems.append(
            BadInput(
                "decamp:aws.region",
                f"does not offer {name}",
                found=region,
                run=f"aws ec2 describe-instance-type-offerings --region OTHER --filters Name=instance-type,Values={name}",
            )
        )
        return settings.zone
    key = "decamp:aws.availability_zone"
    given = settings.zone
    fixed = reservation.zone if reservation else ""
    if settings.network.subnet_id:
        subnet_zone = _try(problems, lambda: _read_subnet_zone(account, settings.network.subnet_id)) or ""
        if fixed and subnet_zone and subnet_zone != fixed:
            where = "decamp:aws.network.subnet_id"
            problems.append(BadInput(where, "is in another zone than the reservation", expected=fixed, found=subnet_zone))
        fixed = fixed or subnet_zone
    if fixed and given and given != fixed:
        problems.append(BadInput(key, "differs from the reservation's or the subnet's", expected=fixed, found=given))
    zone = fixed or given
    if not zone:
        problems.append(BadInput(key, "missing", expected=f"one of {', '.join(zones)}, where {name} is offered"))
    elif zone not in zones and not reservation:
        problems.append(BadInput(key, f"does not offer {name}", expected=f"one of {', '.join(zones)}", found=zone))
    return zone


def _read_subnet_zone(account: Account, subnet_id: str) -> str:
    try:
        with translated(subnet_id):
            told = account.ec2.describe_subnets(SubnetIds=[subnet_id])["Subnets"]
    except CloudRefusal as refusal:
        raise BadInput(
            "decamp:aws.network.subnet_id", f"no such subnet in {account.region}", found=f"{subnet_id} ({refusal.code})"
        ) from None
    return str(told[0]["AvailabilityZone"])


def _check_image(account: Account, settings: AwsSettings) -> None:
    if not settings.image_id:
        find_image(account, settings.image_parameter)
        return
    try:
        with translated(settings.image_id):
            told = account.ec2.describe_images(ImageIds=[settings.image_id])["Images"]
    except CloudRefusal:
        told = []
    if not told:
        raise BadInput("decamp:aws.image.id", f"no such image in {account.region}", found=settings.image_id)


def check_bucket(account: Account, config: StackConfig, account_id: str, held: Held) -> bool:
    """Returns whether the bucket is to be a resource of the stack: it is one, or it is not there yet.

    Raises:
        BadInput: the name is taken, the bucket is somebody's, elsewhere, or expected and not there.
    """
    assert config.aws is not None
    key, bucket = "decamp:store.url", StoreLocation.parse(config.store.url).bucket
    client = account.connect("s3", endpoint_url=config.store.endpoint)
    existing = config.aws.bucket.existing
    try:
        with translated(key):
            told = client.head_bucket(Bucket=bucket, ExpectedBucketOwner=account_id)
    except CloudRefusal as refusal:
        if refusal.code in ("404", "NoSuchBucket"):
            if existing:
                raise BadInput(key, "no such bucket, and decamp:aws.bucket.existing is true", found=bucket) from None
            return True
        if refusal.code in ("301", "PermanentRedirect"):
            raise BadInput(key, "the bucket is in another region", expected=account.region, found=bucket) from None
        if refusal.code in ("403", "AccessDenied"):
            raise BadInput(
                key,
                "the bucket's name is taken by another account, or these credentials may not see it",
                expected="a name of your own: names are global",
                found=bucket,
            ) from None
        raise
    region = told.get("BucketRegion", account.region)
    if region != account.region:
        raise BadInput(key, "the bucket is in another region", expected=account.region, found=f"{bucket} in {region}")
    if existing:
        return False
    if bucket in held.buckets:
        return True
    try:
        with translated(key):
            tags = read_tags(client.get_bucket_tagging(Bucket=bucket)["TagSet"])
    except CloudRefusal:
        tags = {}
    if tags.get(PROJECT) != PROJECT_NAME:
        raise BadInput(
            key,
            "there is such a bucket, and it is not one that Decamp made",
            expected="another name, or decamp:aws.bucket.existing: true to use it as it is",
            found=bucket,
        )
    return False  # left by an earlier stack, as it must be: used by its name, with the same protection


def choose_sources(settings: AwsSettings, find_address: Callable[[], str]) -> tuple[str, ...]:
    """Returns the networks that may log in: those given, else the operator's address alone.

    Raises:
        BadInput: none is given and none can be found.
    """
    if settings.network.ssh_from:
        return settings.network.ssh_from
    key = "decamp:aws.network.ssh_from"
    run = "pulumi config set --path 'decamp:aws.network.ssh_from[0]' ADDRESS"
    if not settings.elastic_address:
        raise BadInput(key, "missing: private addresses are reached from a network of yours", expected="it", run=run)
    try:
        address = ip_address(find_address().strip())
    except (OSError, ValueError) as error:
        expected = "the address you will log in from"
        raise BadInput(key, "your address cannot be found", expected=expected, found=str(error), run=run) from None
    return (f"{address}/{address.max_prefixlen}",)


def ask_address() -> str:
    """Returns the address that the internet sees this machine at.

    Raises:
        OSError: the service does not answer.
    """
    with urllib.request.urlopen(ADDRESS_URL, timeout=ADDRESS_TIMEOUT_S) as answer:
        return str(answer.read(100).decode("ascii", "replace"))


def check_quota(account: Account, settings: AwsSettings, kind: InstanceType, new_nodes: int) -> list[BadInput]:
    """Returns the quota that is too small for the new nodes alone; what others use of it only EC2 knows."""
    quota = find_quota(settings.instance_type, settings.purchase.option)
    if quota is None:
        return []
    try:
        with translated(quota.name):
            told = account.connect("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=quota.code)
    except DecampError:
        return []  # no permission to ask: EC2 itself will say
    allowed, needed = int(told["Quota"]["Value"]), kind.vcpus * new_nodes
    if needed <= allowed:
        return []
    return [
        BadInput(
            "decamp:nodes",
            f'the account\'s quota "{quota.name}" is too small in {account.region}',
            expected=f"{needed} vCPUs for {new_nodes} x {settings.instance_type}",
            found=str(allowed),
            run=f"aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {quota.code}"
            f" --desired-value {needed} --region {account.region}",
        )
    ]
