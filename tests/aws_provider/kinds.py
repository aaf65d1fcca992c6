"""What every kind of resource of the stand-in offers, and the clients it is made with."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.config import Config

Properties = dict[str, Any]


@dataclass(frozen=True)
class Clients:
    """boto3 clients of the stand-in's AWS, and the directory its hosts live in (empty: it starts none)."""

    url: str
    region: str
    hosts: str
    s3_url: str

    def connect(self, service: str) -> Any:
        config = Config(retries={"total_max_attempts": 1}, s3={"addressing_style": "path"})
        return boto3.client(service, endpoint_url=self.url, region_name=self.region, config=config)

    @classmethod
    def from_environment(cls, url: str) -> Clients:
        return cls(
            url, "us-east-1", os.environ.get("DECAMP_STAND_IN_HOSTS", ""), os.environ.get("DECAMP_STAND_IN_S3_URL", "")
        )


@dataclass(frozen=True)
class Kind:
    """How resources of a type come, are looked at, change and go.

    Args:
        create: makes one; returns its id and what is known beside its inputs.
        read: returns what has become of it (only the properties that are looked at), or None if it is gone.
        delete: ends one.
        update: changes it in place; gets the id, the old and the new properties.
        fixed: inputs whose change makes another one, as with the real provider.
    """

    create: Callable[[Clients, Properties], tuple[str, Properties]]
    read: Callable[[Clients, str, Properties], Properties | None]
    delete: Callable[[Clients, str, Properties], None]
    update: Callable[[Clients, str, Properties, Properties], None] | None = None
    fixed: tuple[str, ...] = ()


def to_pairs(tags: Mapping[str, str] | None) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in (tags or {}).items()]


def from_pairs(pairs: list[dict[str, str]] | None) -> dict[str, str]:
    return {pair["Key"]: pair["Value"] for pair in pairs or []}


def to_boto(value: Any) -> Any:
    """Turns Pulumi's camelCase into boto3's PascalCase, at every depth."""
    if isinstance(value, dict):
        return {key[:1].upper() + key[1:]: to_boto(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [to_boto(inner) for inner in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def specify_tags(kind: str, properties: Properties) -> list[dict[str, Any]]:
    tags = to_pairs(properties.get("tags"))
    return [{"ResourceType": kind, "Tags": tags}] if tags else []


def retag(clients: Clients, resource_id: str, olds: Properties, news: Properties) -> None:
    """Gives an EC2 resource its new tags; those of others stay."""
    old, new = olds.get("tags") or {}, news.get("tags") or {}
    ec2 = clients.connect("ec2")
    gone = [{"Key": key} for key in old if key not in new]
    if gone:
        ec2.delete_tags(Resources=[resource_id], Tags=gone)
    if new and new != old:
        ec2.create_tags(Resources=[resource_id], Tags=to_pairs(new))
