"""The program declared for the target aws against Pulumi's mocks, from settings and from what an account would say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pulumi
import pytest

from decamp.rehearsal.host import generate_key_pair
from infra.aws.settings import Found
from infra.config import StackConfig
from tests.infra import declaration
from tests.infra.declaration import HOST_KEY, MACHINE_ID, Declared, Recorder
from tests.infra.test_config import parse

FOUND = Found("123456789012", "us-east-1b", ("203.0.113.7/32",), True, "8x B200", vcpus=192, quota_vcpus=384)


class AwsRecorder(Recorder):
    """Answers as AWS does where an output is more than its input."""

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        resource_id, outputs = super().new_resource(args)
        known: Mapping[str, dict[str, Any]] = {
            "AwsNodeOrigin": {"image": "ami-1", "seed": "00" * 32, "user_data": "#cloud-config of a test"},
            "AwsFirstContact": {"host_key": HOST_KEY, "machine_id": MACHINE_ID},
            "Instance": {"primaryNetworkInterfaceId": "eni-1", "privateIp": "10.64.0.9"},
            "Eip": {"publicIp": "198.51.100.9"},
            "KeyPair": {"keyName": "key-of-a-test"},
        }
        return resource_id, {**outputs, **known.get(args.typ.rsplit(":", 1)[-1], {})}

    def call(self, args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
        assert args.token == "aws:ec2/getSubnet:getSubnet"
        return {"id": args.args["id"], "vpcId": "vpc-given", "availabilityZone": "us-east-1b"}


def settings_of(key_file: Path, aws: Mapping[str, Any] | None = None, **changes: Any) -> dict[str, Any]:
    """Settings of a small stack as a user writes them; None leaves a key out."""
    of_aws = {
        "region": "us-east-1",
        "availability_zone": "us-east-1b",
        "owner": "somebody@example.org",
        "instance_type": "p6-b200.48xlarge",
        "purchase": {"option": "on_demand"},
        **(aws or {}),
    }
    settings = {
        "target": "aws",
        "nodes": [{"name": "b200-1"}],
        "store": {"url": "s3://archives/rentals"},
        "ssh": {"private_key_file": str(key_file)},
        "deadline": "2099-01-01T00:00:00Z",
        "aws": {key: value for key, value in of_aws.items() if value is not None},
        **changes,
    }
    return {key: value for key, value in settings.items() if value is not None}


def make_key(directory: Path) -> Path:
    return generate_key_pair(directory / "operator_ed25519")


def complete(config: StackConfig, found: Found = FOUND) -> StackConfig:
    """The settings with what an account has said."""
    assert config.aws is not None
    return replace(config, aws=config.aws.with_found(found))


def declare(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, aws: Mapping[str, Any] | None = None, **changes: Any
) -> Declared:
    """Declares a stack of these settings and returns all that it asked for."""
    found = changes.pop("found", FOUND)
    config = complete(parse(settings_of(make_key(tmp_path), aws, **changes)), found)
    return declaration.declare(monkeypatch, config, AwsRecorder)
