"""A whole rental on spot: up with site.yml, evacuate.yml, a replacement and a destroy that wait for the proof.

EC2 is played by a moto server with a booted host behind the instance, S3 by a real S3 server, and the provider by the
stand-in; the engine, the SDK, the program, the playbooks, the guard and the node's software are the real ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from decamp.rehearsal import host
from decamp.stack import OUTPUTS_VARIABLE
from tests.aws_provider.cloud import Cloud
from tests.roles.metadata_service import NOTICE, MetadataService
from tests.system.aws_stack import BUCKET, NODE, AwsStack, hosted_stack
from tests.system.pulumi_project import CHECKOUT, Outcome

SPOT = {"purchase": {"option": "spot", "max_price": 0.5}}
VARIABLES = CHECKOUT / "tests" / "aws_provider" / "variables"


@pytest.fixture
def stack(session_directory: Path, store_process: Any) -> Iterator[AwsStack]:
    cloud = Cloud(prices={"g6.xlarge": 0.9, "g6.2xlarge": 1.1})
    # What an up that configures its nodes has to know of a host without a GPU comes from a plugin.
    with hosted_stack(session_directory, cloud, store_process, ANSIBLE_VARS_PLUGINS=str(VARIABLES)) as made:
        yield made


@pytest.fixture
def metadata() -> Iterator[MetadataService]:
    service = MetadataService()
    yield service
    service.stop()


def play(stack: AwsStack, metadata: MetadataService, playbook: str, *options: str) -> Outcome:
    """Runs a playbook on the stack's nodes, as an operator does."""
    outputs = stack.directory / "outputs.json"
    outputs.write_text(json.dumps(stack.outputs()))
    # No instance metadata stands behind a booted host: the operator's keys travel in the environment of one run, and
    # what the service says of a spot instance is said by one of the test's.
    variables = {"evacuation_store_credentials": "operator", "restore_store_credentials": "operator"}
    variables["spot_notice_url"] = metadata.url
    command = [
        str(CHECKOUT / ".venv" / "bin" / "ansible-playbook"),
        str(CHECKOUT / "playbooks" / playbook),
        *("-e", json.dumps(variables)),
        *options,
    ]
    environment = {**stack.environment, OUTPUTS_VARIABLE: str(outputs), "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg")}
    ended = stack.run(command, environment, directory=CHECKOUT)
    assert ended.exit_code == 0, ended.output[-6000:]
    return ended


def assert_refused(stack: AwsStack, reason: str) -> None:
    """A destroy is refused for this reason, and the instance lives."""
    instance = str(stack.resources()[f"{NODE}-instance"]["id"])
    refused = stack.destroy()
    assert refused.exit_code != 0 and f"{NODE}: not deleted, nothing was changed" in refused.output
    assert reason in refused.output and stack.instances()[instance] == "running"


def cards_of_the_next_launch(stack: AwsStack) -> int:
    """How many interfaces an instance gets that is started from the node's template now."""
    template = str(stack.resources()[f"{NODE}-interfaces"]["id"])
    told = stack.cloud.connect("ec2").describe_launch_template_versions(
        LaunchTemplateId=template, Versions=["$Default"]
    )
    return len(told["LaunchTemplateVersions"][0]["LaunchTemplateData"]["NetworkInterfaces"])


def test_rental_from_up_to_a_destroy_with_proof(stack: AwsStack, metadata: MetadataService) -> None:
    stack.configure({**SPOT, "instance_type": "p4d.24xlarge"}, configure=True)
    up = stack.up()
    assert up.exit_code == 0, up.output[-6000:]
    assert "EC2 has no termination protection for these nodes" in up.output
    assert "left until 2099-01-01T00:00:00Z" in up.output  # site.yml says it as well
    instance = str(stack.resources()[f"{NODE}-instance"]["id"])
    (found,) = stack.cloud.connect("ec2").describe_instances()["Reservations"][0]["Instances"]
    assert found["InstanceLifecycle"] == "spot"
    assert stack.on_node("systemctl is-active sglang.service").stdout.strip() == "active"
    assert_refused(stack, "there is no receipt")

    metadata.answers[NOTICE] = '{"action": "terminate", "time": "2099-01-01T00:00:00Z"}'
    evacuated = play(stack, metadata, "evacuate.yml")
    told = " ".join(evacuated.output.split())  # Ansible breaks its lines
    assert f"{NODE}: SAFE in s3://{BUCKET}/rentals/{NODE} (" in told
    assert "left until 2099-01-01T00:00:00Z; SPOT: EC2 is taking it back (terminate): " in told

    stack.on_node("echo later > /workspace/LATER.md")
    assert_refused(stack, "the workspace has changed since it was evacuated")
    stack.on_node("rm /workspace/LATER.md")
    metadata.reset()
    evacuated = play(stack, metadata, "evacuate.yml")
    assert "spot: no notice from EC2" in evacuated.output

    # What is proven may be replaced: the old instance ends first, then another is started.
    assert cards_of_the_next_launch(stack) == 4
    stack.cloud.calls.clear()
    stack.configure({**SPOT, "instance_type": "p5.48xlarge"})
    replaced = stack.up()
    assert replaced.exit_code == 0, replaced.output
    changes = [call for call in stack.cloud.calls if call in ("TerminateInstances", "RunInstances")]
    assert changes == ["TerminateInstances", "RunInstances"]
    new_instance = str(stack.resources()[f"{NODE}-instance"]["id"])
    assert stack.instances() == {instance: "terminated", new_instance: "running"}
    assert cards_of_the_next_launch(stack) == 32  # the new one did not start from the interfaces of the old
    assert host.status(stack.hosts / instance / "host") is None
    # The archive there is of the machine before: it proves nothing of this one.
    assert_refused(stack, "the receipt has another host key")

    restored = play(stack, metadata, "restore.yml", "--tags", "workspace,evacuation,restore")
    assert "left until 2099-01-01T00:00:00Z" in restored.output
    play(stack, metadata, "evacuate.yml")
    destroyed = stack.destroy()
    assert destroyed.exit_code == 0, destroyed.output
    assert stack.instances() == {instance: "terminated", new_instance: "terminated"}
    assert host.status(stack.hosts / new_instance / "host") is None
    keys = {"AWS_ENDPOINT_URL_S3": stack.store_endpoint}
    held = stack.decamp("verify", f"s3://{BUCKET}/rentals/{NODE}", "--endpoint-url", stack.store_endpoint, **keys)
    assert held.exit_code == 0 and f"holds: s3://{BUCKET}/rentals/{NODE}" in held.output
