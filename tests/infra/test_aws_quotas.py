"""An up that the quota has no room for is refused before it starts, and a node that is replaced needs room as well."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from infra.aws.examination import Examined
from infra.aws.state import Held, HeldInstance, parse_held
from tests.aws_provider.cloud import Cloud
from tests.infra.aws_account import BLOCK, refusals, start_instance


def test_quota_that_is_too_small_is_known_before(ask: Callable[..., Examined], cloud: Cloud) -> None:
    cloud.quotas = {"L-DB2E81BA": 0}
    (problem,) = refusals(ask)
    assert problem.startswith('decamp:nodes: the account\'s quota "Running On-Demand G and VT instances" is too small')
    assert "expected 4 vCPUs for 1 x g6.xlarge, found 0 left: 0 allowed, 0 in use" in problem
    assert "--quota-code L-DB2E81BA --desired-value 4 --region us-east-1" in problem
    cloud.quotas = {"L-DB2E81BA": 4}
    assert ask()


def test_quota_counts_what_runs_of_the_family_and_on_the_market(ask: Callable[..., Examined], cloud: Cloud) -> None:
    cloud.quotas = {"L-DB2E81BA": 12, "L-3819A6DF": 4}
    ec2 = cloud.connect("ec2")

    def run(kind: str, **more: Any) -> str:
        told = ec2.run_instances(ImageId="ami-1", MinCount=1, MaxCount=1, InstanceType=kind, **more)
        return str(told["Instances"][0]["InstanceId"])

    colleague = run("g5.2xlarge")  # 8 vCPUs of the same quota, whoever started them
    run("m5.4xlarge")  # another family
    run("g6.xlarge", InstanceMarketOptions={"MarketType": "spot"})  # another market
    assert ask()
    run("g4dn.xlarge")
    (problem,) = refusals(ask)
    assert "found 0 left: 12 allowed, 12 in use by running instances" in problem and "--desired-value 16 " in problem
    # Without permission to ask for the quota, EC2's refusal is answered with this number.
    cloud.quotas = {"L-3819A6DF": 4}
    assert ask().config.aws.facts.quota_vcpus == 16  # type: ignore[union-attr]
    (problem,) = refusals(ask, {"purchase": {"option": "spot"}})
    assert "found 0 left: 4 allowed, 4 in use" in problem and "--quota-code L-3819A6DF" in problem
    cloud.quotas = {"L-DB2E81BA": 12}
    ec2.stop_instances(InstanceIds=[colleague])
    assert ask()


def test_node_that_runs_already_needs_no_room_in_the_quota(ask: Callable[..., Examined], cloud: Cloud) -> None:
    cloud.quotas = {"L-DB2E81BA": 0}
    instance = start_instance(cloud, "b200-1")
    assert ask(held=Held({instance: HeldInstance("g6.xlarge", "on_demand")})).vanished == ()


def test_replaced_node_needs_the_room_that_its_old_instance_does_not_leave(
    ask: Callable[..., Examined], cloud: Cloud
) -> None:
    instance = start_instance(cloud, "b200-1")
    held = Held({instance: HeldInstance("g6.xlarge", "on_demand")})  # 4 vCPUs
    larger = {"instance_type": "g6.2xlarge"}  # 8 of the same quota
    cloud.quotas = {"L-DB2E81BA": 8}
    assert ask(larger, held=held)
    cloud.quotas = {"L-DB2E81BA": 7}
    (problem,) = refusals(ask, larger, held=held)
    assert "expected 8 vCPUs for 1 x g6.2xlarge, found 7 left: 7 allowed, 4 in use by running instances" in problem
    assert "instances, 4 of them by nodes that are replaced; " in problem and "--desired-value 8 " in problem
    # One that is stopped takes nothing, and so leaves nothing.
    cloud.connect("ec2").stop_instances(InstanceIds=[instance])
    (problem,) = refusals(ask, larger, held=held)
    assert "found 7 left: 7 allowed, 0 in use by running instances; " in problem
    cloud.quotas = {"L-DB2E81BA": 8}
    assert ask(larger, held=held)


@pytest.mark.parametrize(
    ("held_as", "changes", "quota"),
    [
        (HeldInstance("g6.xlarge", "on_demand"), {"purchase": {"option": "spot"}}, "L-3819A6DF"),
        (HeldInstance("g6.xlarge", "on_demand"), {"instance_type": "m5.xlarge"}, "L-1216C47A"),
        # The reservation counts, used or not.
        (HeldInstance("g6.xlarge", "reservation", "cr-0123456789abcdef1"), {}, "L-DB2E81BA"),
    ],
)
def test_replaced_node_leaves_no_room_in_another_quota_than_its_own(
    ask: Callable[..., Examined], cloud: Cloud, held_as: HeldInstance, changes: dict[str, Any], quota: str
) -> None:
    instance = start_instance(cloud, "b200-1")
    cloud.quotas = {"L-DB2E81BA": 4, "L-3819A6DF": 3, "L-1216C47A": 3}
    (problem,) = refusals(ask, changes, held=Held({instance: held_as}))
    assert "expected 4 vCPUs for 1 x" in problem and f"--quota-code {quota} " in problem
    assert "nodes that are replaced" not in problem


def test_node_that_leaves_the_stack_frees_nothing_in_time(ask: Callable[..., Examined], cloud: Cloud) -> None:
    instance = start_instance(cloud, "of-before")
    cloud.quotas = {"L-DB2E81BA": 4}
    (problem,) = refusals(ask, held=Held({instance: HeldInstance("g6.xlarge", "on_demand")}))
    assert "expected 4 vCPUs for 1 x g6.xlarge, found 0 left: 4 allowed, 4 in use" in problem


def test_state_says_what_each_instance_was_started_as() -> None:
    kind = "aws:ec2/instance:Instance"
    told = {"capacityReservationTarget": {"capacityReservationId": BLOCK}}
    more = [
        {},
        {"instanceMarketOptions": {"marketType": "spot"}},
        {"capacityReservationSpecification": told},
        {"capacityReservationSpecification": told, "instanceMarketOptions": {"marketType": "capacity-block"}},
    ]
    resources = [
        {"type": kind, "id": f"i-{number}", "inputs": {"instanceType": "g6.xlarge", **inputs}}
        for number, inputs in enumerate(more)
    ]
    bucket = {"type": "aws:s3/bucket:Bucket", "id": "archives"}
    held = parse_held({"deployment": {"resources": [*resources, bucket, {"type": kind}]}})
    assert [(one.option, one.reservation_id) for one in held.instances.values()] == [
        ("on_demand", ""),
        ("spot", ""),
        ("reservation", BLOCK),
        ("capacity_block", BLOCK),
    ]
    assert set(held.instances) == {"i-0", "i-1", "i-2", "i-3"} and held.buckets == {"archives"}
    assert parse_held({"deployment": None}) == Held()
