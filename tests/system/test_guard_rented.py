"""A host that somebody else started is known by the host key given for it, and guarded like any other."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from decamp.rehearsal import host
from tests.system.guard_stack import GuardStack
from tests.system.machines import Machine, StoreAccess


@pytest.fixture
def stack(session_directory: Path) -> Iterator[GuardStack]:
    made = GuardStack(session_directory / "guard-rented", [])
    yield made
    made.remove()


def settings(machine: Machine, store: StoreAccess, **changes: Any) -> dict[str, Any]:
    """A rented stack's settings for a host that runs and a bucket that exists."""
    node = {"name": "gpu-1", "host": machine.host.address, "host_key": machine.host.host_key, **changes}
    return {
        "target": "rented",
        "nodes": [node],
        "store": {"url": f"{store.url}/runs", "endpoint": store.endpoint_url},
        "ssh": {"private_key_file": str(machine.private_key)},
    }


def test_rented_host_from_up_to_destroy(
    stack: GuardStack, new_host: Callable[[str], Machine], store_server: StoreAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine, another = new_host("gpu-1"), new_host("gpu-2")
    keys = {key: value for key, value in store_server.environment.items() if key != "AWS_ENDPOINT_URL"}
    monkeypatch.setattr(stack, "credentials", lambda: keys)

    # A host that shows another key than the given one is found before anything is guarded.
    stack.write_config(settings(machine, store_server, host_key=another.host.host_key))
    refused = stack.up()
    assert refused.exit_code != 0 and "another host key at" in refused.output, refused.output
    assert machine.host.host_key in refused.output and "Traceback" not in refused.output
    assert not any("TeardownGuard" in urn for urn in stack.resources())

    stack.write_config(settings(machine, store_server))
    brought_up = stack.up()
    assert brought_up.exit_code == 0, brought_up.output
    guard = stack.urn("gpu-1-guard")
    assert stack.resources()[guard] == f"gpu-1:{machine.host.machine_id}"

    # Another machine under the node's name: the guard of the one that is there is asked first.
    stack.write_config(settings(another, store_server) | {"ssh": settings(machine, store_server)["ssh"]})
    replaced = stack.up()
    assert replaced.exit_code != 0 and "gpu-1: not deleted, nothing was changed" in replaced.output, replaced.output
    assert stack.resources()[guard] == f"gpu-1:{machine.host.machine_id}"

    # The same machine at an address where nobody answers: the guard does not take it on trust.
    host.stop(another.host.directory)
    stack.write_config(settings(machine, store_server, host=another.host.address))
    moved = stack.up()
    assert moved.exit_code != 0 and "gpu-1: no answer from" in moved.output, moved.output

    stack.write_config(settings(machine, store_server))
    destroyed = stack.destroy()
    assert destroyed.exit_code != 0 and "there is no receipt" in destroyed.output, destroyed.output
    machine.run("true")
    given_up = stack.decamp("abandon", "gpu-1", "--reason", "handed back", stdin="gpu-1\n")
    assert given_up.exit_code == 0, given_up.output
    destroyed = stack.destroy()
    assert destroyed.exit_code == 0, destroyed.output
    assert stack.resources() == {}
    # Nothing of ours ends a rented host.
    machine.run("true")


def test_bucket_that_does_not_exist_is_said(
    stack: GuardStack, new_host: Callable[[str], Machine], store_server: StoreAccess, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = new_host("gpu-1")
    keys = {key: value for key, value in store_server.environment.items() if key != "AWS_ENDPOINT_URL"}
    monkeypatch.setattr(stack, "credentials", lambda: keys)
    wrong = settings(machine, store_server)
    wrong["store"]["url"] = "s3://no-such-bucket-here/runs"
    stack.write_config(wrong)
    refused = stack.up()
    assert refused.exit_code != 0, refused.output
    assert "s3://no-such-bucket-here: there is no such bucket" in refused.output, refused.output
    assert "run: aws s3api create-bucket --bucket no-such-bucket-here --endpoint-url" in refused.output


def test_wrong_settings_are_all_named_by_the_engine(stack: GuardStack) -> None:
    stack.write_config({"target": "rented", "nodes": [{"name": "gpu-1", "host": "203.0.113.7"}], "nodse": 1})
    refused = stack.pulumi("preview")
    assert refused.exit_code != 0 and "Traceback" not in refused.output, refused.output
    for key in ("store.url", "ssh.private_key_file", "nodes[0].host_key", "nodse"):
        assert f"decamp:{key}: " in refused.output, refused.output
    assert "ssh-keyscan -t ed25519 -p 22 203.0.113.7" in refused.output
