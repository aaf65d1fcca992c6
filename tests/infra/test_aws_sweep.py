"""A sweep finds what carries Decamp's tags and is in no stack, free things too, and removes only what may go."""

from __future__ import annotations

import argparse
import io
import json
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from decamp import sweep
from decamp.aws.account import CloudRefusal
from decamp.aws.leftovers import LOST, Leftover
from decamp.aws.tags import CONTACTED, make_tags
from decamp.errors import BadInput
from infra.aws.permissions import ASSUME_BY_EC2
from tests.aws_provider.cloud import Cloud

STACK, NODE = "rented-gpu", "gpu-1"


@pytest.fixture(autouse=True)
def stacks(monkeypatch: pytest.MonkeyPatch, cloud: Cloud) -> dict[str, frozenset[str]]:
    """The stacks of the backend; tests say what they hold."""
    held: dict[str, frozenset[str]] = {STACK: frozenset()}
    assert cloud.url
    monkeypatch.setattr(sweep, "read_stacks", lambda: held)
    return held


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Runs the command with something typed, and returns all that it said."""

    def call(*arguments: str, typed: str = "") -> str:
        parser = argparse.ArgumentParser()
        sweep.add_arguments(parser)
        monkeypatch.setattr("sys.stdin", io.StringIO(typed))
        assert sweep.run(parser.parse_args(["--region", "us-east-1", *arguments])) == 0
        said = capsys.readouterr()
        return said.out + said.err

    return call


def tags(of_stack: str = STACK) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in make_tags(of_stack, "me@example.org", "never", NODE).items()]


def start_instance(cloud: Cloud, of_stack: str = STACK) -> str:
    ec2 = cloud.connect("ec2")
    told = ec2.run_instances(ImageId="ami-1", InstanceType="g6.xlarge", MinCount=1, MaxCount=1)
    instance = str(told["Instances"][0]["InstanceId"])
    ec2.create_tags(Resources=[instance], Tags=tags(of_stack))
    return instance


def state_of(cloud: Cloud, instance: str) -> str:
    told = cloud.connect("ec2").describe_instances(InstanceIds=[instance])["Reservations"]
    return str(told[0]["Instances"][0]["State"]["Name"])


def test_protected_instance_is_ended_after_its_id_and_said_to_have_been_in_use(cloud: Cloud, run: Any) -> None:
    instance, ec2 = start_instance(cloud), cloud.connect("ec2")
    ec2.create_tags(Resources=[instance], Tags=[{"Key": CONTACTED, "Value": "0" * 32}])
    ec2.modify_instance_attribute(InstanceId=instance, DisableApiTermination={"Value": True})
    with pytest.raises(BadInput, match=f'not removed: expected "{instance}", found "yes"'):
        run("--remove", instance, typed="yes\n")
    assert state_of(cloud, instance) == "running"
    said = run("--remove", instance, typed=f"{instance}\n")
    assert "was in use" in said and "is lost" in said and state_of(cloud, instance) == "terminated"


def test_instance_costs_its_disks_as_well_and_a_stopped_one_them_alone(cloud: Cloud, run: Any) -> None:
    ec2, instance = cloud.connect("ec2"), start_instance(cloud)
    (root,) = ec2.describe_volumes()["Volumes"]
    ec2.create_tags(Resources=[root["VolumeId"]], Tags=tags())
    more = ec2.create_volume(AvailabilityZone=root["AvailabilityZone"], Size=500)["VolumeId"]  # a hand's, untagged
    ec2.attach_volume(VolumeId=more, InstanceId=instance, Device="/dev/sdf")
    cloud.prices = {"g6.xlarge": 0.9}
    disks = (root["Size"] + 500) * 0.08 / 730
    (found,) = json.loads(run("--json"))["leftovers"]
    assert found["kind"] == "instance" and found["price_per_hour"] == pytest.approx(0.9 + disks)
    ec2.stop_instances(InstanceIds=[instance])
    (found,) = json.loads(run("--json"))["leftovers"]
    assert found["price_per_hour"] == pytest.approx(disks)
    assert f"stopped, {root['Size'] + 500} GiB of disk, never contacted; " in run()


def test_what_a_stack_holds_or_somebody_elses_may_is_not_removed(
    cloud: Cloud, run: Any, stacks: dict[str, frozenset[str]]
) -> None:
    mine, others = start_instance(cloud), start_instance(cloud, "of-a-colleague")
    stacks[STACK] = frozenset({mine})
    said = run()
    assert f"elsewhere  instance  {others}" in said and mine not in said
    assert f"held       instance  {mine}" in run("--all")
    with pytest.raises(BadInput, match="its stack rented-gpu holds it"):
        run("--remove", mine, typed=f"{mine}\n")
    with pytest.raises(BadInput, match="somebody else's may hold it"):
        run("--remove", others, typed=f"{others}\n")
    assert (state_of(cloud, mine), state_of(cloud, others)) == ("running", "running")
    run("--stack", "of-a-colleague", "--remove", others, typed=f"{others}\n")
    assert state_of(cloud, others) == "terminated"


def test_volumes_addresses_and_uploads_are_found_and_untagged_things_are_not(cloud: Cloud, run: Any) -> None:
    ec2, s3 = cloud.connect("ec2"), cloud.connect("s3")
    volume = ec2.create_volume(AvailabilityZone="us-east-1b", Size=100)["VolumeId"]
    stranger = ec2.create_volume(AvailabilityZone="us-east-1b", Size=7)["VolumeId"]
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    ec2.create_tags(Resources=[volume, address], Tags=tags())
    s3.create_bucket(Bucket="ours-of-a-test")
    s3.put_bucket_tagging(Bucket="ours-of-a-test", Tagging={"TagSet": [{"Key": "decamp:project", "Value": "decamp"}]})
    upload = s3.create_multipart_upload(Bucket="ours-of-a-test", Key="node/data/x")["UploadId"]
    s3.upload_part(Bucket="ours-of-a-test", Key="node/data/x", UploadId=upload, PartNumber=1, Body=b"x" * 1000)
    said = run()
    assert f"lost       volume    {volume}  100 GiB, available" in said
    assert f"lost       address   {address}" in said and "0.0050 dollars an hour" in said
    assert f"upload    ours-of-a-test/node/data/x#{upload}  1,000 bytes" in said
    assert stranger not in said and "3 lost in us-east-1 (0 free)" in said
    with pytest.raises(BadInput, match="is nothing that a sweep lists"):
        run("--remove", "ours-of-a-test")
    run("--remove", volume, address, typed=f"{volume}\n{address}\n")
    assert [one["VolumeId"] for one in ec2.describe_volumes()["Volumes"]] == [stranger]
    assert ec2.describe_addresses()["Addresses"] == []
    wanted = f"ours-of-a-test/node/data/x#{upload}"  # moto dates it 2010
    run("--remove", wanted, typed=f"{wanted}\n")
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="ours-of-a-test")


def make_free_things(cloud: Cloud) -> dict[str, str]:
    """Makes one of each kind that costs nothing, tagged, and one of each that is somebody's; returns ours by kind."""
    ec2, iam = cloud.connect("ec2"), cloud.connect("iam")
    vpc = ec2.create_vpc(CidrBlock="10.64.0.0/16")["Vpc"]["VpcId"]
    group = ec2.create_security_group(GroupName="nodes-of-ours", Description="of a test", VpcId=vpc)["GroupId"]
    ec2.create_tags(Resources=[vpc, group], Tags=tags())
    ec2.create_vpc(CidrBlock="10.65.0.0/16")
    key_tags = [{"ResourceType": "key-pair", "Tags": tags()}]
    ec2.create_key_pair(KeyName="operator-0a1b2c3", TagSpecifications=key_tags)
    ec2.create_key_pair(KeyName="operator-of-a-stranger")
    shown = [{"key": pair["Key"], "value": pair["Value"]} for pair in tags()]
    cloud.placement_groups = [
        {"groupName": "cluster-0a1b2c3", "groupId": "pg-1", "state": "available", "tagSet": shown}
    ]
    # One that is named like a node's and is not tagged, and one that is tagged: only both make it one of ours.
    for name, its_tags in (("gpu-1-role-0a1b2c3", tags()), ("cluster-role-0a1b2c4", [])):
        iam.create_role(RoleName=name, AssumeRolePolicyDocument=ASSUME_BY_EC2, Tags=its_tags)
    for name, its_tags in (("gpu-1-profile-0a1b2c3", tags()), ("web-profile-0a1b2c4", [])):
        iam.create_instance_profile(InstanceProfileName=name, Tags=its_tags)
    ours = {"vpc": vpc, "security-group": group, "key-pair": "operator-0a1b2c3", "placement-group": "cluster-0a1b2c3"}
    return {**ours, "role": "gpu-1-role-0a1b2c3", "profile": "gpu-1-profile-0a1b2c3"}


def test_what_is_free_but_in_the_way_is_listed_as_free(
    cloud: Cloud, run: Any, stacks: dict[str, frozenset[str]]
) -> None:
    ours = make_free_things(cloud)
    found = json.loads(run("--json"))["leftovers"]
    assert {one["kind"]: one["id"] for one in found} == ours and len(found) == len(ours)
    assert {(one["belongs"], one["price_per_hour"], one["stack"]) for one in found} == {("lost", 0.0, STACK)}
    said = run()
    assert said.count(", free; stack rented-gpu, node gpu-1, owner me@example.org") == len(ours)
    assert "6 lost in us-east-1 (6 free), 0.00 dollars an hour" in said
    stacks[STACK] = frozenset(ours.values())
    assert "nothing of Decamp's in us-east-1 is outside a stack" in run()


@pytest.mark.parametrize(
    ("kind", "command"),
    [
        ("vpc", "aws ec2 delete-vpc --vpc-id"),
        ("role", "aws iam delete-role --role-name"),
        ("key-pair", "aws ec2 delete-key-pair --key-name"),
    ],
)
def test_what_is_free_is_not_removed_but_answered_with_how(cloud: Cloud, run: Any, kind: str, command: str) -> None:
    wanted = make_free_things(cloud)[kind]
    with pytest.raises(BadInput, match=f"is a {kind}: free, and only listed; run: {command} {wanted}"):
        run("--remove", wanted, typed=f"{wanted}\n")
    assert wanted in run()


def test_sweep_that_may_not_look_says_so_and_never_that_there_is_nothing(cloud: Cloud, run: Any) -> None:
    cloud.faults = {"DescribePlacementGroups": ("UnauthorizedOperation", "You are not authorized")}
    with pytest.raises(CloudRefusal, match="placement groups: the credentials lack a permission"):
        run()


@pytest.mark.parametrize(("age_h", "refused"), [(1, True), (23.9, True), (24.1, False)])
def test_upload_that_an_evacuation_may_be_at_is_not_removed(age_h: float, refused: bool) -> None:
    now = datetime(2026, 6, 1, tzinfo=timezone.utc)
    upload = Leftover("upload", "b/k#u", STACK, "", "me", LOST, now - timedelta(hours=age_h), 0.0, "")
    options = argparse.Namespace(stack="", region="us-east-1")
    if refused:
        with pytest.raises(BadInput, match="an evacuation may be at it"):
            sweep.choose({"b/k#u": upload}, "b/k#u", options, now)
    else:
        assert sweep.choose({"b/k#u": upload}, "b/k#u", options, now) is upload
