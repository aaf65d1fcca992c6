"""Booted Debian hosts on this machine that come, drift and go as a cloud's do, each with an identity of its own."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, UpdateResult

from decamp.errors import DecampError
from decamp.rehearsal import host as booted_host
from decamp.rehearsal import process
from decamp.stack import NodeRecord
from decamp.teardown import GuardedNode
from infra.config import StackConfig
from infra.dynamic import NamedProvider, diff_inputs
from infra.nodes import Node
from infra.store import Store
from infra.teardown_guard import agree

_PLACE = ("name", "directory", "identity_directory", "address")
_IDENTITY = ("host_key", "machine_id")
_SETTINGS = ("user", "ssh_private_key_file", "store_url", "store_endpoint", "store_region", "workspace")
# Says that a deletion was agreed to and has begun: the host may be half gone, so nobody can ask it again.
_LEAVING = "leaving"


class IdentityProvider(NamedProvider):
    """Host key and machine id, made before the host starts; replaced with the host, never without it."""

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        # A host whose disk is gone is another machine when it is made again. Its guard is asked first.
        gone = booted_host.status(Path(_olds["directory"])) is None
        return diff_inputs(_olds, _news, identity=_PLACE, gone=gone)

    def create(self, props: dict[str, Any]) -> CreateResult:
        directory = Path(props["identity_directory"])
        if (directory / _LEAVING).exists():
            _remove(props)
        private_key, id_file = directory / "ssh_host_ed25519_key", directory / "machine-id"
        there = booted_host.status(Path(props["directory"]))
        if there is not None:
            # An interrupted up has left a host that the stack does not know. It may hold something: it is taken over.
            _copy_key(there.directory / "upper/etc/ssh/ssh_host_ed25519_key", private_key)
            id_file.write_text(f"{there.machine_id}\n", encoding="ascii")
        elif not id_file.is_file():
            booted_host.generate_key_pair(private_key, comment=props["name"])
            id_file.write_text(f"{booted_host.new_machine_id()}\n", encoding="ascii")
        key = booted_host.read_public_key(private_key)
        machine_id = id_file.read_text(encoding="ascii").strip()
        outs = {**{name: props[name] for name in _PLACE}, "host_key": key, "machine_id": machine_id}
        return CreateResult(machine_id, outs)

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Removes the key and the id; the host that bore them has been deleted before.

        Raises:
            HostFailure: there still is one, which the stack has lost sight of.
        """
        if booted_host.status(Path(_props["directory"])) is not None:
            raise booted_host.HostFailure(
                _props["name"],
                "an interrupted up has left a host that this stack does not know yet",
                expected="none",
                found=_props["directory"],
                run="pulumi up  # takes it over and guards it",
            )
        shutil.rmtree(_props["identity_directory"], ignore_errors=True)


class HostProvider(NamedProvider):
    """The host itself: one that was killed is found and booted again, one whose disk is gone is made anew."""

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        there = booted_host.status(Path(_olds["directory"]))
        drifted = there is None or not there.running or not _olds.get("running")
        identity = (*_IDENTITY, *_PLACE)
        return diff_inputs(_olds, _news, identity=identity, settings=_SETTINGS, drifted=drifted, gone=there is None)

    def create(self, props: dict[str, Any]) -> CreateResult:
        directory = Path(props["directory"])
        taken_over = booted_host.status(directory) is not None
        try:
            return CreateResult(f"{props['name']}:{props['machine_id']}", _boot(props))
        except DecampError:
            if not taken_over:
                booted_host.destroy(directory)
            raise

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        return UpdateResult(_boot(_news))

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        # Never reported as gone: the engine would forget the host, and its guard would be asked after a new one is up.
        there = booted_host.status(Path(props["directory"]))
        return ReadResult(id_, {**props, "running": there is not None and there.running})

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Ends the host and removes its disk, if the guard has agreed in this run or agrees now.

        An `up` that left the guard out has taken it from the stack while the archive held; the host has gone on since.

        Raises:
            TeardownRefused: the host must not go.
        """
        directory, leaving = Path(_props["directory"]), Path(_props["identity_directory"]) / _LEAVING
        there = booted_host.status(directory)
        running = there is not None and there.running
        if running or not leaving.exists():
            agree(_guarded(_props))
            leaving.parent.mkdir(parents=True, exist_ok=True)
            leaving.touch()
        booted_host.destroy(directory)


def _guarded(props: dict[str, Any]) -> GuardedNode:
    return GuardedNode.from_properties({**props, "host": props["address"], "port": 22, "target": "rehearsal"})


def _remove(props: dict[str, Any]) -> None:
    booted_host.destroy(Path(props["directory"]))
    shutil.rmtree(props["identity_directory"])


def _copy_key(source: Path, private_key: Path) -> None:
    private_key.parent.mkdir(parents=True, exist_ok=True)
    for place in (booted_host.public_half, Path):
        shutil.copyfile(place(source), place(private_key))
    private_key.chmod(0o600)


def ensure_operator_key(private_key: Path) -> Path:
    """Returns the key, made on first use; of hosts that start together only one makes it, and none sees half of it."""
    with process.lock(private_key.parent / ".lock"):
        if not booted_host.public_half(private_key).is_file():
            booted_host.generate_key_pair(private_key, comment="decamp rehearsal")
    return private_key


def _boot(props: dict[str, Any]) -> dict[str, Any]:
    operator_key = ensure_operator_key(Path(props["ssh_private_key_file"]))
    booted_host.start(
        props["name"],
        Path(props["directory"]),
        props["address"],
        Path(props["identity_directory"]) / "ssh_host_ed25519_key",
        booted_host.read_public_key(operator_key),
        props["machine_id"],
    )
    return {**{name: props[name] for name in (*_PLACE, *_IDENTITY, *_SETTINGS)}, "running": True}


class Identity(Resource, module="decamp", name="HostIdentity"):
    """A host's key and machine id as a resource."""

    host_key: pulumi.Output[str]
    machine_id: pulumi.Output[str]


class Host(Resource, module="decamp", name="BootedHost"):
    """A booted host as a resource."""

    address: pulumi.Output[str]
    host_key: pulumi.Output[str]
    machine_id: pulumi.Output[str]


class RehearsalNode(pulumi.ComponentResource):
    """A booted host with its identity.

    Args:
        config: the node as asked for.
        stack: the stack's settings.
    """

    def __init__(self, config: NodeRecord, stack: StackConfig) -> None:
        super().__init__("decamp:node:Rehearsal", config.name)
        self.config = config
        options = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        place = {
            "name": config.name,
            "directory": str(stack.rehearsal_directory / "nodes" / config.name),
            "identity_directory": str(stack.rehearsal_directory / "identities" / config.name),
            "address": config.host,
        }
        self.identity = Identity(
            IdentityProvider(),
            f"{config.name}-identity",
            {**place, "host_key": None, "machine_id": None},
            options,
        )
        # Address and identity are inputs of the host, so that they are known even while it is being put right: a guard
        # that waited for them would look as if it were to be replaced.
        self.host = Host(
            HostProvider(),
            f"{config.name}-host",
            {
                **place,
                "host_key": self.identity.host_key,
                "machine_id": self.identity.machine_id,
                "user": config.user,
                "ssh_private_key_file": str(stack.ssh_private_key_file),
                "store_url": stack.store.url,
                "store_endpoint": stack.store.endpoint,
                "store_region": stack.store.region,
                "workspace": stack.workspace,
                "running": None,
            },
            options,
        )
        self.register_outputs({"host": self.host.address, "host_key": self.host.host_key})

    def as_node(self) -> Node:
        return Node(
            config=self.config,
            component=self,
            owned=(self.identity, self.host),
            host=self.host.address,
            host_key=self.host.host_key,
            machine_id=self.host.machine_id,
        )


def declare_nodes(config: StackConfig, _store: Store) -> Sequence[Node]:
    """Declares the booted hosts of the configuration."""
    return [RehearsalNode(node, config).as_node() for node in config.nodes]
