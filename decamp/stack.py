"""What a stack's outputs and state say is read whole and typed, or there is an error; never an empty answer."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decamp.errors import BadInput
from decamp.teardown import GuardedNode

GUARD_TYPE = "pulumi-python:dynamic/decamp:TeardownGuard"
# An up that configures its nodes gives their outputs in this file: the state has none before the up has ended.
OUTPUTS_VARIABLE = "DECAMP_STACK_OUTPUTS"
PULUMI_TIMEOUT_S = 120.0
CHECKOUT = Path(__file__).resolve().parent.parent

# Words of Pulumi's own errors (3.274) and what helps.
_ADVICE = (
    ("no stack selected", "no stack is selected", "pulumi stack select rehearsal"),
    ("no stack named", "there is no such stack", "pulumi stack ls  # in the backend PULUMI_BACKEND_URL names"),
    ("passphrase", "the stack's passphrase is missing or wrong", "export PULUMI_CONFIG_PASSPHRASE=..."),
    ("PULUMI_ACCESS_TOKEN", "Pulumi is not logged in", "pulumi login  # or export PULUMI_BACKEND_URL=file://..."),
    ("no previous deployment", "nothing has been deployed", "pulumi up"),
)


@dataclass(frozen=True)
class StoreRecord:
    """Where the archives go, as asked for and as the outputs tell it; an empty endpoint means Amazon S3."""

    url: str
    endpoint: str
    region: str


@dataclass(frozen=True)
class NodeRecord:
    """One node, as asked for and as the outputs tell it; empty text and None mean that nothing was given.

    Args:
        host, host_key: empty in a configuration whose target makes them.
        deadline: RFC 3339.
        purchase: how it is paid for, e.g. `spot`; empty where the target knows no such thing.
    """

    name: str
    host: str
    port: int
    user: str
    host_key: str
    gpu: str
    price_per_hour: float | None
    deadline: str
    purchase: str = ""


@dataclass(frozen=True)
class StackOutputs:
    """The contract between the stack and everything after it."""

    target: str
    store: StoreRecord
    nodes: tuple[NodeRecord, ...]
    ssh_private_key_file: str


class UnreadableStack(BadInput):
    """The stack's outputs or state cannot be had or are not what this project writes."""


def find_pulumi() -> str:
    """Returns the path of the Pulumi engine: the checkout's own, else the one on PATH.

    Raises:
        UnreadableStack: there is none.
    """
    own = CHECKOUT / ".venv" / "bin" / "pulumi"
    found = str(own) if own.exists() else shutil.which("pulumi")
    if not found:
        raise UnreadableStack("pulumi", "the Pulumi engine is not installed", run="make setup")
    return found


def find_project() -> Path:
    """Returns the directory of the Pulumi.yaml that holds here, as Pulumi looks for it; the checkout's otherwise."""
    here = Path.cwd()
    return next((place for place in (here, *here.parents) if (place / "Pulumi.yaml").is_file()), CHECKOUT)


def read_outputs(stack: str | None = None, project: Path | None = None) -> StackOutputs:
    """Returns the outputs of a stack that has been brought up.

    Args:
        stack: its name; None for the selected one.
        project: directory of Pulumi.yaml; None for the one that Pulumi would take here, else the checkout.

    Raises:
        UnreadableStack: no engine, no such stack, no passphrase, or outputs that are not whole.
    """
    given = os.environ.get(OUTPUTS_VARIABLE)
    if given:
        try:
            return parse_outputs(json.loads(Path(given).read_text(encoding="utf-8")), given)
        except (OSError, ValueError) as error:
            raise UnreadableStack(given, f"{OUTPUTS_VARIABLE} names no readable outputs", found=str(error)) from None
    told = run_pulumi(["stack", "output", "--json"], stack, project or find_project())
    return parse_outputs(told, stack or "selected stack")


def parse_outputs(outputs: object, where: str) -> StackOutputs:
    """Returns the outputs typed, or raises UnreadableStack naming each one that is missing or of the wrong kind."""
    if not isinstance(outputs, Mapping) or not outputs:
        raise UnreadableStack(where, "the stack has no outputs", run="pulumi up")
    wrong: list[str] = []

    def take(mapping: object, key: str, kinds: tuple[type, ...], path: str) -> Any:
        value = mapping.get(key) if isinstance(mapping, Mapping) else None
        if not isinstance(value, kinds) or isinstance(value, bool):
            wrong.append(f"{path}{key}")
        return value

    store = take(outputs, "store", (Mapping,), "")
    store_output = StoreRecord(*(take(store, key, (str,), "store.") for key in ("url", "endpoint", "region")))
    nodes = []
    for number, node in enumerate(take(outputs, "nodes", (list,), "") or []):
        path = f"nodes[{number}]."
        texts = {key: take(node, key, (str,), path) for key in ("name", "host", "user", "host_key", "gpu", "deadline")}
        port = take(node, "port", (int, float), path)
        price = take(node, "price_per_hour", (int, float, type(None)), path)
        # Outputs of an earlier up have no word on the purchase.
        purchase = take({"purchase": "", **node}, "purchase", (str,), path) if isinstance(node, Mapping) else ""
        nodes.append(NodeRecord(**texts, port=int(port or 0), price_per_hour=price, purchase=purchase))
    key_file = take(outputs, "ssh_private_key_file", (str,), "")
    target = take(outputs, "target", (str,), "")
    if not nodes and "nodes" not in wrong:
        wrong.append("nodes")
    if wrong:
        raise UnreadableStack(
            where,
            "the stack's outputs are not whole",
            expected="all of them",
            found=f"without {', '.join(wrong)}",
            run="pulumi up",
        )
    return StackOutputs(target, store_output, tuple(nodes), key_file)


def read_guards(stack: str | None = None, project: Path | None = None) -> list[GuardedNode]:
    """Returns every node that a guard in the stack's state stands for; none in a stack that was never brought up.

    Raises:
        UnreadableStack: no engine, no such stack, or a state that cannot be read.
    """
    state = run_pulumi(["stack", "export"], stack, project or find_project())
    deployment = state.get("deployment") if isinstance(state, Mapping) else None
    if not isinstance(deployment, Mapping):
        raise UnreadableStack(stack or "selected stack", "the stack's state cannot be read", run="pulumi stack export")
    resources = [resource for resource in deployment.get("resources") or [] if resource.get("type") == GUARD_TYPE]
    return [GuardedNode.from_properties(guard.get("outputs") or {}) for guard in resources]


def run_pulumi(arguments: list[str], stack: str | None, project: Path) -> Any:
    """Returns the JSON document that a reading `pulumi` command prints.

    Raises:
        UnreadableStack: the command failed; its words and what helps are in the message.
    """
    command = [find_pulumi(), *arguments, "--non-interactive", *(["--stack", stack] if stack else [])]
    environment = {**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "1", "NO_COLOR": "1"}
    where = stack or os.environ.get("PULUMI_STACK") or "selected stack"
    try:
        ended = subprocess.run(
            command,
            cwd=project,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PULUMI_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnreadableStack(where, f"pulumi {arguments[0]} {arguments[1]} gave no answer in time") from None
    if ended.returncode != 0:
        said = " ".join(ended.stderr.split())
        for words, what, run in _ADVICE:
            if words in said:
                raise UnreadableStack(where, what, found=said[-300:], run=run)
        raise UnreadableStack(where, f"pulumi {' '.join(arguments)} failed", found=said[-300:])
    try:
        return json.loads(ended.stdout)
    except ValueError:
        raise UnreadableStack(where, "pulumi printed no JSON", found=ended.stdout[:100]) from None
