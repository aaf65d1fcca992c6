"""No node is deleted before its guard has agreed, and no part of a stack before every guard has.

A guard is a resource whose deletion is the question. It depends on all that is its node's, so it is deleted first; it
is replaced before its node is, so the question comes before anything new is paid for; it is not forgotten by a refresh;
and an update never changes whom it stands for. The stack's guard depends on the nodes' guards: a destroy asks about all
nodes at once and leaves the stack whole when one of them must stay.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, UpdateResult
from pulumi.runtime import rpc

from decamp.errors import DecampError, NotSafe
from decamp.teardown import Agreement, GuardedNode, OtherNode, examine, read_machine_id
from infra.dynamic import NamedProvider, diff_inputs

if TYPE_CHECKING:
    from infra.config import StackConfig
    from infra.nodes import Node

# The stack's guard, a node's guard and the node's own deletion ask one after the other within one run of the engine.
AGREEMENT_VALID_S = 120.0

_WHO = ("name", "host_key", "machine_id")
_WAY = ("host", "port", "user", "ssh_private_key_file")
_ARCHIVE = ("store_url", "store_endpoint", "store_region", "workspace", "target")
_TOLD = ("deadline",)

_agreements: dict[GuardedNode, tuple[float, Agreement]] = {}


def agree(node: GuardedNode) -> Agreement:
    """Returns why the node may go, asked now or within the last two minutes of this run; else TeardownRefused."""
    held = _agreements.get(node)
    if held is not None and time.monotonic() - held[0] < AGREEMENT_VALID_S:
        return held[1]
    agreement = examine(node)
    _agreements[node] = (time.monotonic(), agreement)
    return agreement


class TeardownGuardProvider(NamedProvider):
    """A node's guard: deleting it succeeds only when the node may be deleted."""

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        # A machine id that was read from the node is not in the inputs; the one in the state stays.
        news = {**_news, "machine_id": _news.get("machine_id") or _olds.get("machine_id")}
        # An address that is not known yet belongs to a node that is about to be replaced.
        unknown = tuple(key for key in _WAY if news.get(key) == rpc.UNKNOWN)
        return diff_inputs(_olds, news, identity=(*_WHO, *unknown), settings=(*_WAY, *_ARCHIVE, *_TOLD))

    def create(self, props: dict[str, Any]) -> CreateResult:
        machine_id = props.get("machine_id") or _ask_machine_id(props)
        node = GuardedNode.from_properties({**props, "machine_id": machine_id})
        return CreateResult(f"{node.name}:{node.machine_id}", node.to_properties())

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        """Takes a new address or store for the same machine.

        Raises:
            OtherNode: the machine would be another one.
        """
        held = GuardedNode.from_properties(_olds)
        node = GuardedNode.from_properties({**_news, "machine_id": _news.get("machine_id") or held.machine_id})
        for key in _WHO:
            if getattr(held, key) != getattr(node, key):
                raise OtherNode(
                    held.name,
                    f"its guard cannot pass to another machine ({key})",
                    expected=getattr(held, key),
                    found=getattr(node, key),
                )
        if any(getattr(held, key) != getattr(node, key) for key in _WAY):
            found = _ask_machine_id(node.to_properties())
            if found != held.machine_id:
                raise OtherNode(node.name, "another machine id there", expected=held.machine_id, found=found)
        return UpdateResult(node.to_properties())

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """Says that the guard is as it was: a refresh never lifts it, whatever became of the node."""
        return ReadResult(id_, props)

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Agrees by returning.

        Raises:
            TeardownRefused: with every reason, what would be lost and what to run.
        """
        agree(GuardedNode.from_properties(_props))


def _ask_machine_id(props: Mapping[str, Any]) -> str:
    # Everything but the machine id is known; the placeholder is never kept.
    return read_machine_id(GuardedNode.from_properties({**props, "machine_id": "unknown"}).ssh_target())


class StackGuardProvider(NamedProvider):
    """The stack's guard: deleting it, as a destroy does first, succeeds only when every node may be deleted."""

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        return diff_inputs(_olds, _news, settings=("nodes",))

    def create(self, props: dict[str, Any]) -> CreateResult:
        return CreateResult("stack-guard", {"nodes": props["nodes"]})

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        """Takes the nodes there are now.

        Raises:
            TeardownRefused, StackRefused: a node is to leave the list that must stay. Were it dropped here and then
                kept by its own guard, a later destroy would delete the others before it asked that one.
        """
        names = {node["name"] for node in _news["nodes"]}
        leaving = [node for node in _olds["nodes"] if node["name"] not in names]
        refuse_unless_all_agree([GuardedNode.from_properties(node) for node in leaving])
        return UpdateResult({"nodes": _news["nodes"]})

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        return ReadResult(id_, props)

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Agrees by returning.

        Raises:
            StackRefused: with what every node that must stay has said.
        """
        refuse_unless_all_agree([GuardedNode.from_properties(node) for node in _props["nodes"]])


class StackRefused(NotSafe):
    """At least one node must stay, so nothing goes."""

    def __init__(self, refusals: Sequence[DecampError], node_count: int) -> None:
        self.refusals = tuple(refusals)
        told = "\n".join(str(refusal) for refusal in refusals)
        super().__init__("", f"{len(refusals)} of {node_count} nodes must stay, so nothing was deleted\n{told}")


def _find_refusal(node: GuardedNode) -> DecampError | None:
    try:
        agree(node)
    except DecampError as refusal:
        return refusal
    return None


def refuse_unless_all_agree(nodes: Sequence[GuardedNode]) -> None:
    """Returns when every node may go.

    Raises:
        TeardownRefused: there is one node, and it must stay.
        StackRefused: of several, at least one must stay.
    """
    refusals = [refusal for node in nodes if (refusal := _find_refusal(node)) is not None]
    if refusals and len(nodes) == 1:
        raise refusals[0]
    if refusals:
        raise StackRefused(refusals, len(nodes))


class TeardownGuard(Resource, module="decamp", name="TeardownGuard"):
    """The guard of one node."""

    name: pulumi.Output[str]
    target: pulumi.Output[str]
    host: pulumi.Output[str]
    port: pulumi.Output[int]
    user: pulumi.Output[str]
    ssh_private_key_file: pulumi.Output[str]
    host_key: pulumi.Output[str]
    machine_id: pulumi.Output[str]
    store_url: pulumi.Output[str]
    store_endpoint: pulumi.Output[str]
    store_region: pulumi.Output[str]
    workspace: pulumi.Output[str]
    deadline: pulumi.Output[str]


class StackGuard(Resource, module="decamp", name="StackGuard"):
    """The guard of the stack as a whole."""


def guard_node(node: Node, config: StackConfig, after: Sequence[pulumi.Resource]) -> TeardownGuard:
    """Declares the guard of a node.

    Args:
        node: the node; all that it owns is deleted after the guard has agreed.
        config: the stack's settings.
        after: what else must stay until the guard has agreed.
    """
    properties = {
        "name": node.config.name,
        "target": config.target,
        "host": node.host,
        "port": node.config.port,
        "user": node.config.user,
        "ssh_private_key_file": str(config.ssh_private_key_file),
        "host_key": node.host_key,
        "machine_id": node.machine_id,
        "store_url": config.store.url,
        "store_endpoint": config.store.endpoint,
        "store_region": config.store.region,
        "workspace": config.workspace,
        "deadline": node.config.deadline,
    }
    options = pulumi.ResourceOptions(
        parent=node.component, depends_on=[*node.owned, *after], delete_before_replace=True
    )
    return TeardownGuard(TeardownGuardProvider(), f"{node.config.name}-guard", properties, options)


def guard_stack(guards: Sequence[TeardownGuard], after: Sequence[pulumi.Resource]) -> StackGuard:
    """Declares the guard that a destroy deletes before anything else."""
    nodes = [{key: getattr(guard, key) for key in (*_WHO, *_WAY, *_ARCHIVE, *_TOLD)} for guard in guards]
    options = pulumi.ResourceOptions(depends_on=[*guards, *after], delete_before_replace=True)
    return StackGuard(StackGuardProvider(), "stack-guard", {"nodes": nodes}, options)
