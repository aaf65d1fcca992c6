"""Money is spent, and leftovers go, only by a person's word typed back; what a killed run leaves is found."""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from decamp.aws.leftovers import LOST, Leftover
from decamp.aws.tags import CONTACTED, make_tags
from decamp.errors import BadInput
from decamp.sweep import choose
from tests.aws_provider.cloud import Cloud, Server
from tests.system.aws_stack import BUCKET, NODE, PULUMI, STACK, AwsStack

OFFER = {
    "capacityBlockOfferingId": "cbo-0123456789abcdef0",
    "instanceType": "p6-b200.48xlarge",
    "availabilityZone": "us-east-1b",
    "instanceCount": 1,
    "startDate": "2099-03-01T11:30:00.000Z",
    "endDate": "2099-03-03T11:30:00.000Z",
    "capacityBlockDurationHours": 48,
    "upfrontFee": "1762.56",
    "currencyCode": "USD",
}
WANTED = ("--instance-type", "p6-b200.48xlarge", "--hours", "48", "--region", "us-east-1")


@pytest.fixture(scope="module")
def stack(session_directory: Path) -> Iterator[AwsStack]:
    """A stack without hosts, on an AWS of its own."""
    server = Server(Cloud())
    made = AwsStack(session_directory / f"aws-commands-{secrets.token_hex(4)}", server.cloud)
    yield made
    made.remove()
    server.stop()


@pytest.fixture(autouse=True)
def empty_account(stack: AwsStack) -> None:
    stack.cloud.reset()
    stack.configure()


def test_find_lists_and_buys_nothing(stack: AwsStack) -> None:
    stack.cloud.offerings = [dict(OFFER)]
    found = stack.decamp("capacity", "find", *WANTED)
    assert found.exit_code == 0
    assert "cbo-0123456789abcdef0  1 x p6-b200.48xlarge  us-east-1b  48 h" in found.output
    assert "2099-03-01T11:30:00Z to 2099-03-03T11:30:00Z  fee 1762.56 USD (36.72 USD an instance-hour)" in found.output
    assert stack.cloud.bought == []
    nothing = stack.decamp("capacity", "find", *WANTED[:-4], "--hours", "72", "--region", "us-east-1")
    assert nothing.exit_code == 0 and "nothing is offered: 1 x p6-b200.48xlarge for 72 h" in nothing.output


@pytest.mark.parametrize("typed", ["", "yes\n", "1762.5\n", "1762.56 USD\n", "176256\n"])
def test_block_is_not_bought_without_its_fee_typed_back(stack: AwsStack, typed: str) -> None:
    stack.cloud.offerings = [dict(OFFER)]
    refused = stack.decamp("capacity", "buy", str(OFFER["capacityBlockOfferingId"]), *WANTED, stdin=typed)
    assert refused.exit_code == 2 and 'nothing was bought: expected "1762.56"' in refused.output
    assert stack.cloud.bought == [] and "PurchaseCapacityBlock" not in stack.cloud.calls


def test_block_is_bought_once_its_fee_was_typed_back(stack: AwsStack) -> None:
    stack.cloud.offerings = [dict(OFFER)]
    gone = stack.decamp("capacity", "buy", "cbo-0000000000000000f", *WANTED, stdin="1762.56\n")
    assert gone.exit_code == 2 and "no longer offered with these options; nothing was bought" in gone.output
    bought = stack.decamp("capacity", "buy", str(OFFER["capacityBlockOfferingId"]), *WANTED, stdin="1762.56\n")
    assert bought.exit_code == 0, bought.output
    assert stack.cloud.bought == [OFFER["capacityBlockOfferingId"]]
    assert "account 123456789012" in bought.output and "cannot be cancelled or refunded" in bought.output
    assert "bought cr-0b10c000000000001" in bought.output and "live until 2099-03-03T11:00:00Z" in bought.output


def test_purchase_whose_answer_is_lost_is_not_made_again(stack: AwsStack) -> None:
    stack.cloud.offerings = [dict(OFFER)]
    stack.cloud.faults = {"PurchaseCapacityBlock": ("InternalError", "an internal error has occurred")}
    failed = stack.decamp("capacity", "buy", str(OFFER["capacityBlockOfferingId"]), *WANTED, stdin="1762.56\n")
    assert failed.exit_code == 4 and "nobody knows whether it was bought" in failed.output
    assert "InternalError" in failed.output and "describe-capacity-reservations" in failed.output
    assert stack.cloud.calls.count("PurchaseCapacityBlock") == 1


def test_wrong_lengths_and_regions_are_refused_unasked(stack: AwsStack) -> None:
    for hours, expected in (("30", "24 to 4368 in steps of 24"), ("360", "whole weeks above 14 days")):
        refused = stack.decamp(
            "capacity", "find", "--instance-type", "g6.xlarge", "--hours", hours, "--region", "us-east-1"
        )
        assert refused.exit_code == 2 and expected in refused.output and "Traceback" not in refused.output
    assert stack.cloud.calls == []
    there = stack.decamp("capacity", "find", *WANTED[:-1], "af-south-1")
    assert there.exit_code == 2 and "af-south-1 does not offer p6-b200.48xlarge" in there.output


def tag(stack: AwsStack, resource_id: str, of_stack: str = STACK) -> None:
    tags = [{"Key": key, "Value": value} for key, value in make_tags(of_stack, "me@example.org", "never", NODE).items()]
    stack.cloud.connect("ec2").create_tags(Resources=[resource_id], Tags=tags)


def start_instance(stack: AwsStack, of_stack: str = STACK) -> str:
    told = stack.cloud.connect("ec2").run_instances(ImageId="ami-1", InstanceType="g6.xlarge", MinCount=1, MaxCount=1)
    instance = str(told["Instances"][0]["InstanceId"])
    tag(stack, instance, of_stack)
    return instance


def test_up_that_was_killed_and_the_destroy_after_it_leave_what_a_sweep_finds(stack: AwsStack) -> None:
    answered = threading.Event()
    stack.cloud.held_back = {"RunInstances": answered}
    command = [str(PULUMI), "up", "--yes", "--skip-preview", "--non-interactive"]
    running = subprocess.Popen(
        command,
        cwd=stack.project,
        env=stack.environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    deadline = time.monotonic() + 240
    while not stack.instances() and time.monotonic() < deadline and running.poll() is None:
        time.sleep(0.2)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait(timeout=30)
    answered.set()
    stack.cloud.held_back = {}
    (instance,) = stack.instances()
    assert stack.pulumi("cancel", "--yes").exit_code == 0
    destroyed = stack.destroy()
    assert destroyed.exit_code == 0, destroyed.output
    assert f"{NODE}-instance" not in stack.resources() and stack.instances() == {instance: "running"}

    swept = stack.decamp("sweep", "--region", "us-east-1")
    assert swept.exit_code == 0 and f"lost       instance  {instance}  g6.xlarge" in swept.output, swept.output
    assert "0.8050 dollars an hour" in swept.output and f"stack {STACK}, node {NODE}" in swept.output
    assert stack.instances() == {instance: "running"}

    again = stack.up()
    assert again.exit_code != 0 and f'{instance}: is tagged as {NODE} of "{STACK}" and costs money' in again.output
    assert list(stack.instances()) == [instance]

    wrong = stack.decamp("sweep", "--region", "us-east-1", "--remove", instance, stdin="yes\n")
    assert wrong.exit_code == 2 and "not removed" in wrong.output and stack.instances() == {instance: "running"}
    removed = stack.decamp("sweep", "--region", "us-east-1", "--remove", instance, stdin=f"{instance}\n")
    assert removed.exit_code == 0, removed.output
    assert stack.instances() == {instance: "terminated"}
    assert BUCKET in [one["Name"] for one in stack.cloud.connect("s3").list_buckets()["Buckets"]]


def test_sweep_ends_a_protected_instance_and_says_that_it_was_in_use(stack: AwsStack) -> None:
    instance, ec2 = start_instance(stack), stack.cloud.connect("ec2")
    ec2.create_tags(Resources=[instance], Tags=[{"Key": CONTACTED, "Value": "0" * 32}])
    ec2.modify_instance_attribute(InstanceId=instance, DisableApiTermination={"Value": True})
    removed = stack.decamp("sweep", "--region", "us-east-1", "--remove", instance, stdin=f"{instance}\n")
    assert removed.exit_code == 0 and "was in use" in removed.output and "is lost" in removed.output
    assert stack.instances() == {instance: "terminated"}


def test_what_somebody_elses_stack_may_hold_is_not_removed(stack: AwsStack) -> None:
    instance = start_instance(stack, of_stack="of-a-colleague")
    swept = stack.decamp("sweep", "--region", "us-east-1")
    assert f"elsewhere  instance  {instance}" in swept.output
    refused = stack.decamp("sweep", "--region", "us-east-1", "--remove", instance, stdin=f"{instance}\n")
    assert refused.exit_code == 2 and "somebody else's may hold it" in refused.output
    assert stack.instances() == {instance: "running"}
    arguments = ("sweep", "--region", "us-east-1", "--stack", "of-a-colleague", "--remove", instance)
    assert stack.decamp(*arguments, stdin=f"{instance}\n").exit_code == 0
    assert stack.instances() == {instance: "terminated"}


def test_volumes_addresses_and_uploads_are_found_and_untagged_things_are_not(stack: AwsStack) -> None:
    ec2, s3 = stack.cloud.connect("ec2"), stack.cloud.connect("s3")
    volume = ec2.create_volume(AvailabilityZone="us-east-1b", Size=100)["VolumeId"]
    stranger = ec2.create_volume(AvailabilityZone="us-east-1b", Size=7)["VolumeId"]
    address = ec2.allocate_address(Domain="vpc")["AllocationId"]
    for resource in (volume, address):
        tag(stack, resource)
    s3.create_bucket(Bucket="ours-of-a-test")
    s3.put_bucket_tagging(Bucket="ours-of-a-test", Tagging={"TagSet": [{"Key": "decamp:project", "Value": "decamp"}]})
    upload = s3.create_multipart_upload(Bucket="ours-of-a-test", Key="node/data/x")["UploadId"]
    s3.upload_part(Bucket="ours-of-a-test", Key="node/data/x", UploadId=upload, PartNumber=1, Body=b"x" * 1000)
    swept = stack.decamp("sweep", "--region", "us-east-1")
    assert f"lost       volume    {volume}  100 GiB, available" in swept.output
    assert f"lost       address   {address}" in swept.output and "0.0050 dollars an hour" in swept.output
    assert f"upload    ours-of-a-test/node/data/x#{upload}  1,000 bytes" in swept.output
    assert stranger not in swept.output
    never = stack.decamp("sweep", "--region", "us-east-1", "--remove", "ours-of-a-test")
    assert never.exit_code == 2 and "is nothing that a sweep lists" in never.output
    removal = ("sweep", "--region", "us-east-1", "--remove", volume, address)
    removed = stack.decamp(*removal, stdin=f"{volume}\n{address}\n")
    assert removed.exit_code == 0, removed.output
    assert [one["VolumeId"] for one in ec2.describe_volumes()["Volumes"]] == [stranger]
    assert ec2.describe_addresses()["Addresses"] == []
    wanted = f"ours-of-a-test/node/data/x#{upload}"  # moto dates it 2010
    assert stack.decamp("sweep", "--region", "us-east-1", "--remove", wanted, stdin=f"{wanted}\n").exit_code == 0
    assert "Uploads" not in s3.list_multipart_uploads(Bucket="ours-of-a-test")


@pytest.mark.parametrize(("age_h", "refused"), [(1, True), (23.9, True), (24.1, False)])
def test_upload_that_an_evacuation_may_be_at_is_not_removed(age_h: float, refused: bool) -> None:
    now = datetime(2026, 6, 1, tzinfo=timezone.utc)
    upload = Leftover("upload", "b/k#u", STACK, "", "me", LOST, now - timedelta(hours=age_h), 0.0, "")
    options = argparse.Namespace(stack="", region="us-east-1")
    if refused:
        with pytest.raises(BadInput, match="an evacuation may be at it"):
            choose({"b/k#u": upload}, "b/k#u", options, now)
    else:
        assert choose({"b/k#u": upload}, "b/k#u", options, now) is upload
