"""What a program asks for when it runs against Pulumi's mocks: every resource with its inputs, parent and options."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pulumi
import pytest

from infra.config import StackConfig
from infra.configuration import configure_nodes
from infra.nodes import declare_nodes
from infra.store import declare_store
from infra.teardown_guard import guard_node, guard_stack

MACHINE_ID = "0123456789abcdef0123456789abcdef"
HOST_KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIGbM9YyIHtR2bZ2nPrQyqvWWNzx0mFrFsRk0n0yS2v7x"


@dataclass
class Declared:
    """Every resource the program has asked for, by name."""

    types: dict[str, str] = field(default_factory=dict)
    inputs: dict[str, dict[str, Any]] = field(default_factory=dict)
    requests: dict[str, Any] = field(default_factory=dict)

    def parent_of(self, name: str) -> str:
        """The name of the resource's parent; the stack's own children have the stack."""
        return str(self.requests[name].parent).rsplit("::", 1)[-1]

    def dependencies_of(self, name: str) -> set[str]:
        return {urn.rsplit("::", 1)[-1] for urn in self.requests[name].dependencies}


class Recorder(pulumi.runtime.Mocks):
    """Answers like providers whose resources come up at once."""

    def __init__(self, declared: Declared) -> None:
        self.declared = declared

    def new_resource(self, args: pulumi.runtime.MockResourceArgs) -> tuple[str | None, dict[str, Any]]:
        self.declared.types[args.name] = args.typ
        self.declared.inputs[args.name] = dict(args.inputs)
        outputs = dict(args.inputs)
        if args.typ.endswith(":HostIdentity"):
            outputs.update(host_key=HOST_KEY, machine_id=MACHINE_ID)
        return f"{args.name}-id", outputs

    def call(self, args: pulumi.runtime.MockCallArgs) -> dict[str, Any]:
        raise AssertionError(f"no target asks a provider anything: {args.token}")


def declare(monkeypatch: pytest.MonkeyPatch, config: StackConfig, kind: type[Recorder] = Recorder) -> Declared:
    """Declares a stack of these settings as the program does, and returns all that it asked for."""
    declared = Declared()
    asyncio.set_event_loop(asyncio.new_event_loop())
    pulumi.runtime.set_mocks(kind(declared), project="decamp", stack="test", preview=False)
    monitor = pulumi.runtime.settings.get_monitor()
    register = monitor.RegisterResource

    def record(request: Any) -> Any:
        declared.requests[request.name] = request
        return register(request)

    monkeypatch.setattr(monitor, "RegisterResource", record)

    @pulumi.runtime.test
    def program() -> Any:
        store = declare_store(config)
        nodes = declare_nodes(config, store)
        guards = [guard_node(node, config, store.resources) for node in nodes]
        configured = [configure_nodes(nodes, config, store, guards)] if config.configure else []
        return guard_stack(guards, [*store.resources, *configured]).urn

    program()
    return declared


def find_types(declared: Declared) -> Mapping[str, str]:
    return {name: kind.rsplit(":", 1)[-1] for name, kind in declared.types.items()}
