"""EC2 instances as nodes: one network for all of them, and for each an identity, rights and a protection of its own."""

from __future__ import annotations

from collections.abc import Sequence

import pulumi
import pulumi_aws as aws

from decamp.aws.tags import make_tags
from infra.aws.bucket import AwsStore
from infra.aws.network import Network
from infra.aws.node import AwsNode
from infra.aws.operator_key import read_public_half
from infra.config import StackConfig
from infra.nodes import Node
from infra.store import Store


def declare_nodes(config: StackConfig, store: Store) -> Sequence[Node]:
    """Declares the network, what the nodes share, and the nodes."""
    assert config.aws is not None and isinstance(store, AwsStore)
    settings, stack = config.aws, pulumi.get_stack()
    shared = make_tags(stack, settings.owner, settings.expires)
    options = pulumi.ResourceOptions(providers=[store.provider])
    alone = pulumi.ResourceOptions(provider=store.provider)
    network = Network(settings, shared, [node.port for node in config.nodes], options)
    authorized_key = read_public_half(config.ssh_private_key_file)
    under_network = pulumi.ResourceOptions.merge(alone, pulumi.ResourceOptions(parent=network))
    key = aws.ec2.KeyPair("operator", public_key=authorized_key, tags=shared, opts=under_network)
    group: aws.ec2.PlacementGroup | None = None
    if settings.purchase.option in ("on_demand", "spot"):
        # For one node too: joining a group later would be another instance. Reserved ones are placed where the
        # reservation is.
        group = aws.ec2.PlacementGroup("cluster", strategy="cluster", tags=shared, opts=under_network)
    return [
        AwsNode(
            node,
            config,
            network=network,
            key_name=key.key_name,
            placement_group=group.id if group else None,
            authorized_key=authorized_key,
            tags=make_tags(stack, settings.owner, node.deadline or settings.expires, node.name),
            opts=options,
        ).as_node()
        for node in config.nodes
    ]
