"""On the target aws a node is made once, put right when it drifts, and ends only when its guard has agreed.

The real engine and the real SDK run against the stand-in provider, whose instance is a booted host. The tests share one
stack, in the order they are written.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from botocore.exceptions import ClientError

from decamp.aws.tags import CONTACTED, read_tags
from decamp.rehearsal import host
from tests.aws_provider.cloud import Cloud, make_reservation
from tests.aws_provider.provider import BANNER
from tests.system.aws_stack import BUCKET, NODE, AwsStack, hosted_stack

BLOCK = "cr-0123456789abcdef0"


@pytest.fixture(scope="module")
def stack(session_directory: Path, store_process: Any) -> Iterator[AwsStack]:
    """A stack that was brought up, its archives on a real S3 server."""
    cloud = Cloud(prices={"g6.xlarge": 0.9, "g6.2xlarge": 1.1})
    with hosted_stack(session_directory, cloud, store_process) as made:
        up = made.up()
        assert up.exit_code == 0, up.output
        assert BANNER in up.output and "0.90 dollars an hour each (price API)" in up.output
        yield made


def instance_of(stack: AwsStack) -> str:
    return str(stack.resources()[f"{NODE}-instance"]["id"])


def running(stack: AwsStack) -> list[Any]:
    """Every instance that EC2 has, as it describes it, that has not ended."""
    told = stack.cloud.connect("ec2").describe_instances()["Reservations"]
    instances = [one for reservation in told for one in reservation["Instances"]]
    return [one for one in instances if one["State"]["Name"] == "running"]


def is_protected(stack: AwsStack) -> bool:
    told = stack.cloud.connect("ec2").describe_instance_attribute(
        InstanceId=instance_of(stack), Attribute="disableApiTermination"
    )
    return bool(told["DisableApiTermination"]["Value"])


def assert_untouched(stack: AwsStack, machine_id: str) -> None:
    assert stack.instances() == {instance_of(stack): "running"} and is_protected(stack)
    assert stack.on_node("cat /etc/machine-id").stdout.strip() == machine_id


def machine_id_of(stack: AwsStack) -> str:
    return str(stack.resources()[f"{NODE}-guard"]["outputs"]["machine_id"])


def test_node_has_a_host_key_that_no_user_data_holds(stack: AwsStack) -> None:
    (node,) = stack.outputs()["nodes"]
    assert (node["name"], node["user"], node["gpu"], node["port"]) == (NODE, "root", "1x L4", 22)
    assert node["deadline"] == "2099-01-01T00:00:00Z" and node["price_per_hour"] == pytest.approx(0.96, abs=0.01)
    told = stack.cloud.connect("ec2").describe_instance_attribute(InstanceId=instance_of(stack), Attribute="userData")
    user_data = yaml.safe_load(base64.b64decode(told["UserData"]["Value"]))
    first_key = user_data["ssh_keys"]["ed25519_public"]
    shown = stack.on_node("cat /etc/ssh/ssh_host_ed25519_key.pub; cat /etc/machine-id").stdout.split()
    assert node["host_key"] == " ".join(shown[:2]) and node["host_key"] != first_key
    assert shown[-1] == machine_id_of(stack)
    # What opened the first contact opens nothing any more.
    assert stack.on_node("grep -c . /etc/ssh/ssh_host_ed25519_key").stdout.strip() != "0"
    private = user_data["ssh_keys"]["ed25519_private"].strip().splitlines()[2]
    assert private not in stack.on_node("cat /etc/ssh/ssh_host_ed25519_key").stdout
    assert private not in stack.state_text() and stack.state_text().count("ciphertext") >= 2


def test_instance_is_protected_tagged_and_told_its_rights(stack: AwsStack) -> None:
    assert is_protected(stack)
    (found,) = stack.cloud.connect("ec2").describe_instances()["Reservations"][0]["Instances"]
    tags = read_tags(found["Tags"])
    assert (
        tags["decamp:stack"] == "rented-gpu" and tags["decamp:node"] == NODE and tags[CONTACTED] == machine_id_of(stack)
    )
    assert found["MetadataOptions"]["HttpTokens"] == "required" and found["IamInstanceProfile"]
    with pytest.raises(ClientError, match="may not be terminated"):
        stack.cloud.connect("ec2").terminate_instances(InstanceIds=[instance_of(stack)])


def test_second_up_changes_nothing(stack: AwsStack) -> None:
    before = stack.resources()
    again = stack.up("--expect-no-changes")
    assert again.exit_code == 0, again.output
    assert {name: one["id"] for name, one in stack.resources().items() if "id" in one} == {
        name: one["id"] for name, one in before.items() if "id" in one
    }


def test_next_up_puts_right_what_a_refresh_has_found_and_tells_a_later_deadline(stack: AwsStack) -> None:
    ec2, instance = stack.cloud.connect("ec2"), instance_of(stack)
    ec2.modify_instance_attribute(InstanceId=instance, DisableApiTermination={"Value": False})
    ec2.modify_instance_metadata_options(
        InstanceId=instance, HttpTokens="optional", HttpEndpoint="enabled", HttpPutResponseHopLimit=1
    )
    group = stack.resources()["nodes"]["id"]
    opened = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "127.0.0.0/8"}]}
    ec2.revoke_security_group_ingress(GroupId=group, IpPermissions=[opened])
    refreshed = stack.pulumi("refresh", "--yes", "--skip-preview")
    assert refreshed.exit_code == 0, refreshed.output
    held = stack.resources()
    assert held[f"{NODE}-termination"]["outputs"]["protected"] is False
    assert held[f"{NODE}-instance"]["outputs"]["metadataOptions"]["httpTokens"] == "optional"
    assert "ssh-22-from-127.0.0.0-8" not in held
    stack.configure(deadline="2099-06-01T00:00:00Z")
    changed = stack.up()
    assert changed.exit_code == 0, changed.output
    assert is_protected(stack) and instance_of(stack) == instance and stack.instances() == {instance: "running"}
    (found,) = ec2.describe_instances()["Reservations"][0]["Instances"]
    assert found["MetadataOptions"]["HttpTokens"] == "required"
    assert "ssh-22-from-127.0.0.0-8" in stack.resources()
    (disk,) = ec2.describe_volumes(Filters=[{"Name": "attachment.instance-id", "Values": [instance]}])["Volumes"]
    for tags in (read_tags(found["Tags"]), read_tags(disk["Tags"])):
        assert tags["decamp:expires"] == "2099-06-01T00:00:00Z" and tags["decamp:node"] == NODE
    # The mark of the first contact is no program's, and stays.
    assert read_tags(found["Tags"])[CONTACTED] == machine_id_of(stack)
    assert stack.outputs()["nodes"][0]["deadline"] == "2099-06-01T00:00:00Z"
    assert stack.resources()[f"{NODE}-guard"]["outputs"]["deadline"] == "2099-06-01T00:00:00Z"


def test_change_that_would_replace_the_node_asks_before_a_second_one_is_paid_for(stack: AwsStack) -> None:
    machine_id = machine_id_of(stack)
    stack.cloud.calls.clear()
    stack.configure({"instance_type": "g6.2xlarge"})
    refused = stack.up()
    assert refused.exit_code != 0 and f"{NODE}: not deleted, nothing was changed" in refused.output
    assert "RunInstances" not in stack.cloud.calls and "TerminateInstances" not in stack.cloud.calls
    assert_untouched(stack, machine_id)
    stack.configure(deadline="2099-06-01T00:00:00Z")


def test_destroy_is_refused_by_the_guard(stack: AwsStack) -> None:
    machine_id, held = machine_id_of(stack), set(stack.resources())
    refused = stack.destroy()
    assert refused.exit_code != 0 and f"{NODE}: not deleted, nothing was changed" in refused.output
    assert "decamp is not on the node" in refused.output and f"decamp abandon {NODE}" in refused.output
    assert "left until 2099-06-01T00:00:00Z" in refused.output
    assert set(stack.resources()) == held
    assert_untouched(stack, machine_id)


def test_instance_outlives_a_state_that_has_lost_its_guards(stack: AwsStack) -> None:
    exported = stack.pulumi("stack", "export")
    resources = stack.resources()
    for name in ("stack-guard", f"{NODE}-guard"):
        assert stack.pulumi("state", "delete", resources[name]["urn"], "--yes", "--force").exit_code == 0
    machine_id = str(resources[f"{NODE}-contact"]["outputs"]["machine_id"])
    refused = stack.destroy()
    assert refused.exit_code != 0 and f"{NODE}: not deleted, nothing was changed" in refused.output
    assert_untouched(stack, machine_id)
    saved = stack.directory / "exported.json"
    saved.write_text(exported.output)
    assert stack.pulumi("stack", "import", "--file", str(saved)).exit_code == 0


def test_termination_that_ec2_refuses_leaves_the_protection_on(stack: AwsStack) -> None:
    abandoned = stack.decamp("abandon", NODE, "--reason", "the test is nearly over", stdin=f"{NODE}\n")
    assert abandoned.exit_code == 0, abandoned.output
    assert "left until 2099-06-01T00:00:00Z" in abandoned.output
    stack.cloud.faults = {"TerminateInstances": ("InternalError", "try later")}
    failed = stack.destroy()
    stack.cloud.faults = {}
    assert failed.exit_code != 0 and "InternalError: try later" in failed.output
    assert is_protected(stack) and f"{NODE}-termination" in stack.resources()
    assert stack.instances() == {instance_of(stack): "running"}


def test_destroy_after_the_word_ends_all_but_the_store(stack: AwsStack) -> None:
    instance = instance_of(stack)
    directory = stack.hosts / instance / "host"
    assert host.status(directory) is not None
    destroyed = stack.destroy()
    assert destroyed.exit_code == 0, destroyed.output
    assert stack.resources() == {} or not [one for one in stack.resources() if NODE in one]
    assert stack.instances() == {instance: "terminated"} and host.status(directory) is None
    ec2 = stack.cloud.connect("ec2")
    assert ec2.describe_addresses()["Addresses"] == []
    assert [one for one in ec2.describe_vpcs()["Vpcs"] if not one["IsDefault"]] == []
    assert stack.cloud.connect("iam").list_roles()["Roles"] == []
    s3 = stack.cloud.connect("s3")
    assert [one["Name"] for one in s3.list_buckets()["Buckets"]] == [BUCKET]


def test_next_stack_takes_the_bucket_that_the_last_one_left_and_lives_in_a_block(stack: AwsStack) -> None:
    s3 = stack.cloud.connect("s3")
    s3.delete_bucket_policy(Bucket=BUCKET)
    end = {"endDate": "2099-03-03T11:30:00.000Z", "reservationType": "capacity-block"}
    stack.cloud.reservations = [make_reservation(BLOCK, "g6.xlarge", **end)]
    purchase = {"option": "capacity_block", "reservation_id": BLOCK}
    stack.configure({"purchase": purchase, "availability_zone": None}, deadline=None)
    up = stack.up()
    assert up.exit_code == 0, up.output
    held = stack.resources()
    assert "bucket" not in held and [one["Name"] for one in s3.list_buckets()["Buckets"]] == [BUCKET]
    assert "RefuseOldTls" in s3.get_bucket_policy(Bucket=BUCKET)["Policy"]
    # The block's end less the half hour in which EC2 ends its instances.
    (node,) = stack.outputs()["nodes"]
    assert (node["deadline"], node["purchase"]) == ("2099-03-03T11:00:00Z", "capacity_block")
    (found,) = [one for one in running(stack) if one["InstanceId"] == instance_of(stack)]
    assert read_tags(found["Tags"])["decamp:expires"] == node["deadline"] and is_protected(stack)
    assert not {"PurchaseCapacityBlock", "CreateCapacityReservation"} & set(stack.cloud.calls)


def test_node_that_ended_outside_is_no_node_that_is_safe(stack: AwsStack) -> None:
    ec2, instance = stack.cloud.connect("ec2"), instance_of(stack)
    ec2.modify_instance_attribute(InstanceId=instance, DisableApiTermination={"Value": False})
    ec2.terminate_instances(InstanceIds=[instance])
    refreshed = stack.pulumi("refresh", "--yes", "--skip-preview")
    assert refreshed.exit_code == 0, refreshed.output
    held = stack.resources()
    assert f"{NODE}-instance" not in held and {f"{NODE}-guard", f"{NODE}-termination", "stack-guard"} <= set(held)
    # That a node of this name was given up an hour ago is no word about this one.
    refused = stack.destroy()
    assert refused.exit_code != 0 and f"{NODE}: not deleted, nothing was changed" in refused.output
    assert f"would be lost: whatever {NODE} holds; it does not say" in refused.output
    assert f"decamp abandon {NODE}" in refused.output and set(stack.resources()) == set(held)
    stack.cloud.calls.clear()
    again = stack.up()
    assert again.exit_code != 0 and "RunInstances" not in stack.cloud.calls
    abandoned = stack.decamp("abandon", NODE, "--reason", "somebody ended it in the console", stdin=f"{NODE}\n")
    assert abandoned.exit_code == 0, abandoned.output
    destroyed = stack.destroy()
    assert destroyed.exit_code == 0, destroyed.output
    assert [one["Name"] for one in stack.cloud.connect("s3").list_buckets()["Buckets"]] == [BUCKET]
