"""The program declared against Pulumi's mocks, without an engine and without a node."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import pulumi
import pytest

from infra.config import StackConfig
from infra.configuration import configure_nodes
from infra.nodes import declare_nodes
from infra.store import Store
from infra.teardown_guard import guard_node, guard_stack
from tests.infra.declaration import Declared, Recorder


@pytest.fixture
def declare(monkeypatch: pytest.MonkeyPatch) -> Callable[[StackConfig], Declared]:
    """Declares a stack and returns all that it asked for."""

    def run(config: StackConfig) -> Declared:
        declared = Declared()
        asyncio.set_event_loop(asyncio.new_event_loop())
        pulumi.runtime.set_mocks(Recorder(declared), project="decamp", stack="test", preview=False)
        monitor = pulumi.runtime.settings.get_monitor()
        register = monitor.RegisterResource

        def record(request: Any) -> Any:
            declared.requests[request.name] = request
            return register(request)

        monkeypatch.setattr(monitor, "RegisterResource", record)

        @pulumi.runtime.test
        def program() -> Any:
            store = Store(config)
            nodes = declare_nodes(config, store)
            guards = [guard_node(node, config, store.resources) for node in nodes]
            configured = [configure_nodes(nodes, config, store, guards)] if config.configure else []
            return guard_stack(guards, [*store.resources, *configured]).urn

        program()
        return declared

    return run
