"""Everything `decamp:aws` says, typed and within AWS's limits; nothing here loads an SDK or asks the account."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from infra.fields import Section

if TYPE_CHECKING:
    from decamp.aws.instance_types import Interface

# Where the image comes from unless one is given (AWS Deep Learning AMIs, "Find DLAMI IDs", 2025).
DLAMI_PARAMETER = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
PURCHASE_OPTIONS = ("on_demand", "spot", "capacity_block", "reservation")
# An instance that hibernates keeps memory on disk and loses its instance store: not offered.
INTERRUPTIONS = ("terminate", "stop")
STORAGE_CLASSES = ("STANDARD_IA", "ONEZONE_IA", "INTELLIGENT_TIERING", "GLACIER_IR", "GLACIER", "DEEP_ARCHIVE")
LOCK_MODES = ("GOVERNANCE", "COMPLIANCE")
# What is done to a bucket of the stack's own, and never to an existing one.
_OF_OUR_BUCKET = (
    "keep_old_versions_days",
    "abort_uploads_days",
    "storage_class",
    "storage_class_after_days",
    "object_lock_days",
    "object_lock_mode",
)

_REGION = r"[a-z]{2}(-[a-z]+)+-\d"
_ZONE = rf"{_REGION}([a-z]|-[a-z0-9-]+)"
_INSTANCE_TYPE = r"[a-z0-9-]+\.[a-z0-9-]+"
_TAG_VALUE = r"[\w .:/=+@-]{1,256}"
# Amazon S3 User Guide, "General purpose bucket naming rules" (2025), beyond what the store's URL already asks.
_BAD_BUCKET = (
    (r".*\.\..*", "two dots in a row"),
    (r"\d+\.\d+\.\d+\.\d+", "formatted like an IP address"),
    (r"(xn--|sthree-|amzn-s3-demo-).*", "a reserved prefix"),
    (r".*(-s3alias|--ol-s3|\.mrap|--x-s3|--table-s3)", "a reserved suffix"),
    (r".*\..*", "a dot, which breaks TLS to the bucket"),
)


@dataclass(frozen=True)
class Purchase:
    """How the instances are paid for.

    Args:
        option: one of PURCHASE_OPTIONS.
        reservation_id: `cr-...` for a capacity block or a reservation, else empty.
        interruption: what spot does when it takes the instance back.
        max_price: most to pay for spot, dollars an hour; None for up to the on-demand price.
        price_per_hour: what an hour of a block has cost, as its fee is paid beforehand; shown, not charged again.
    """

    option: str
    reservation_id: str
    interruption: str
    max_price: float | None
    price_per_hour: float | None


@dataclass(frozen=True)
class NetworkSettings:
    """Where the nodes live, and who may come in by SSH; no source means the operator's address, looked up."""

    subnet_id: str
    cidr: str
    ssh_from: tuple[str, ...]


@dataclass(frozen=True)
class BucketSettings:
    """How the bucket is kept; `existing` means that it is somebody's already and nothing about it is changed."""

    existing: bool
    kms_key_arn: str
    keep_old_versions_days: int
    abort_uploads_days: int
    storage_class: str
    storage_class_after_days: int
    object_lock_days: int
    object_lock_mode: str


@dataclass(frozen=True)
class Found:
    """What the account has said, before anything is declared.

    Args:
        account_id: twelve digits.
        zone: where the nodes go.
        ssh_from: CIDR blocks that may come in.
        declare_bucket: the bucket is this stack's resource; else it is there and is used by its name.
        gpu: like `8x B200`.
        vcpus: of one instance.
        quota_vcpus: what the quota must allow for all that runs and would be started; 0 where that is not known.
        interfaces: what an instance is started with to have its EFAs; empty for one plain interface.
    """

    account_id: str
    zone: str
    ssh_from: tuple[str, ...]
    declare_bucket: bool
    gpu: str
    vcpus: int = 0
    quota_vcpus: int = 0
    interfaces: tuple[Interface, ...] = ()


@dataclass(frozen=True)
class AwsSettings:
    """All of `decamp:aws`; `found` is filled in once the account has been asked."""

    region: str
    profile: str
    zone: str
    owner: str
    expires: str
    instance_type: str
    purchase: Purchase
    image_id: str
    image_parameter: str
    root_volume_gib: int
    shutdown: str
    elastic_address: bool
    efa: bool
    network: NetworkSettings
    bucket: BucketSettings
    found: Found | None = None

    def with_found(self, found: Found) -> AwsSettings:
        return replace(self, found=found)

    @property
    def facts(self) -> Found:
        """What the account has said; asking for it before that is a mistake in the program."""
        if self.found is None:
            raise RuntimeError("the account has not been asked")
        return self.found


def read_settings(
    section: Section, *, deadline: str, store_url: str, store_region: str, allow_any_source: bool
) -> AwsSettings:
    """Returns `decamp:aws`, with every wrong value added to the section's problems.

    Args:
        section: the mapping `decamp:aws`.
        deadline: `decamp:deadline`, which the expiry follows when none is given.
        store_url: `s3://bucket/prefix`, whose bucket must be a name that S3 takes.
        store_region: `decamp:store.region` as it was given; empty for the nodes' region.
        allow_any_source: `decamp:allow_any_source`.
    """
    region = section.text("region", pattern=_REGION, allowed="a region, e.g. us-east-1", required=True) or ""
    zone = section.text("availability_zone", pattern=_ZONE, allowed="a zone, e.g. us-east-1b") or ""
    _check_region(section, region, zone, store_region)
    purchase = _read_purchase(section.section("purchase"))
    image = section.section("image")
    image_id = image.text("id", pattern=r"ami-[0-9a-f]{8,17}", allowed="ami- and 8 or 17 hexadecimal digits") or ""
    parameter = image.text("parameter", pattern=r"/[A-Za-z0-9/._-]+", allowed="the name of an SSM parameter") or ""
    if image_id and parameter:
        section.problems.add(image.key, "has both id and parameter", expected="one of them")
    image.close()
    expires = section.instant("expires") or deadline
    if not expires and purchase.option not in ("capacity_block",):
        section.problems.add(
            section.name("expires"),
            "missing",
            expected="when this should be gone at the latest, or decamp:deadline; it is a tag, nothing ends by itself",
        )
    allowed_owner = "who answers for the cost, e.g. a mail address"
    settings = AwsSettings(
        region=region,
        profile=section.text("profile", allowed="a profile in the AWS configuration") or "",
        zone=zone,
        owner=section.text("owner", pattern=_TAG_VALUE, allowed=allowed_owner, required=True) or "",
        expires=expires,
        instance_type=section.text(
            "instance_type", pattern=_INSTANCE_TYPE, allowed="a type, e.g. p6-b200.48xlarge", required=True
        )
        or "",
        purchase=purchase,
        image_id=image_id,
        image_parameter="" if image_id else parameter or DLAMI_PARAMETER,
        # EBS User Guide, "gp3 volumes" (2025): 1 GiB to 64 TiB; DLAMI need about 100.
        root_volume_gib=section.integer("root_volume_gib", 8, 65536, 500),
        shutdown=section.choice("shutdown", ("stop", "terminate")) or "stop",
        elastic_address=(section.choice("address", ("elastic", "private")) or "elastic") == "elastic",
        efa=(section.choice("efa", ("auto", "none")) or "auto") == "auto",
        network=_read_network(section.section("network"), allow_any_source),
        bucket=_read_bucket(section.section("bucket"), store_url),
    )
    section.close()
    return settings


def _check_region(section: Section, region: str, zone: str, store_region: str) -> None:
    """Adds what is in another region than the nodes; one message where it is the nodes' region that is odd."""
    other_zone = bool(region and zone) and not zone.startswith(region)
    # Elsewhere every byte would be paid for, and the gateway endpoint would not carry it.
    other_store = bool(region and store_region) and store_region != region
    if other_zone and other_store and zone.startswith(store_region):
        what = f"is neither the region of availability_zone ({zone}) nor decamp:store.region"
        section.problems.add(section.name("region"), what, expected=store_region, found=region)
    elif other_zone:
        section.problems.add(
            section.name("availability_zone"), "is in another region", expected=f"a zone of {region}", found=zone
        )
    if other_store and not (other_zone and zone.startswith(store_region)):
        section.problems.add("decamp:store.region", "is not the nodes' region", expected=region, found=store_region)


def _read_purchase(section: Section) -> Purchase:
    option = section.choice("option", PURCHASE_OPTIONS, required=True) or ""
    reserved = option in ("capacity_block", "reservation")
    reservation_id = section.text(
        "reservation_id",
        pattern=r"cr-[0-9a-f]{8,17}",
        allowed="cr- and 17 hexadecimal digits",
        required=reserved,
        run="decamp capacity find  # then buy" if option == "capacity_block" else "",
    )
    interruption = section.choice("interruption", INTERRUPTIONS)
    max_price = section.price("max_price")
    price_per_hour = section.price("price_per_hour")
    section.close()
    belongs = (
        ("reservation_id", reservation_id, reserved, "capacity_block or reservation"),
        ("interruption", interruption, option == "spot", "spot"),
        ("max_price", max_price, option == "spot", "spot"),
        ("price_per_hour", price_per_hour, option == "capacity_block", "capacity_block"),
    )
    for field, value, fits, options in belongs:
        if value is not None and not fits and option:
            section.problems.add(section.name(field), f"means nothing for {option}", expected=f"only with {options}")
    return Purchase(option, reservation_id or "", interruption or "terminate", max_price, price_per_hour)


def _read_network(section: Section, allow_any_source: bool) -> NetworkSettings:
    subnet_id = section.text("subnet_id", pattern=r"subnet-[0-9a-f]{8,17}", allowed="subnet- and hexadecimal digits")
    cidr = section.text("cidr", allowed="an IPv4 network of /16 to /24") or "10.64.0.0/16"
    try:
        # Amazon VPC User Guide, "VPC CIDR blocks" (2025): /16 to /28; a subnet for nodes is cut out of it.
        if not 16 <= ipaddress.IPv4Network(cidr).prefixlen <= 24:
            raise ValueError
    except ValueError:
        section.problems.add(section.name("cidr"), "not allowed", expected="an IPv4 network of /16 to /24", found=cidr)
    value = section.raw("ssh_from")
    key = section.name("ssh_from")
    if value is not None and (not isinstance(value, list) or not value):
        section.problems.add(key, "not allowed", expected="a list of addresses or networks", found=value)
    sources = []
    for source in value if isinstance(value, list) else []:
        try:
            network = ipaddress.ip_network(str(source))
        except ValueError:
            section.problems.add(key, "not allowed", expected="an address or a network, e.g. 203.0.113.7", found=source)
            continue
        sources.append(str(network))
    fours = ipaddress.collapse_addresses(ipaddress.IPv4Network(one) for one in sources if ":" not in one)
    sixes = ipaddress.collapse_addresses(ipaddress.IPv6Network(one) for one in sources if ":" in one)
    # All together, as two halves of the internet are all of it.
    admits_everybody = any(one.prefixlen == 0 for one in fours) or any(one.prefixlen == 0 for one in sixes)
    if admits_everybody and not allow_any_source:
        section.problems.add(
            key,
            "would let everybody on the internet try to log in",
            expected="your own address, or decamp:allow_any_source set to true",
            found=", ".join(sources),
        )
    section.close()
    return NetworkSettings(subnet_id or "", cidr, tuple(sources))


def _read_bucket(section: Section, store_url: str) -> BucketSettings:
    bucket = store_url.removeprefix("s3://").split("/")[0]
    for pattern, what in _BAD_BUCKET:
        if re.fullmatch(pattern, bucket):
            section.problems.add("decamp:store.url", f"the bucket's name has {what}", found=bucket)
            break
    storage_class = section.choice("storage_class", STORAGE_CLASSES) or ""
    lock_mode = section.choice("object_lock_mode", LOCK_MODES)
    lock_days = section.integer("object_lock_days", 0, 36500, 0)
    if lock_mode and not lock_days:
        section.problems.add(section.name("object_lock_days"), "missing", expected="days, as object_lock_mode is given")
    existing = section.flag("existing")
    # Its key is the node's business as well: without a right to it, a node can read and write nothing.
    ignored = sorted(set(section.values) & set(_OF_OUR_BUCKET))
    if existing and ignored:
        section.problems.add(
            section.key,
            "has options that an existing bucket does not get",
            expected="existing alone, or with kms_key_arn",
            found=", ".join(ignored),
        )
    settings = BucketSettings(
        existing=existing,
        kms_key_arn=section.text("kms_key_arn", pattern=r"arn:aws[a-z-]*:kms:.+", allowed="a key's ARN") or "",
        keep_old_versions_days=section.integer("keep_old_versions_days", 1, 3650, 30),
        abort_uploads_days=section.integer("abort_uploads_days", 1, 365, 7),
        storage_class=storage_class,
        # S3 User Guide, "Transitioning objects" (2025): the infrequent-access classes take objects of 30 days and more.
        storage_class_after_days=section.integer("storage_class_after_days", 0, 3650, 30),
        object_lock_days=lock_days,
        object_lock_mode=lock_mode or "GOVERNANCE",
    )
    if storage_class in ("STANDARD_IA", "ONEZONE_IA") and settings.storage_class_after_days < 30:
        section.problems.add(
            section.name("storage_class_after_days"),
            f"S3 moves nothing to {storage_class} so soon",
            expected="30 or more",
            found=settings.storage_class_after_days,
        )
    section.close()
    return settings
