"""A node may be deleted only if its archive holds now and nothing on it has changed since, or it was abandoned."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from decamp import abandonment
from decamp.deadline import deadline_words
from decamp.errors import BadInput, DamagedArchive, DecampError, NotSafe
from decamp.findings import Finding
from decamp.receipt import Receipt, read_receipt
from decamp.ssh import NodeSilent, SshResult, SshTarget, run_remote
from decamp.store.client import Store
from decamp.store.location import StoreLocation
from decamp.verify import verify_bag

SPEC_FILE = "/etc/decamp/spec.yml"
NODE_COMMAND = "/usr/local/bin/decamp"
CENSUS_TIMEOUT_S = 3600.0
SIZE_TIMEOUT_S = 120.0
SHOWN_FINDINGS = 20
_MAY_BE_EMPTY = ("store_endpoint", "deadline")
_NO_SUCH_COMMAND = 127  # the shell's exit status (POSIX.1-2017, Shell Command Language, 2.8.2)


@dataclass(frozen=True)
class GuardedNode:
    """What a guard knows of its node: who it is, where it answers, and where its archive is.

    Args:
        name: the node's name in the stack.
        target: the target the node came from.
        host, port, user, ssh_private_key_file: how to reach it.
        host_key: the pinned public key, `ssh-ed25519 AAAA...`.
        machine_id: its /etc/machine-id.
        store_url: s3:// URL that the nodes' archives are below.
        store_endpoint: endpoint of the store; empty means Amazon S3.
        store_region: region of the bucket.
        workspace: directory tree whose size is told when no evacuation has said what the node holds.
        deadline: until when the node lives by itself, RFC 3339; empty where nobody knows. It is told, and is no part
            of who the node is.
    """

    name: str
    target: str
    host: str
    port: int
    user: str
    ssh_private_key_file: str
    host_key: str
    machine_id: str
    store_url: str
    store_endpoint: str
    store_region: str
    workspace: str
    deadline: str = field(default="", compare=False)

    @classmethod
    def from_properties(cls, properties: Mapping[str, Any]) -> GuardedNode:
        """Reads a guard's properties as a stack's state has them.

        Raises:
            BadInput: one is missing or empty, so that nothing can be said about the node.
        """
        # A guard that an earlier version made knows no deadline.
        values: dict[str, Any] = {one.name: properties.get(one.name) for one in fields(cls)}
        empty = [name for name, value in values.items() if value in (None, "") and name not in _MAY_BE_EMPTY]
        if empty:
            raise BadInput(str(properties.get("name", "guard")), f"the guard's record lacks {', '.join(empty)}")
        return cls(**{**values, "port": int(values["port"] or 0), "deadline": values["deadline"] or ""})

    def to_properties(self) -> dict[str, Any]:
        return asdict(self)

    @property
    def archive_url(self) -> str:
        return f"{self.store_url}/{self.name}"

    def connect_store(self) -> Store:
        location = StoreLocation.parse(self.archive_url)
        return Store(location, endpoint_url=self.store_endpoint or None, region=self.store_region)

    def ssh_target(self) -> SshTarget:
        return SshTarget(self.name, self.host, self.port, self.user, self.host_key, self.ssh_private_key_file)


class TeardownRefused(NotSafe):
    """The node must not be deleted; each of `reasons` says why.

    Args:
        node: the node asked about.
        reasons: every reason found.
        at_stake: what a deletion would lose, in words; empty when the node could not be asked.
    """

    def __init__(self, node: GuardedNode, reasons: Sequence[DecampError | Finding], at_stake: str) -> None:
        self.node = node
        self.reasons = tuple(reasons)
        self.at_stake = at_stake
        super().__init__(node.name, _tell_refusal(node, reasons, at_stake))


@dataclass(frozen=True)
class Agreement:
    """Why a node may be deleted: `proven` by its archive, or `abandoned` by a person; `detail` in words."""

    kind: str
    detail: str


class OtherStore(NotSafe):
    """The archive looked at is not the node's."""


class OtherNode(NotSafe):
    """The receipt, or what answers, is another machine's."""


class ChangedSince(NotSafe):
    """The node's workspace is not what was evacuated."""


class BrokenCensus(NotSafe):
    """The node answers but cannot count its workspace."""


def examine(node: GuardedNode) -> Agreement:
    """Returns why the node may be deleted, or raises TeardownRefused with every reason against it. Changes nothing.

    The archive is checked first and the node counted last, so that nothing slow lies between the count and the answer.
    """
    reasons: list[DecampError | Finding] = []
    # A record that no longer holds is no reason against a node whose archive does; it explains a refusal.
    outdated: list[DecampError] = []
    receipt: Receipt | None = None
    try:
        _check_surroundings(node)
        store = node.connect_store()
        try:
            record = abandonment.find_record(store, node.name, node.host_key, node.machine_id)
            if record is not None:
                return Agreement("abandoned", f"abandoned by {record.who} at {record.at}: {record.reason}")
        except (abandonment.Outdated, DamagedArchive) as error:
            outdated.append(error)
        receipt = read_receipt(store)
        reasons += _check_receipt(node, receipt)
        reasons += list(verify_bag(store).findings)
    except DecampError as error:
        reasons.append(error)
    at_stake = ""
    try:
        reasons += _check_node(node, receipt)
    except DecampError as error:
        reasons.append(error)
    if not reasons and receipt is not None:
        return Agreement("proven", f"evacuated at {receipt.finished_at}, archive {node.archive_url} holds")
    if not any(isinstance(reason, NodeSilent) for reason in reasons):
        at_stake = _tell_size(node)
    raise TeardownRefused(node, [*reasons, *outdated], at_stake)


def read_machine_id(target: SshTarget, wait_s: float = 60.0) -> str:
    """Returns the node's machine id, asked over SSH with its key pinned; waits for a node that is still starting.

    Raises:
        NodeSilent: no answer within `wait_s` seconds.
        OtherHostKey: another machine answers at the address.
        LoginRefused: the operator's key does not open it.
        BrokenCensus: it has no machine id (machine-id(5): 32 hexadecimal digits).
    """
    deadline = time.monotonic() + wait_s
    while True:
        try:
            told = run_remote(target, "cat /etc/machine-id", 30.0).stdout.strip()
            break
        except NodeSilent:
            if time.monotonic() >= deadline:
                raise
            time.sleep(2)
    if not re.fullmatch(r"[0-9a-f]{32}", told):
        raise BrokenCensus(target.name, "no machine id", expected="32 hexadecimal digits", found=repr(told))
    return told


def _check_surroundings(node: GuardedNode) -> None:
    # boto3 would follow these to another store than the one the node's archive is in.
    for variable in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"):
        if not node.store_endpoint and os.environ.get(variable):
            raise OtherStore(
                variable,
                "would lead to another store than the stack's",
                expected="it not set",
                found=os.environ[variable],
                run=f"unset {variable}",
            )


def _check_receipt(node: GuardedNode, receipt: Receipt) -> list[DecampError]:
    where = f"{node.archive_url}/decamp/receipt.json"
    reasons: list[DecampError] = []
    if _bare(node.host_key) not in [_bare(key) for key in receipt.host_keys]:
        found = ", ".join(receipt.host_keys) or "none"
        reasons.append(OtherNode(where, "the receipt has another host key", expected=node.host_key, found=found))
    if receipt.machine_id != node.machine_id:
        reasons.append(
            OtherNode(where, "the receipt has another machine id", expected=node.machine_id, found=receipt.machine_id)
        )
    return reasons


def _check_node(node: GuardedNode, receipt: Receipt | None) -> list[DecampError]:
    census = _take_census(node)
    reasons: list[DecampError] = []
    host_keys = [_bare(str(key)) for key in census["host_keys"]]
    if census["machine_id"] != node.machine_id:
        found = str(census["machine_id"])
        reasons.append(OtherNode(node.name, "another machine id", expected=node.machine_id, found=found))
    if _bare(node.host_key) not in host_keys:
        found = ", ".join(host_keys) or "none"
        reasons.append(OtherNode(node.name, "the machine has another host key", expected=node.host_key, found=found))
    for writer in census["writers"][:SHOWN_FINDINGS]:
        what = f"open for writing by {writer.get('command')} (pid {writer.get('pid')})"
        reasons.append(ChangedSince(f"{node.name}:{writer.get('path')}", what, expected="no writer"))
    reasons += [
        ChangedSince(f"{node.name}:{finding.get('path')}", str(finding.get("what")))
        for finding in census["findings"][:SHOWN_FINDINGS]
    ]
    # A node signs with its Ed25519 key; where another type is pinned, the node itself has just shown which that is.
    signers = [_bare(node.host_key)] if node.host_key.startswith("ssh-ed25519 ") else host_keys
    if receipt is not None and not any(receipt.is_signed_by(key) for key in signers):
        reasons.append(
            OtherNode(
                f"{node.archive_url}/decamp/receipt.json",
                "the receipt is not signed by the node",
                expected="the signature of its SSH host key, which an evacuation as root gives",
            )
        )
    if receipt is not None and census["census_sha256"] != receipt.census_sha256:
        reasons.append(
            ChangedSince(
                node.name,
                f"the workspace has changed since it was evacuated at {receipt.finished_at}",
                expected=f"census {receipt.census_sha256[:16]}",
                found=f"{str(census['census_sha256'])[:16]}, {census['entries']} entries now",
            )
        )
    return reasons


def _take_census(node: GuardedNode) -> dict[str, Any]:
    command = f"{NODE_COMMAND} census {SPEC_FILE} --json"
    ended = run_remote(node.ssh_target(), command, CENSUS_TIMEOUT_S)
    if ended.exit_status == _NO_SUCH_COMMAND:
        raise BrokenCensus(node.name, "decamp is not on the node, so nothing of it was ever evacuated")
    try:
        census = json.loads(ended.stdout)
    except ValueError:
        census = None
    if not isinstance(census, dict) or not _is_census(census):
        said = " ".join((ended.stderr or ended.stdout).split())[-300:]
        raise BrokenCensus(
            node.name,
            f"the workspace cannot be counted ({command} ended with {ended.exit_status})",
            expected="a census",
            found=said or "nothing",
        )
    return census


def _is_census(census: Mapping[str, Any]) -> bool:
    kinds = {"machine_id": str, "host_keys": list, "census_sha256": str, "entries": int, "findings": list}
    known = all(isinstance(census.get(key), kind) for key, kind in kinds.items())
    rows = [*(census.get("findings") or []), *(census.get("writers") or [])]
    return known and isinstance(census.get("writers"), list) and all(isinstance(row, dict) for row in rows)


def _tell_size(node: GuardedNode) -> str:
    """How many files and bytes the workspace has, by the node's own find; empty when it cannot tell."""
    # The node may never have been evacuated: there is no spec and no decamp on it then, but there is find.
    command = f"timeout 100 find {shlex.quote(node.workspace)} -xdev -type f -printf '%s\\n' 2>/dev/null"
    command += " | awk '{ files += 1; bytes += $1 } END { printf \"%d %.0f\\n\", files, bytes }'"
    try:
        ended: SshResult = run_remote(node.ssh_target(), command, SIZE_TIMEOUT_S)
        files, _, size_bytes = ended.stdout.strip().partition(" ")
        return f"{int(files):,} files, {int(size_bytes) / 1e6:,.1f} MB below {node.workspace}"
    except (DecampError, ValueError):
        return ""


def _tell_refusal(node: GuardedNode, reasons: Sequence[DecampError | Finding], at_stake: str) -> str:
    lines = [f"not deleted, nothing was changed: {len(reasons)} reason{'s' if len(reasons) != 1 else ''}"]
    lines += [f"  {number}. {reason}" for number, reason in enumerate(reasons, 1)]
    silent = any(isinstance(reason, NodeSilent) for reason in reasons)
    if at_stake:
        lines.append(f"would be lost: {at_stake}")
    elif silent:
        lines.append(f"would be lost: whatever {node.name} holds; it does not say")
    if node.deadline:
        lines.append(f"time: {deadline_words(node.deadline)}")
    if silent:
        lines.append("if it can be brought back, bring it back (a rehearsal's host: pulumi up) and evacuate it")
    else:
        lines.append(f"run: ansible-playbook playbooks/evacuate.yml --limit {node.name}")
    lines.append(f'or give up what it holds: decamp abandon {node.name} --reason "..."')
    return "\n".join(lines)


def _bare(key: str) -> str:
    return " ".join(key.split()[:2])
