"""Buckets of the stand-in, each of their settings a resource of its own as with the real provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import boto3
from botocore.exceptions import ClientError

from tests.aws_provider.kinds import Clients, Kind, Properties, from_pairs, to_boto, to_pairs


def create_bucket(clients: Clients, properties: Properties) -> tuple[str, Properties]:
    name, client = properties["bucket"], clients.connect("s3")
    client.create_bucket(Bucket=name, ObjectLockEnabledForBucket=bool(properties.get("objectLockEnabled")))
    client.put_bucket_tagging(Bucket=name, Tagging={"TagSet": to_pairs(properties.get("tags"))})
    if clients.s3_url:
        # Objects go to a real S3 server; the settings are kept by the one that plays AWS.
        real = boto3.client("s3", endpoint_url=clients.s3_url, region_name=clients.region)
        real.create_bucket(Bucket=name)
        # By its tags the next stack knows that the bucket is one of Decamp's.
        real.put_bucket_tagging(Bucket=name, Tagging={"TagSet": to_pairs(properties.get("tags"))})
    return name, {"arn": f"arn:aws:s3:::{name}"}


def read_bucket(clients: Clients, name: str, _held: Properties) -> Properties | None:
    client = clients.connect("s3")
    try:
        client.head_bucket(Bucket=name)
    except ClientError:
        return None
    return {"tags": from_pairs(client.get_bucket_tagging(Bucket=name)["TagSet"])}


def update_bucket(clients: Clients, name: str, _olds: Properties, news: Properties) -> None:
    clients.connect("s3").put_bucket_tagging(Bucket=name, Tagging={"TagSet": to_pairs(news.get("tags"))})


def delete_bucket(clients: Clients, name: str, _held: Properties) -> None:
    clients.connect("s3").delete_bucket(Bucket=name)


def _setting(put: Callable[[Any, Properties], None], read: Callable[[Any, str], Properties]) -> Kind:
    def create(clients: Clients, properties: Properties) -> tuple[str, Properties]:
        put(clients.connect("s3"), properties)
        return properties["bucket"], {}

    def look(clients: Clients, name: str, _held: Properties) -> Properties | None:
        try:
            return read(clients.connect("s3"), name)
        except ClientError:
            return None

    def update(clients: Clients, _name: str, _olds: Properties, news: Properties) -> None:
        put(clients.connect("s3"), news)

    def delete(_clients: Clients, name: str, _held: Properties) -> None:
        raise AssertionError(f"a setting of {name} is to be deleted, and the store must be retained")

    return Kind(create, look, delete, update, fixed=("bucket",))


def _put_access(client: Any, properties: Properties) -> None:
    keys = ("blockPublicAcls", "blockPublicPolicy", "ignorePublicAcls", "restrictPublicBuckets")
    settings = to_boto({key: properties.get(key, False) for key in keys})
    client.put_public_access_block(Bucket=properties["bucket"], PublicAccessBlockConfiguration=settings)


def _read_access(client: Any, name: str) -> Properties:
    told = client.get_public_access_block(Bucket=name)["PublicAccessBlockConfiguration"]
    return {key[:1].lower() + key[1:]: value for key, value in told.items()}


def _put_versioning(client: Any, properties: Properties) -> None:
    settings = to_boto(properties["versioningConfiguration"])
    client.put_bucket_versioning(Bucket=properties["bucket"], VersioningConfiguration=settings)


def _read_versioning(client: Any, name: str) -> Properties:
    return {"versioningConfiguration": {"status": client.get_bucket_versioning(Bucket=name).get("Status", "Disabled")}}


def _put_ownership(client: Any, properties: Properties) -> None:
    client.put_bucket_ownership_controls(
        Bucket=properties["bucket"], OwnershipControls={"Rules": [to_boto(properties["rule"])]}
    )


def _read_ownership(client: Any, name: str) -> Properties:
    (rule,) = client.get_bucket_ownership_controls(Bucket=name)["OwnershipControls"]["Rules"]
    return {"rule": {"objectOwnership": rule["ObjectOwnership"]}}


def _put_encryption(client: Any, properties: Properties) -> None:
    default = properties["rules"][0]["applyServerSideEncryptionByDefault"]
    rule = {"SSEAlgorithm": default["sseAlgorithm"]}
    if default.get("kmsMasterKeyId"):
        rule["KMSMasterKeyID"] = default["kmsMasterKeyId"]
    settings = {"Rules": [{"ApplyServerSideEncryptionByDefault": rule}]}
    client.put_bucket_encryption(Bucket=properties["bucket"], ServerSideEncryptionConfiguration=settings)


def _read_encryption(client: Any, name: str) -> Properties:
    client.get_bucket_encryption(Bucket=name)
    return {}


def _put_policy(client: Any, properties: Properties) -> None:
    client.put_bucket_policy(Bucket=properties["bucket"], Policy=properties["policy"])


def _read_policy(client: Any, name: str) -> Properties:
    return {"policy": client.get_bucket_policy(Bucket=name)["Policy"]}


def _put_lifecycle(client: Any, properties: Properties) -> None:
    rules = []
    for rule in properties["rules"]:
        told = to_boto({key: value for key, value in rule.items() if key not in ("id", "filter")})
        chosen = to_boto(rule.get("filter") or {})
        rules.append({**told, "ID": rule["id"], "Filter": chosen or {"Prefix": ""}})
    client.put_bucket_lifecycle_configuration(Bucket=properties["bucket"], LifecycleConfiguration={"Rules": rules})


def _read_lifecycle(client: Any, name: str) -> Properties:
    client.get_bucket_lifecycle_configuration(Bucket=name)
    return {}


def _put_lock(client: Any, properties: Properties) -> None:
    settings = {"ObjectLockEnabled": "Enabled", "Rule": to_boto(properties["rule"])}
    client.put_object_lock_configuration(Bucket=properties["bucket"], ObjectLockConfiguration=settings)


def _read_lock(client: Any, name: str) -> Properties:
    client.get_object_lock_configuration(Bucket=name)
    return {}


KINDS = {
    "aws:s3/bucket:Bucket": Kind(
        create_bucket, read_bucket, delete_bucket, update_bucket, fixed=("bucket", "objectLockEnabled")
    ),
    "aws:s3/bucketPublicAccessBlock:BucketPublicAccessBlock": _setting(_put_access, _read_access),
    "aws:s3/bucketVersioning:BucketVersioning": _setting(_put_versioning, _read_versioning),
    "aws:s3/bucketOwnershipControls:BucketOwnershipControls": _setting(_put_ownership, _read_ownership),
    "aws:s3/bucketServerSideEncryptionConfiguration:BucketServerSideEncryptionConfiguration": _setting(
        _put_encryption, _read_encryption
    ),
    "aws:s3/bucketPolicy:BucketPolicy": _setting(_put_policy, _read_policy),
    "aws:s3/bucketLifecycleConfiguration:BucketLifecycleConfiguration": _setting(_put_lifecycle, _read_lifecycle),
    "aws:s3/bucketObjectLockConfiguration:BucketObjectLockConfiguration": _setting(_put_lock, _read_lock),
}
