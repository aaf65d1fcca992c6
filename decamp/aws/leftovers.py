"""Whatever in an account carries Decamp's tags and costs money or blocks is found: its age, its price, whose it is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

from decamp.aws.account import Account, CloudRefusal, translated
from decamp.aws.price_table import GP3_PER_GIB_MONTH, HOURS_PER_MONTH, PUBLIC_IPV4_PER_HOUR
from decamp.aws.prices import find_on_demand
from decamp.aws.tags import CONTACTED, NODE, OWNER, PROJECT, PROJECT_NAME, STACK, make_filters, read_tags
from decamp.errors import BadInput

_ENDED = ("terminated", "shutting-down")
# Amazon S3 pricing, S3 Standard, us-east-1.
_S3_PER_GIB_MONTH = 0.023
_FILTER_VALUES = 200

HELD, LOST, ELSEWHERE = "held", "lost", "elsewhere"

# What costs nothing, yet uses up quotas, takes names or gives rights: kind, EC2's listing and its key, and the id that
# a stack's state has for it.
_FREE_OF_EC2 = (
    ("vpc", "describe_vpcs", "Vpcs", "VpcId"),
    ("security-group", "describe_security_groups", "SecurityGroups", "GroupId"),
    ("key-pair", "describe_key_pairs", "KeyPairs", "KeyName"),
    ("placement-group", "describe_placement_groups", "PlacementGroups", "GroupName"),
)
_RIGHTS = (
    ("role", "list_roles", "get_role", "Role"),
    ("profile", "list_instance_profiles", "get_instance_profile", "InstanceProfile"),
)
# As Pulumi names what infra.aws.node declares: NODE-role-0a1b2c3.
_RIGHTS_NAME = re.compile(r"[a-z0-9-]+-(role|profile)-[0-9a-f]{7,}")
# A sweep removes none of these: each may hold others, and none can run up a bill. The command does it by hand.
REMOVED_BY_HAND = {
    "vpc": "aws ec2 delete-vpc --vpc-id",
    "security-group": "aws ec2 delete-security-group --group-id",
    "key-pair": "aws ec2 delete-key-pair --key-name",
    "placement-group": "aws ec2 delete-placement-group --group-name",
    "role": "aws iam delete-role --role-name",
    "profile": "aws iam delete-instance-profile --instance-profile-name",
}


@dataclass(frozen=True)
class Leftover:
    """Something that costs money, or is free and in the way.

    Args:
        kind: `instance`, `volume`, `address` or `upload`, or one of REMOVED_BY_HAND, which are free.
        id: EC2's id; the name of a key pair, placement group, role or profile; an upload's `bucket/key#upload-id`.
        stack, node, owner: as its tags say.
        belongs: `held` by its stack's state, `lost` by a stack that is known here, or of a stack `elsewhere`, which is
            not in this backend and may well hold it.
        created_at: when, where AWS says it.
        price_per_hour: US dollars, an instance's with its disks; None when no price is known.
        detail: type, size, state.
    """

    kind: str
    id: str
    stack: str
    node: str
    owner: str
    belongs: str
    created_at: datetime | None
    price_per_hour: float | None
    detail: str

    def age_hours(self, now: datetime) -> float | None:
        return None if self.created_at is None else (now - self.created_at).total_seconds() / 3600

    def to_document(self, now: datetime) -> dict[str, Any]:
        age = self.age_hours(now)
        created = self.created_at.isoformat() if self.created_at else None
        return {**asdict(self), "created_at": created, "age_hours": None if age is None else round(age, 1)}


def find_leftovers(account: Account, stacks: Mapping[str, frozenset[str]]) -> list[Leftover]:
    """Returns everything of Decamp's that costs money or stands in a way, what stacks hold included.

    Args:
        account: whose region is looked through.
        stacks: the stacks of this backend, each with the ids its state holds.
    """
    search = _Search(account, stacks)
    instances = list(search.find_instances())
    found = [*instances, *search.find_volumes({one.id for one in instances})]
    return [*found, *search.find_addresses(), *search.find_uploads(), *search.find_free(), *search.find_rights()]


class _Search:
    """One look through an account's region, with what the stacks of this backend hold."""

    def __init__(self, account: Account, stacks: Mapping[str, frozenset[str]]) -> None:
        self._account, self._stacks = account, stacks

    def _list(self, operation: str, key: str) -> list[Any]:
        """Returns what one of EC2's listings has of the project's."""
        ec2: Any = self._account.ec2
        with translated(operation.removeprefix("describe_").replace("_", " ")):
            if not ec2.can_paginate(operation):
                return list(getattr(ec2, operation)(Filters=make_filters())[key])
            return [one for page in ec2.get_paginator(operation).paginate(Filters=make_filters()) for one in page[key]]

    def _make(self, kind: str, resource_id: str, tags: Mapping[str, str], price: float | None, **more: Any) -> Leftover:
        stack = tags.get(STACK, "")
        belongs = HELD if resource_id in self._stacks.get(stack, ()) else LOST
        told = {
            "stack": stack,
            "node": tags.get(NODE, ""),
            "owner": tags.get(OWNER, ""),
            "belongs": belongs if stack in self._stacks else ELSEWHERE,
            "created_at": None,
            **more,
        }
        return Leftover(kind=kind, id=resource_id, price_per_hour=price, **told)

    def find_instances(self) -> Iterator[Leftover]:
        """Finds instances, each with the disks that are attached to it: a stopped one costs what they cost."""
        prices: dict[str, float | None] = {}
        told = [one for entry in self._list("describe_instances", "Reservations") for one in entry["Instances"]]
        living = [one for one in told if one["State"]["Name"] not in _ENDED]
        sizes_gib = self._measure_disks([str(one["InstanceId"]) for one in living])
        for one in living:
            state, kind, tags = one["State"]["Name"], str(one["InstanceType"]), read_tags(one.get("Tags"))
            if kind not in prices:
                price = find_on_demand(self._account, kind)
                prices[kind] = price.per_hour if price else None
            contacted = "was in use" if CONTACTED in tags else "never contacted"
            size_gib = sizes_gib[one["InstanceId"]]
            detail = (
                f"{kind}, {one.get('InstanceLifecycle', 'on-demand')}, {state}, {size_gib} GiB of disk, {contacted}"
            )
            itself = 0.0 if state == "stopped" else prices[kind]
            per_hour = None if itself is None else itself + _price_disk(size_gib)
            yield self._make("instance", one["InstanceId"], tags, per_hour, created_at=one["LaunchTime"], detail=detail)

    def _measure_disks(self, instance_ids: list[str]) -> Counter[str]:
        """Returns how many GiB of volumes are attached to each instance, whoever's the volumes are."""
        sizes_gib: Counter[str] = Counter()
        # A filter takes 200 values (EC2 API Reference, "Filter", 2025).
        for start in range(0, len(instance_ids), _FILTER_VALUES):
            some = instance_ids[start : start + _FILTER_VALUES]
            with translated("volumes"):
                pages = self._account.ec2.get_paginator("describe_volumes").paginate(
                    Filters=[{"Name": "attachment.instance-id", "Values": some}]
                )
                told = [one for page in pages for one in page["Volumes"]]
            for one in told:
                for attached in one["Attachments"]:
                    sizes_gib[attached["InstanceId"]] += one["Size"]
        return sizes_gib

    def find_volumes(self, instance_ids: Collection[str]) -> Iterator[Leftover]:
        for one in self._list("describe_volumes", "Volumes"):
            if any(attached["InstanceId"] in instance_ids for attached in one.get("Attachments", [])):
                continue  # told and priced with its instance
            size_gib = int(one["Size"])
            yield self._make(
                "volume",
                one["VolumeId"],
                read_tags(one.get("Tags")),
                _price_disk(size_gib),
                created_at=one["CreateTime"],
                detail=f"{size_gib} GiB, {one['State']}",
            )

    def find_addresses(self) -> Iterator[Leftover]:
        for one in self._list("describe_addresses", "Addresses"):
            detail = f"{one['PublicIp']}, {'in use' if one.get('AssociationId') else 'idle'}"
            yield self._make(
                "address", one["AllocationId"], read_tags(one.get("Tags")), PUBLIC_IPV4_PER_HOUR, detail=detail
            )

    def find_uploads(self) -> Iterator[Leftover]:
        s3 = self._account.s3
        for bucket, tags in _find_buckets(self._account):
            with translated(f"s3://{bucket}"):
                pages = s3.get_paginator("list_multipart_uploads").paginate(Bucket=bucket)
                told = [upload for page in pages for upload in page.get("Uploads", [])]
            for upload in told:
                with translated(f"s3://{bucket}/{upload['Key']}"):
                    parts = s3.list_parts(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]).get(
                        "Parts", []
                    )
                size_bytes = sum(int(part["Size"]) for part in parts)
                yield self._make(
                    "upload",
                    f"{bucket}/{upload['Key']}#{upload['UploadId']}",
                    tags,
                    size_bytes / 2**30 * _S3_PER_GIB_MONTH / HOURS_PER_MONTH,
                    node="",
                    # No state holds an upload. One that is young may be an evacuation's that runs now.
                    belongs=LOST,
                    created_at=upload["Initiated"],
                    detail=f"{size_bytes:,} bytes in the first {len(parts)} parts",
                )

    def find_free(self) -> Iterator[Leftover]:
        for kind, operation, key, name in _FREE_OF_EC2:
            for one in self._list(operation, key):
                detail = str(one.get("CidrBlock") or one.get("GroupName") or one.get("KeyPairId") or "")
                yield self._make(kind, one[name], read_tags(one.get("Tags")), 0.0, detail=detail)

    def find_rights(self) -> Iterator[Leftover]:
        """Finds roles and instance profiles. IAM lists them without tags, so those named like a node's are read."""
        iam = self._account.connect("iam")
        for kind, listing, reading, key in _RIGHTS:
            with translated(f"IAM: {kind}s"):
                pages = iam.get_paginator(listing).paginate()
                told = [one for page in pages for one in page[f"{key}s"] if _RIGHTS_NAME.fullmatch(one[f"{key}Name"])]
            for one in told:
                name = str(one[f"{key}Name"])
                with translated(f"IAM: {name}"):
                    tags = read_tags(getattr(iam, reading)(**{f"{key}Name": name})[key].get("Tags"))
                if tags.get(PROJECT) == PROJECT_NAME:
                    yield self._make(kind, name, tags, 0.0, created_at=one["CreateDate"], detail="IAM")


def _price_disk(size_gib: int) -> float:
    """Returns what a disk costs an hour, by the table."""
    return size_gib * GP3_PER_GIB_MONTH / HOURS_PER_MONTH


def _find_buckets(account: Account) -> Iterator[tuple[str, dict[str, str]]]:
    with translated("buckets"):
        names = [str(bucket["Name"]) for bucket in account.s3.list_buckets()["Buckets"]]
    for name in names:
        try:
            with translated(f"s3://{name}"):
                tags = read_tags(account.s3.get_bucket_tagging(Bucket=name)["TagSet"])
        except CloudRefusal:
            continue  # untagged, elsewhere or not ours to see
        if tags.get(PROJECT) == PROJECT_NAME:
            yield name, tags


def remove(account: Account, leftover: Leftover) -> None:
    """Ends one thing; never a bucket.

    Raises:
        CloudRefusal: AWS did not.
    """
    with translated(leftover.id):
        if leftover.kind == "instance":
            _end_instance(account, leftover.id)
        elif leftover.kind == "volume":
            account.ec2.delete_volume(VolumeId=leftover.id)
        elif leftover.kind == "address":
            account.ec2.release_address(AllocationId=leftover.id)
        elif leftover.kind == "upload":
            place, _, upload_id = leftover.id.rpartition("#")
            bucket, _, key = place.partition("/")
            account.s3.abort_multipart_upload(Bucket=bucket, Key=key, UploadId=upload_id)
        else:
            raise BadInput(leftover.id, "is nothing that may be removed", found=leftover.kind)


def _end_instance(account: Account, instance_id: str) -> None:
    told = account.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]
    if told.get("SpotInstanceRequestId"):
        # A persistent request would start another one.
        account.ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=[told["SpotInstanceRequestId"]])
    else:
        account.ec2.modify_instance_attribute(InstanceId=instance_id, DisableApiTermination={"Value": False})
    account.ec2.terminate_instances(InstanceIds=[instance_id])
