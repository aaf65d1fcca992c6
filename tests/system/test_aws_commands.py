"""Money is spent, and leftovers go, only by a person's word typed back; what a killed run leaves is found."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.system.aws_stack import BUCKET, NODE, STACK, AwsStack
from tests.system.pulumi_project import PULUMI

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


def descendants(pid: int) -> list[int]:
    """Every process below one, however deep."""
    children = [int(word) for task in Path(f"/proc/{pid}/task").glob("*/children") for word in task.read_text().split()]
    return [found for child in children for found in (child, *descendants(child))]


@pytest.fixture
def stack(aws_stack: AwsStack) -> AwsStack:
    """The module's stack, its account empty again."""
    aws_stack.cloud.reset()
    aws_stack.configure()
    return aws_stack


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
    plugins = descendants(running.pid)
    os.killpg(running.pid, signal.SIGKILL)
    running.wait(timeout=30)
    answered.set()
    for plugin in plugins:  # they have groups of their own, and would outlive the tests
        with contextlib.suppress(ProcessLookupError):
            os.kill(plugin, signal.SIGKILL)
    stack.cloud.held_back = {}
    (instance,) = stack.instances()
    assert stack.pulumi("cancel", "--yes").exit_code == 0
    destroyed = stack.destroy()
    assert destroyed.exit_code == 0, destroyed.output
    assert f"{NODE}-instance" not in stack.resources() and stack.instances() == {instance: "running"}

    swept = stack.decamp("sweep", "--region", "us-east-1")
    assert swept.exit_code == 0 and f"lost       instance  {instance}  g6.xlarge" in swept.output, swept.output
    assert "0.8598 dollars an hour" in swept.output and f"stack {STACK}, node {NODE}" in swept.output
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
