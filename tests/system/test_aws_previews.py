"""The example stacks are right for every purchase option, and what AWS refuses halfway says what to do next.

The real engine and the real SDK run against the stand-in provider, without hosts.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.aws_provider.cloud import make_reservation
from tests.aws_provider.provider import BANNER
from tests.system.aws_stack import NODE, STACK, AwsStack
from tests.system.pulumi_project import CHECKOUT

EXAMPLES = sorted(CHECKOUT.glob("Pulumi.aws-*.yaml"))
RESERVATION = "cr-0123456789abcdef0"


@pytest.fixture
def stack(aws_stack: AwsStack) -> AwsStack:
    """The module's stack, its account empty again."""
    aws_stack.cloud.reset()
    aws_stack.cloud.prices = {"p6-b200.48xlarge": 113.93, "p5.48xlarge": 55.04, "g6.xlarge": 0.9}
    aws_stack.configure()
    return aws_stack


def use_example(stack: AwsStack, example: Path) -> dict[str, Any]:
    """Takes an example as a user would: what is marked CHANGE is changed, nothing else."""
    settings: dict[str, Any] = yaml.safe_load(example.read_text())["config"]
    settings["decamp:store"] = {"url": "s3://archives-of-somebody/rentals", "endpoint": stack.cloud.url}
    settings["decamp:ssh"] = {"private_key_file": str(stack.key)}
    aws = settings["decamp:aws"]
    aws["network"] = {**aws.get("network", {}), "ssh_from": ["203.0.113.7"]}
    if aws.get("availability_zone"):
        # What moto's copy of the offerings says; the example names the zone as of its writing.
        told = stack.cloud.connect("ec2").describe_instance_type_offerings(
            LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": [aws["instance_type"]]}]
        )
        aws["availability_zone"] = told["InstanceTypeOfferings"][0]["Location"]
    path = stack.project / f"Pulumi.{STACK}.yaml"
    held = yaml.safe_load(path.read_text())
    path.write_text(yaml.safe_dump({**held, "config": settings}))
    return settings


def test_there_is_an_example_for_every_purchase_option() -> None:
    options = {yaml.safe_load(path.read_text())["config"]["decamp:aws"]["purchase"]["option"] for path in EXAMPLES}
    assert options == {"on_demand", "spot", "capacity_block", "reservation"}


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda path: path.stem.removeprefix("Pulumi.aws-"))
def test_example_previews(stack: AwsStack, example: Path) -> None:
    settings = use_example(stack, example)
    purchase, instance_type = settings["decamp:aws"]["purchase"], settings["decamp:aws"]["instance_type"]
    if purchase.get("reservation_id"):
        block = purchase["option"] == "capacity_block"
        end = {"endDate": "2099-03-03T11:30:00.000Z", "reservationType": "capacity-block"} if block else {}
        count = {"totalInstanceCount": 2, "availableInstanceCount": 2}
        stack.cloud.reservations = [make_reservation(RESERVATION, instance_type, **count, **end)]
    previewed = stack.preview()
    assert previewed.exit_code == 0, previewed.output
    nodes = [node["name"] for node in settings["decamp:nodes"]]
    assert BANNER in previewed.output
    assert f"cost: {len(nodes)} x {instance_type}, {purchase['option'].replace('_', ' ')}: " in previewed.output
    assert f" of {instance_type}, as EC2 describes it" in previewed.output  # how many EFAs
    for node in nodes:
        for part in ("instance", "termination", "contact", "guard", "interfaces"):
            assert f"{node}-{part} create" in previewed.output, part
    if purchase["option"] == "capacity_block":
        assert "2099-03-03T11:00:00Z" in previewed.output and "paid beforehand at 36.72" in previewed.output
    if purchase["option"] == "spot":
        assert "EC2 has no termination protection for these nodes" in previewed.output
    # A preview makes nothing, and buys nothing.
    changing = {"RunInstances", "CreateVpc", "PurchaseCapacityBlock", "CreateCapacityReservation", "AllocateAddress"}
    assert not changing & set(stack.cloud.calls)


def test_missing_credentials_are_one_message(stack: AwsStack) -> None:
    refused = stack.preview(AWS_ACCESS_KEY_ID="", AWS_SECRET_ACCESS_KEY="")
    assert refused.exit_code != 0 and "AWS credentials: none can be had" in refused.output
    assert "Traceback" not in refused.output and stack.cloud.calls == []


REFUSALS = {
    "InsufficientInstanceCapacity": (
        "AWS has no free capacity of this type in this zone now; nothing was started",
        "run: decamp capacity find --region us-east-1 --hours 24 --instance-type g6.xlarge",
    ),
    "VcpuLimitExceeded": (
        "the account's quota of vCPUs for this family is too small; nothing was started",
        "run: aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-DB2E81BA"
        " --desired-value 4 --region us-east-1",
    ),
}


@pytest.mark.parametrize("code", REFUSALS)
def test_refusal_in_the_middle_of_an_up_says_what_to_do_and_leaves_nothing(stack: AwsStack, code: str) -> None:
    stack.cloud.faults = {"RunInstances": (code, "of a test")}
    failed = stack.up()
    assert failed.exit_code != 0
    what, run = REFUSALS[code]
    line = next(line for line in failed.output.splitlines() if f"{NODE}: {what}" in line)
    assert f"found {code} for g6.xlarge (on_demand) in us-east-1b: of a test; run: " in line and run in line
    assert stack.cloud.calls.count("RunInstances") == 1 and stack.instances() == {}
    destroyed = stack.destroy()
    assert destroyed.exit_code == 0, destroyed.output
    assert [one for one in stack.cloud.connect("ec2").describe_vpcs()["Vpcs"] if not one["IsDefault"]] == []


def test_instance_is_started_as_asked_for_and_its_replacement_needs_room(stack: AwsStack) -> None:
    """In a given subnet, from a given image, with disk and shutdown. Without a host behind it the up ends there."""
    ec2 = stack.cloud.connect("ec2")
    vpc = ec2.create_vpc(CidrBlock="10.77.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.77.1.0/24", AvailabilityZone="us-east-1b")["Subnet"]["SubnetId"]
    image = ec2.describe_images()["Images"][0]["ImageId"]
    asked = {"image": {"id": image}, "shutdown": "terminate", "root_volume_gib": 120}
    given = {"network": {"subnet_id": subnet, "ssh_from": ["203.0.113.7"]}, **asked}
    stack.configure(given)
    stack.cloud.faults = {"AssociateAddress": ("InvalidAllocationID.NotFound", "of a test")}
    failed = stack.up()
    assert failed.exit_code != 0 and "InvalidAllocationID.NotFound: of a test" in failed.output
    (instance,) = [one for told in ec2.describe_instances()["Reservations"] for one in told["Instances"]]
    assert (instance["ImageId"], instance["SubnetId"], instance["VpcId"]) == (image, subnet, vpc)
    assert {group["GroupId"] for group in instance["SecurityGroups"]} == {stack.resources()["nodes"]["id"]}
    told = ec2.describe_instance_attribute(
        InstanceId=instance["InstanceId"], Attribute="instanceInitiatedShutdownBehavior"
    )
    assert told["InstanceInitiatedShutdownBehavior"] == {"Value": "terminate"}
    assert not {"vpc", "subnet", "routes", "s3-endpoint"} & set(stack.resources())
    (disk,) = ec2.describe_volumes()["Volumes"]
    assert (disk["Size"], disk["VolumeType"], disk["Encrypted"]) == (120, "gp3", True)
    # What the state says of it is read as the engine wrote it.
    stack.cloud.quotas = {"L-DB2E81BA": 7}
    stack.configure({**given, "instance_type": "g6.2xlarge"})
    refused = stack.preview()
    assert refused.exit_code != 0 and "expected 8 vCPUs for 1 x g6.2xlarge, found 7 left" in refused.output
    stack.cloud.quotas = {"L-DB2E81BA": 8}
    assert stack.preview().exit_code == 0
    destroyed = stack.destroy()
    assert destroyed.exit_code == 0, destroyed.output
    assert set(stack.instances().values()) == {"terminated"}
    assert [one["VpcId"] for one in ec2.describe_vpcs()["Vpcs"] if not one["IsDefault"]] == [vpc]


def test_stand_in_refuses_to_serve_anybody_but_a_test(stack: AwsStack) -> None:
    command = [str(CHECKOUT / "tests" / "aws_provider" / "bin" / "pulumi-resource-aws"), "127.0.0.1:1"]
    environment = {key: value for key, value in stack.environment.items() if key != "DECAMP_STAND_IN_AWS_URL"}
    for url in ("", "https://ec2.us-east-1.amazonaws.com"):
        ended = stack.run(command, {**environment, "DECAMP_STAND_IN_AWS_URL": url})
        assert ended.exit_code != 0 and "this is a stand-in of the tests" in ended.output
