"""Hosts that somebody else started: nothing is made or ended here, and each is known by the host key given for it."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi

from decamp.stack import NodeRecord
from infra.config import StackConfig
from infra.nodes import Node
from infra.store import Store


class RentedNode(pulumi.ComponentResource):
    """A host that is reached over SSH and handed back by its renter; only its guard is a resource of ours.

    Args:
        config: the node as asked for, its host key included.
    """

    def __init__(self, config: NodeRecord) -> None:
        super().__init__("decamp:node:Rented", config.name)
        self.config = config
        self.register_outputs({"host": config.host, "host_key": config.host_key})

    def as_node(self) -> Node:
        return Node(
            config=self.config,
            component=self,
            owned=(),
            host=pulumi.Output.from_input(self.config.host),
            host_key=pulumi.Output.from_input(self.config.host_key),
            # Read from the host by its guard, over the pinned key, at the first up.
            machine_id=pulumi.Output.from_input(""),
        )


def declare_nodes(config: StackConfig, _store: Store) -> Sequence[Node]:
    """Declares the rented hosts of the configuration."""
    return [RentedNode(node).as_node() for node in config.nodes]
