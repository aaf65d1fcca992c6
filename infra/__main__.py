"""The stack: a store, nodes, a guard for each node, and the outputs that the inventory is made from."""

from __future__ import annotations

import sys
from pathlib import Path

# Pulumi puts this directory on the path; the packages `infra` and `decamp` are one above it.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import pulumi
from pulumi.runtime.config import CONFIG

from decamp.errors import DecampError
from decamp.stack import read_guards
from infra.config import parse_config
from infra.configuration import configure_nodes
from infra.departures import ask_departing
from infra.nodes import declare_nodes, prepare_target
from infra.store import declare_store
from infra.teardown_guard import guard_node, guard_stack, refuse_unless_all_agree


def declare_stack() -> None:
    """Declares everything, once the configuration is right and no node would be left behind."""
    config = parse_config(pulumi.get_stack(), CONFIG.get())
    guarded = read_guards(pulumi.get_stack(), Path.cwd())
    config = prepare_target(config, guarded, refuse_unless_all_agree)
    try:
        ask_departing(config, guarded, refuse_unless_all_agree)
    except DecampError as refusal:
        if not pulumi.runtime.is_dry_run():
            raise
        pulumi.log.warn(f"an up would be refused: {refusal}")
    store = declare_store(config)
    nodes = declare_nodes(config, store)
    guards = [guard_node(node, config, store.resources) for node in nodes]
    configured: list[pulumi.Resource] = [configure_nodes(nodes, config, store, guards)] if config.configure else []
    guard_stack(guards, [*store.resources, *configured])
    pulumi.export("target", config.target)
    pulumi.export("store", store.describe(config))
    pulumi.export("nodes", [node.describe() for node in nodes])
    pulumi.export("ssh_private_key_file", str(config.ssh_private_key_file))


try:
    declare_stack()
except DecampError as error:
    raise pulumi.RunError(str(error)) from None
