"""A whole rental on the target aws: up, site.yml, evacuate.yml, and a destroy that is refused until the proof is there.

EC2 is played by a moto server with a booted host behind the instance, S3 by a real S3 server, and the provider by the
stand-in; the engine, the SDK, the program, the playbooks, the guard and the node's software are the real ones.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from decamp.rehearsal import host
from decamp.stack import OUTPUTS_VARIABLE
from tests.aws_provider.cloud import Cloud, Server
from tests.system.aws_stack import BUCKET, NODE, AwsStack
from tests.system.guard_stack import CHECKOUT, Outcome
from tests.system.machines import StoreAccess


@pytest.fixture
def stack(session_directory: Path, store_process: Any) -> Iterator[AwsStack]:
    store, access_key, secret_key = store_process
    server = Server(Cloud(prices={"g6.xlarge": 0.9}))
    made = AwsStack(
        session_directory / f"aws-rental-{secrets.token_hex(4)}",
        server.cloud,
        with_hosts=True,
        store_endpoint=store.endpoint_url,
        variables={
            "AWS_ACCESS_KEY_ID": access_key,
            "AWS_SECRET_ACCESS_KEY": secret_key,
            "DECAMP_STAND_IN_S3_URL": store.endpoint_url,
        },
    )
    yield made
    made.remove()
    StoreAccess(store, BUCKET, access_key, secret_key).connect().delete_bucket(Bucket=BUCKET)
    server.stop()


def play(stack: AwsStack, playbook: str) -> Outcome:
    """Runs a playbook on the stack's nodes; the host has no GPU, so the server's place is taken as in the rehearsal."""
    outputs = stack.directory / "outputs.json"
    outputs.write_text(json.dumps(stack.outputs()))
    variables = CHECKOUT / "playbooks" / "group_vars" / "rehearsal.yml"
    # No instance metadata stands behind a booted host: the operator's keys travel in the environment of one run.
    credentials = {"evacuation_store_credentials": "operator", "restore_store_credentials": "operator"}
    command = [
        str(CHECKOUT / ".venv" / "bin" / "ansible-playbook"),
        str(CHECKOUT / "playbooks" / playbook),
        *("-e", f"@{variables}"),
        *("-e", json.dumps(credentials)),
    ]
    environment = {**stack.environment, OUTPUTS_VARIABLE: str(outputs), "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg")}
    return stack.run(command, environment, directory=CHECKOUT)


def test_rental_from_up_to_a_destroy_with_proof(stack: AwsStack) -> None:
    up = stack.up()
    assert up.exit_code == 0, up.output
    instance = str(stack.resources()[f"{NODE}-instance"]["id"])
    site = play(stack, "site.yml")
    assert site.exit_code == 0, site.output[-6000:]

    refused = stack.destroy()
    assert refused.exit_code != 0 and f"{NODE}: not deleted, nothing was changed" in refused.output
    assert stack.instances() == {instance: "running"}

    evacuated = play(stack, "evacuate.yml")
    assert evacuated.exit_code == 0, evacuated.output[-6000:]
    assert f"{NODE}: SAFE in s3://{BUCKET}/rentals/{NODE}" in evacuated.output
    assert "left until 2099-01-01T00:00:00Z" in evacuated.output

    stack.on_node("echo later > /workspace/LATER.md")
    changed = stack.destroy()
    assert changed.exit_code != 0 and "the workspace has changed since it was evacuated" in changed.output
    assert stack.instances() == {instance: "running"}
    stack.on_node("rm /workspace/LATER.md")
    evacuated = play(stack, "evacuate.yml")
    assert evacuated.exit_code == 0, evacuated.output[-6000:]

    destroyed = stack.destroy()
    assert destroyed.exit_code == 0, destroyed.output
    assert stack.instances() == {instance: "terminated"}
    assert host.status(stack.hosts / instance / "host") is None
    keys = {"AWS_ENDPOINT_URL_S3": stack.store_endpoint}
    held = stack.decamp("verify", f"s3://{BUCKET}/rentals/{NODE}", "--endpoint-url", stack.store_endpoint, **keys)
    assert held.exit_code == 0 and f"holds: s3://{BUCKET}/rentals/{NODE}" in held.output
