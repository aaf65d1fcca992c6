"""With `decamp:configure` an up ends with configured nodes, or says which task of site.yml failed on which node."""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, UpdateResult

from decamp.stack import OUTPUTS_VARIABLE
from infra.config import CHECKOUT, StackConfig
from infra.dynamic import NamedProvider, diff_inputs
from infra.nodes import Node
from infra.playbook_process import run_apart
from infra.store import Store

PLAYBOOK = "site.yml"
# What decides what site.yml does to a node; a change of it is a change of the configuration.
_SOURCES = ("playbooks", "roles", "inventories", "decamp", "requirements/node.txt")
_INPUTS = ("outputs", "sources_sha256")


class ConfigurationProvider(NamedProvider):
    """The nodes as site.yml leaves them; run again when a node, the store or the playbooks change."""

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        return diff_inputs(_olds, _news, settings=_INPUTS)

    def create(self, props: dict[str, Any]) -> CreateResult:
        return CreateResult("configuration", _configure(props))

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        return UpdateResult(_configure(_news))

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        return ReadResult(id_, props)

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Leaves the nodes as they are."""


def _configure(props: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="decamp-outputs-") as directory:
        outputs = Path(directory) / "outputs.json"
        outputs.write_text(json.dumps(props["outputs"]), encoding="utf-8")
        result = run_apart(PLAYBOOK, _tell, {OUTPUTS_VARIABLE: str(outputs)})
    result.raise_for_failure()
    return {key: props[key] for key in _INPUTS}


def _tell(line: str) -> None:
    # The engine shows what a provider prints.
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


class Configuration(Resource, module="decamp", name="Configuration"):
    """The nodes' configuration as a resource."""


def configure_nodes(
    nodes: Sequence[Node], config: StackConfig, store: Store, guards: Sequence[pulumi.Resource]
) -> Configuration:
    """Declares that site.yml has run on the nodes.

    Args:
        nodes: all of the stack's nodes; site.yml gets exactly these.
        config: the stack's settings.
        store: must be there first: site.yml may bring things from it.
        guards: must be there first: a node is guarded from its first minute, also when site.yml fails.
    """
    outputs = {
        "target": config.target,
        "store": store.describe(config),
        "nodes": [node.describe() for node in nodes],
        "ssh_private_key_file": str(config.ssh_private_key_file),
    }
    owned = [resource for node in nodes for resource in node.owned]
    options = pulumi.ResourceOptions(depends_on=[*owned, *store.resources, *guards])
    properties = {"outputs": outputs, "sources_sha256": hash_sources()}
    return Configuration(ConfigurationProvider(), "configuration", properties, options)


def hash_sources(checkout: Path = CHECKOUT) -> str:
    """The SHA-256 of every file that decides what site.yml does, by name and content."""
    digest = hashlib.sha256()
    for source in _SOURCES:
        place = checkout / source
        files = [place] if place.is_file() else sorted(path for path in place.rglob("*") if path.is_file())
        for path in files:
            if "__pycache__" not in path.parts:
                digest.update(f"{path.relative_to(checkout)}\0{path.stat().st_mode & 0o111:o}\0".encode())
                digest.update(hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()
