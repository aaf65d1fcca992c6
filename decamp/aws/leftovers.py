"""Whatever in an account carries Decamp's tags and costs money is found, with its age, its price and whose it is."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
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

HELD, LOST, ELSEWHERE = "held", "lost", "elsewhere"


@dataclass(frozen=True)
class Leftover:
    """Something that costs money.

    Args:
        kind: `instance`, `volume`, `address` or `upload`.
        id: EC2's id; for an upload `bucket/key#upload-id`.
        stack, node, owner: as its tags say.
        belongs: `held` by its stack's state, `lost` by a stack that is known here, or of a stack `elsewhere`, which is
            not in this backend and may well hold it.
        created_at: when, where AWS says it.
        price_per_hour: US dollars; None when no price is known.
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
    """Returns everything of Decamp's that costs money, what stacks hold included.

    Args:
        account: whose region is looked through.
        stacks: the stacks of this backend, each with the ids its state holds.
    """
    found = [*_find_instances(account, stacks)]
    found += _find_volumes(account, stacks, {one.id: one for one in found})
    found += _find_addresses(account, stacks)
    found += _find_uploads(account)
    return found


def _judge(resource_id: str, stack: str, stacks: Mapping[str, frozenset[str]]) -> str:
    if stack not in stacks:
        return ELSEWHERE
    return HELD if resource_id in stacks[stack] else LOST


def _find_instances(account: Account, stacks: Mapping[str, frozenset[str]]) -> Iterator[Leftover]:
    prices: dict[str, float | None] = {}
    with translated("instances"):
        pages = account.ec2.get_paginator("describe_instances").paginate(Filters=make_filters())  # type: ignore[arg-type]  # plain mappings
        told = [one for page in pages for reservation in page["Reservations"] for one in reservation["Instances"]]
    for one in told:
        if one["State"]["Name"] in _ENDED:
            continue
        kind, tags = str(one["InstanceType"]), read_tags(one.get("Tags"))
        if kind not in prices:
            price = find_on_demand(account, kind)
            prices[kind] = price.per_hour if price else None
        stopped = one["State"]["Name"] == "stopped"
        contacted = "was in use" if CONTACTED in tags else "never contacted"
        market = one.get("InstanceLifecycle", "on-demand")
        yield Leftover(
            kind="instance",
            id=str(one["InstanceId"]),
            stack=tags.get(STACK, ""),
            node=tags.get(NODE, ""),
            owner=tags.get(OWNER, ""),
            belongs=_judge(str(one["InstanceId"]), tags.get(STACK, ""), stacks),
            created_at=one["LaunchTime"],
            price_per_hour=0.0 if stopped else prices[kind],
            detail=f"{kind}, {market}, {one['State']['Name']}, {contacted}",
        )


def _find_volumes(
    account: Account, stacks: Mapping[str, frozenset[str]], instances: Mapping[str, Leftover]
) -> Iterator[Leftover]:
    with translated("volumes"):
        pages = account.ec2.get_paginator("describe_volumes").paginate(Filters=make_filters())  # type: ignore[arg-type]  # plain mappings
        told = [volume for page in pages for volume in page["Volumes"]]
    for volume in told:
        attached = [str(one["InstanceId"]) for one in volume.get("Attachments", [])]
        if any(instance in instances for instance in attached):
            continue  # goes with its instance
        tags, size_gib = read_tags(volume.get("Tags")), int(volume["Size"])
        yield Leftover(
            kind="volume",
            id=str(volume["VolumeId"]),
            stack=tags.get(STACK, ""),
            node=tags.get(NODE, ""),
            owner=tags.get(OWNER, ""),
            belongs=_judge(str(volume["VolumeId"]), tags.get(STACK, ""), stacks),
            created_at=volume["CreateTime"],
            price_per_hour=size_gib * GP3_PER_GIB_MONTH / HOURS_PER_MONTH,
            detail=f"{size_gib} GiB, {volume['State']}",
        )


def _find_addresses(account: Account, stacks: Mapping[str, frozenset[str]]) -> Iterator[Leftover]:
    with translated("addresses"):
        told = account.ec2.describe_addresses(Filters=make_filters())["Addresses"]  # type: ignore[arg-type]  # plain mappings
    for address in told:
        tags = read_tags(address.get("Tags"))
        yield Leftover(
            kind="address",
            id=str(address["AllocationId"]),
            stack=tags.get(STACK, ""),
            node=tags.get(NODE, ""),
            owner=tags.get(OWNER, ""),
            belongs=_judge(str(address["AllocationId"]), tags.get(STACK, ""), stacks),
            created_at=None,
            price_per_hour=PUBLIC_IPV4_PER_HOUR,
            detail=f"{address['PublicIp']}, {'in use' if address.get('AssociationId') else 'idle'}",
        )


def _find_uploads(account: Account) -> Iterator[Leftover]:
    for bucket, tags in _find_buckets(account):
        with translated(f"s3://{bucket}"):
            pages = account.s3.get_paginator("list_multipart_uploads").paginate(Bucket=bucket)
            told = [upload for page in pages for upload in page.get("Uploads", [])]
        for upload in told:
            with translated(f"s3://{bucket}/{upload['Key']}"):
                parts = account.s3.list_parts(Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"])
            size_bytes = sum(int(part["Size"]) for part in parts.get("Parts", []))
            yield Leftover(
                kind="upload",
                id=f"{bucket}/{upload['Key']}#{upload['UploadId']}",
                stack=tags.get(STACK, ""),
                node="",
                owner=tags.get(OWNER, ""),
                # No state holds an upload. One that is young may be an evacuation's that runs now.
                belongs=LOST,
                created_at=upload["Initiated"],
                price_per_hour=size_bytes / 2**30 * _S3_PER_GIB_MONTH / HOURS_PER_MONTH,
                detail=f"{size_bytes:,} bytes in the first {len(parts.get('Parts', []))} parts",
            )


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
