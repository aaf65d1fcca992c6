"""What the program declares: guards above everything, children that name their parents, no secret anywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from decamp.ssh import NodeSilent
from decamp.stack import parse_outputs
from decamp.teardown import GuardedNode, TeardownRefused
from infra.config import CHECKOUT, StackConfig, parse_config
from infra.departures import find_departing
from tests.infra.declaration import HOST_KEY, MACHINE_ID, Declared, find_types

Declare = Callable[[StackConfig], Declared]


def rehearsal_config(directory: Path, *names: str) -> StackConfig:
    nodes = json.dumps([{"name": name} for name in names])
    return parse_config("test", {"decamp:target": "rehearsal", "decamp:nodes": nodes}, directory)


def rented_settings(directory: Path, **node: object) -> dict[str, str]:
    key = directory / "key"
    key.write_text("a private key")
    key.chmod(0o600)
    nodes = [{"name": "gpu-1", "host": "203.0.113.7", "host_key": HOST_KEY, **node}]
    return {
        "decamp:target": "rented",
        "decamp:nodes": json.dumps(nodes),
        "decamp:store": json.dumps({"url": "s3://archives/runs", "endpoint": "https://s3.example.org"}),
        "decamp:ssh": json.dumps({"private_key_file": str(key)}),
    }


def rented_config(directory: Path, **node: object) -> StackConfig:
    return parse_config("test", rented_settings(directory, **node))


# The whole program, in a process that has loaded nothing yet.
PROGRAM = """
import asyncio, json, runpy, sys
import pulumi
import decamp.stack
from tests.infra.declaration import Declared, Recorder

declared = Declared()
asyncio.set_event_loop(asyncio.new_event_loop())
pulumi.runtime.set_mocks(Recorder(declared), project="decamp", stack="test")
pulumi.runtime.set_all_config(json.loads(sys.argv[1]))
decamp.stack.read_guards = lambda *_: []  # there is no engine to ask
pulumi.runtime.test(lambda: runpy.run_path("infra/__main__.py", run_name="__main__") and None)()
print(json.dumps({"declared": sorted(declared.types), "modules": sorted(sys.modules)}))
"""


@pytest.mark.parametrize("target", ["rehearsal", "rented"])
def test_target_without_aws_never_loads_the_sdk_of_aws(tmp_path: Path, target: str) -> None:
    settings = {"decamp:target": target}
    if target == "rented":
        settings = rented_settings(tmp_path)
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(settings)],
        cwd=CHECKOUT,
        env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    told = json.loads(ended.stdout)
    assert {"bucket", "stack-guard"} <= set(told["declared"]) and f"infra.nodes.{target}" in told["modules"]
    assert not [name for name in told["modules"] if name.split(".")[0] == "pulumi_aws"]


def test_each_rehearsal_node_has_its_parts_below_it(declare: Declare, tmp_path: Path) -> None:
    declared = declare(rehearsal_config(tmp_path, "node-1", "node-2"))
    kinds = find_types(declared)
    for name in ("node-1", "node-2"):
        parts = {part for part in kinds if part.startswith(f"{name}-")}
        assert {kinds[part] for part in parts} == {"HostIdentity", "BootedHost", "TeardownGuard"}
        assert {declared.parent_of(part) for part in parts} == {name}
    assert declared.parent_of("bucket") == declared.parent_of("store-server") == "store"


def test_guards_are_deleted_before_everything_else(declare: Declare, tmp_path: Path) -> None:
    declared = declare(rehearsal_config(tmp_path, "node-1", "node-2"))
    for name in ("node-1", "node-2"):
        needed = {f"{name}-identity", f"{name}-host", "store-server", "bucket"}
        assert needed <= declared.dependencies_of(f"{name}-guard")
        assert declared.requests[f"{name}-guard"].deleteBeforeReplace
        assert declared.requests[f"{name}-host"].deleteBeforeReplace
    assert {"node-1-guard", "node-2-guard", "bucket"} <= declared.dependencies_of("stack-guard")


def test_nodes_are_guarded_before_they_are_configured(declare: Declare, tmp_path: Path) -> None:
    """And the stack's guard comes last of all, so that a refused destroy has not even forgotten the configuration."""
    config = replace(rehearsal_config(tmp_path, "node-1", "node-2"), configure=True)
    declared = declare(config)
    assert {"node-1-guard", "node-2-guard", "bucket"} <= declared.dependencies_of("configuration")
    assert "configuration" in declared.dependencies_of("stack-guard")
    outputs = parse_outputs(declared.inputs["configuration"]["outputs"], "configuration")
    assert [(node.name, node.host, node.host_key) for node in outputs.nodes] == [
        ("node-1", "127.0.10.1", HOST_KEY),
        ("node-2", "127.0.10.2", HOST_KEY),
    ]
    assert "configuration" not in declare(rehearsal_config(tmp_path, "node-1")).types


def test_store_is_retained(declare: Declare, tmp_path: Path) -> None:
    declared = declare(rehearsal_config(tmp_path, "node-1"))
    retained = {name for name, request in declared.requests.items() if request.retainOnDelete}
    assert retained == {"store-server", "bucket"}


def test_guard_knows_node_and_archive(declare: Declare, tmp_path: Path) -> None:
    declared = declare(rehearsal_config(tmp_path, "node-1"))
    node = GuardedNode.from_properties(declared.inputs["node-1-guard"])
    assert (node.name, node.host, node.port, node.user) == ("node-1", "127.0.10.1", 22, "root")
    assert (node.host_key, node.machine_id) == (HOST_KEY, MACHINE_ID)
    assert node.archive_url == "s3://decamp-rehearsal/node-1" and node.store_endpoint == "http://127.0.0.1:18333"
    (listed,) = declared.inputs["stack-guard"]["nodes"]
    assert GuardedNode.from_properties(listed) == node


def test_rented_node_is_guarded_by_the_key_it_was_given(declare: Declare, tmp_path: Path) -> None:
    declared = declare(rented_config(tmp_path, port=2222, user="ubuntu"))
    assert set(find_types(declared).values()) == {"Store", "Bucket", "Rented", "TeardownGuard", "StackGuard"}
    guard = declared.inputs["gpu-1-guard"]
    assert (guard["host"], guard["port"], guard["user"]) == ("203.0.113.7", 2222, "ubuntu")
    assert guard["host_key"] == HOST_KEY and guard["store_url"] == "s3://archives/runs"
    assert declared.parent_of("gpu-1-guard") == "gpu-1"
    # The guard itself asks the host for its machine id, over this key.
    assert guard["machine_id"] == ""


def test_guard_tells_the_deadline_and_agrees_whatever_it_is(declare: Declare, tmp_path: Path) -> None:
    declared = declare(rented_config(tmp_path, deadline="2099-01-01T00:00:00Z"))
    assert declared.inputs["gpu-1-guard"]["deadline"] == "2099-01-01T00:00:00Z"
    node = replace(guarded("gpu-1"), deadline="2099-01-01T00:00:00Z")
    told = str(TeardownRefused(node, [NodeSilent("gpu-1", "no answer")], ""))
    assert "\ntime: " in told and "left until 2099-01-01T00:00:00Z" in told
    assert "\ntime: " not in str(TeardownRefused(guarded("gpu-1"), [NodeSilent("gpu-1", "no answer")], ""))
    # The deadline is no part of who the node is: what was agreed to a minute ago holds for another one too.
    assert node == guarded("gpu-1") and hash(node) == hash(guarded("gpu-1"))
    # What an earlier version's state has of a guard.
    held = {key: value for key, value in node.to_properties().items() if key != "deadline"}
    assert GuardedNode.from_properties(held).deadline == ""


def test_state_holds_neither_keys_nor_code(declare: Declare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAOFTHETEST")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret-of-the-test")
    declared = declare(rehearsal_config(tmp_path, "node-1"))
    everything = json.dumps(declared.inputs, default=str)
    assert "OFTHETEST" not in everything and "secret-of-the-test" not in everything
    providers = [inputs["__provider"] for inputs in declared.inputs.values() if "__provider" in inputs]
    assert len(providers) == 6
    # A pickled class is thousands of characters; a name is a line.
    assert all(len(provider) < 300 for provider in providers)


def guarded(name: str, target: str = "rehearsal") -> GuardedNode:
    return GuardedNode(
        name, target, "127.0.10.1", 22, "root", "/key", HOST_KEY, MACHINE_ID, "s3://archives", "", "us-east-1", "/w"
    )


@pytest.mark.parametrize(
    ("held", "departing"),
    [
        ([], []),
        ([guarded("node-1")], []),
        ([guarded("node-1"), guarded("node-2")], []),
        ([guarded("node-1"), guarded("node-2"), guarded("node-3")], []),
        ([guarded("old")], ["old"]),
        ([guarded("node-1"), guarded("old")], ["old"]),
        ([guarded("node-1", "rented"), guarded("node-2")], ["node-1"]),
    ],
)
def test_node_that_leaves_while_another_comes_is_asked_for_first(
    tmp_path: Path, held: list[GuardedNode], departing: list[str]
) -> None:
    config = rehearsal_config(tmp_path, "node-1", "node-2")
    assert [node.name for node in find_departing(config, held)] == departing
