"""Zone, image, bucket and the operator's address are what the account and the network say they are, or are refused."""

from __future__ import annotations

import urllib.request
from collections.abc import Callable
from ipaddress import ip_address
from typing import TypeVar

from decamp.aws.account import Account, CloudRefusal, translated
from decamp.aws.instance_types import list_zones
from decamp.aws.reservations import Reservation
from decamp.aws.tags import PROJECT, PROJECT_NAME, read_tags
from decamp.errors import BadInput
from decamp.store.location import StoreLocation
from infra.aws.origin import find_image
from infra.aws.settings import AwsSettings
from infra.aws.state import Held
from infra.config import StackConfig

T = TypeVar("T")

ADDRESS_URL = "https://checkip.amazonaws.com"
ADDRESS_TIMEOUT_S = 10


def attempt(problems: list[BadInput], ask: Callable[[], T]) -> T | None:
    """Returns the answer; what is wrong with the input is added to the problems instead of raised."""
    try:
        return ask()
    except BadInput as problem:
        problems.append(problem)
        return None


def find_zones(account: Account, settings: AwsSettings) -> list[str]:
    """Returns the region's zones that offer the instance type, one at least.

    Raises:
        BadInput: the region offers it nowhere.
    """
    name, region = settings.instance_type, settings.region
    zones = list_zones(account, name)
    if not zones:
        raise BadInput(
            "decamp:aws.region",
            f"does not offer {name}",
            found=region,
            run=f"aws ec2 describe-instance-type-offerings --region OTHER --filters Name=instance-type,Values={name}",
        )
    return zones


def choose_zone(
    account: Account,
    settings: AwsSettings,
    zones: list[str],
    reservation: Reservation | None,
    problems: list[BadInput],
) -> str:
    """Returns where the nodes go: the reservation's zone, the subnet's, or the one given; adds what is wrong."""
    name = settings.instance_type
    key = "decamp:aws.availability_zone"
    given = settings.zone
    fixed = reservation.zone if reservation else ""
    if settings.network.subnet_id:
        subnet_zone = attempt(problems, lambda: _read_subnet_zone(account, settings.network.subnet_id)) or ""
        if fixed and subnet_zone and subnet_zone != fixed:
            where = "decamp:aws.network.subnet_id"
            problems.append(
                BadInput(where, "is in another zone than the reservation", expected=fixed, found=subnet_zone)
            )
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


def check_image(account: Account, settings: AwsSettings) -> None:
    """Returns when the image is there.

    Raises:
        BadInput: it is not, in this region.
    """
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
