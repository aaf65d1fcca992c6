"""Every target gives its nodes in one shape, so that nothing after this package knows where a node came from."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Protocol, cast

import pulumi

from decamp.stack import NodeRecord
from decamp.teardown import GuardedNode
from infra.config import StackConfig
from infra.store import Store

# One target, one module here with a `declare_nodes(config, store)`; imported only when the target is asked for, as a
# cloud's SDK is slow to load. A further target is a file, an entry here and its name in infra.config.TARGETS.
MODULES = {
    "rehearsal": "infra.nodes.rehearsal",
    "rented": "infra.nodes.rented",
    "aws": "infra.nodes.aws",
}


@dataclass(frozen=True)
class Node:
    """A declared node.

    Args:
        config: what was asked for.
        component: the node's component; its guard becomes a child of it.
        owned: every resource that is the node's; its guard depends on all of them, so that it is deleted first.
        host: address that sshd answers at.
        host_key: public host key, known before the first contact.
        machine_id: /etc/machine-id.
    """

    config: NodeRecord
    component: pulumi.ComponentResource
    owned: tuple[pulumi.Resource, ...]
    host: pulumi.Output[str]
    host_key: pulumi.Output[str]
    machine_id: pulumi.Output[str]

    def describe(self) -> dict[str, object]:
        """The node as the stack's outputs show it."""
        return {**asdict(self.config), "host": self.host, "host_key": self.host_key}


class NodeModule(Protocol):
    """What a target's module offers."""

    def declare_nodes(self, config: StackConfig, store: Store) -> Sequence[Node]: ...


def prepare_target(
    config: StackConfig, guarded: Sequence[GuardedNode], ask: Callable[[Sequence[GuardedNode]], None]
) -> StackConfig:
    """Returns the settings, completed where the target is one that can be asked before anything is declared."""
    if config.target != "aws":
        return config
    from infra.aws.preparation import prepare

    return prepare(config, guarded, ask)


def declare_nodes(config: StackConfig, store: Store) -> Sequence[Node]:
    """Declares the nodes of the configured target."""
    module = cast(NodeModule, importlib.import_module(MODULES[config.target]))
    return module.declare_nodes(config, store)
