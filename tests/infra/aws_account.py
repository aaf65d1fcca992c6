"""An account that is asked about a small stack, with what it answers and what it refuses."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from decamp.aws.account import Account
from decamp.aws.tags import make_tags
from infra.aws.examination import Examined, examine
from infra.aws.state import Held
from infra.config import ConfigRefused
from tests.infra.aws_declaration import settings_of
from tests.infra.test_config import parse

if TYPE_CHECKING:
    from tests.aws_provider.cloud import Cloud

NOW = datetime(2026, 6, 1, 12, 0, tzinfo=timezone.utc)
BLOCK = "cr-0123456789abcdef0"


def ask_about(
    key_file: Path,
    aws: dict[str, Any] | None = None,
    *,
    held: Held | None = None,
    find_address: Any = None,
    **changes: Any,
) -> Examined:
    """Examines a small stack with some settings changed."""
    small = {"instance_type": "g6.xlarge", "network": {"ssh_from": ["203.0.113.7"]}}
    config = parse(settings_of(key_file, {**small, **(aws or {})}, **changes))
    assert config.aws is not None
    return examine("test", config, Account(config.aws.region), held or Held(), NOW, find_address)


def refusals(ask: Callable[..., Examined], *arguments: Any, **settings: Any) -> list[str]:
    with pytest.raises(ConfigRefused) as refused:
        ask(*arguments, **settings)
    return [str(problem) for problem in refused.value.problems]


def start_instance(cloud: Cloud, node: str, stack: str = "test") -> str:
    tags = [{"Key": key, "Value": value} for key, value in make_tags(stack, "me", "never", node).items()]
    told = cloud.connect("ec2").run_instances(
        ImageId="ami-1",
        InstanceType="g6.xlarge",
        MinCount=1,
        MaxCount=1,
        TagSpecifications=[{"ResourceType": "instance", "Tags": tags}],
    )
    return str(told["Instances"][0]["InstanceId"])
