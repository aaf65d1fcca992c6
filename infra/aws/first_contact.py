"""The first contact with an instance is pinned, gives it the host key it keeps, and marks it as possibly at work."""

from __future__ import annotations

import shlex
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, UpdateResult

from decamp.aws.account import Account, translated
from decamp.aws.tags import CONTACTED
from decamp.errors import NotSafe
from decamp.ssh import LoginRefused, NodeSilent, OtherHostKey, SshTarget, make_command, run_remote
from decamp.teardown import read_machine_id
from infra.aws.host_keys import HostKey, derive_first_key, derive_kept_key
from infra.dynamic import NamedProvider, diff_inputs

# A p6-b200 has 2 TiB of memory to test before its firmware starts an operating system.
START_TIMEOUT_S = 1800.0
POLL_S = 5.0
KEY_FILE = "/etc/ssh/ssh_host_ed25519_key"
_ENDED = ("shutting-down", "terminated", "stopped", "stopping")
_IDENTITY = ("instance_id", "seed")
_SETTINGS = ("name", "host", "port", "user", "ssh_private_key_file", "region", "profile")


class InstanceEnded(NotSafe):
    """The instance ended before anybody could log in."""


class HostKeyRefused(NotSafe):
    """The node did not take the host key it was given."""


class FirstContactProvider(NamedProvider):
    """A started instance becomes a node: reachable, with its own host key, and known by its machine id."""

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        return diff_inputs(_olds, _news, identity=_IDENTITY, settings=_SETTINGS)

    def create(self, props: dict[str, Any]) -> CreateResult:
        """Waits for the instance, at most half an hour.

        Raises:
            InstanceEnded: it ended, with EC2's reason.
            NodeSilent: it never answered.
            OtherHostKey: something else answers at its address.
            HostKeyRefused: the key could not be put on it.
        """
        kept = derive_kept_key(props["seed"], props["instance_id"])
        target = _login(props, kept)
        account = Account(props["region"], props["profile"])
        if not _wait(account, props, kept):
            _give_key(_login(props, derive_first_key(props["seed"])), kept)
        machine_id = read_machine_id(target)
        with translated(f"{props['name']} ({props['instance_id']})"):
            account.ec2.create_tags(Resources=[props["instance_id"]], Tags=[{"Key": CONTACTED, "Value": machine_id}])
        outs = {
            **{key: props[key] for key in (*_IDENTITY, *_SETTINGS)},
            "host_key": kept.public,
            "machine_id": machine_id,
        }
        return CreateResult(props["instance_id"], outs)

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        known = {key: _olds[key] for key in ("host_key", "machine_id")}
        return UpdateResult({**{key: _news[key] for key in (*_IDENTITY, *_SETTINGS)}, **known})

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """Says that the contact was made, whatever has become of the instance: the guard rests on it."""
        return ReadResult(id_, props)

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Nothing is undone on the node, which is about to go."""


def _login(props: dict[str, Any], key: HostKey) -> SshTarget:
    return SshTarget(
        props["name"], props["host"], int(props["port"]), props["user"], key.public, props["ssh_private_key_file"]
    )


def _wait(account: Account, props: dict[str, Any], kept: HostKey) -> bool:
    """Waits for a login; returns whether the node has its kept key already, from an earlier try."""
    deadline = time.monotonic() + START_TIMEOUT_S
    logins = (_login(props, derive_first_key(props["seed"])), _login(props, kept))
    while True:
        failures = []
        for number, target in enumerate(logins):
            try:
                if run_remote(target, "true", 30.0).exit_status == 0:
                    return number == 1
            except (NodeSilent, OtherHostKey, LoginRefused) as failure:
                failures.append(failure)
        # Before cloud-init has run, sshd shows a key of the image's and lets nobody in: only time tells.
        if time.monotonic() >= deadline:
            raise failures[0] if failures else NodeSilent(props["name"], "no login")
        _refuse_ended(account, props)
        time.sleep(POLL_S)


def _refuse_ended(account: Account, props: dict[str, Any]) -> None:
    with translated(props["instance_id"]):
        told = account.ec2.describe_instances(InstanceIds=[props["instance_id"]])["Reservations"]
    for instance in (one for reservation in told for one in reservation["Instances"]):
        state = instance["State"]["Name"]
        if state in _ENDED:
            raise InstanceEnded(
                f"{props['name']} ({props['instance_id']})",
                "ended before the first login",
                expected="running",
                found=f"{state}, {instance.get('StateReason', {}).get('Message', 'no reason given')}",
                run="pulumi refresh  # then pulumi up",
            )


def _give_key(target: SshTarget, kept: HostKey) -> None:
    # The private key goes through standard input: an argument could be read by anybody on the node.
    quoted = shlex.quote(KEY_FILE)
    script = (
        f"set -eu; umask 077; cat > {quoted}.new; ssh-keygen -y -f {quoted}.new > {quoted}.pub.new; "
        f"chmod 644 {quoted}.pub.new; sync; mv {quoted}.pub.new {quoted}.pub; mv {quoted}.new {quoted}; "
        "if command -v systemctl >/dev/null; then "
        "systemctl restart ssh.service 2>/dev/null || systemctl restart sshd.service; fi"
    )
    command = f"sudo -n sh -c {shlex.quote(script)}" if target.user != "root" else script
    with tempfile.TemporaryDirectory(prefix="decamp-ssh-") as directory:
        known_hosts = Path(directory) / "known_hosts"
        known_hosts.write_text(f"{target.name} {target.host_key}\n", encoding="ascii")
        try:
            ended = subprocess.run(
                [*make_command(target, known_hosts), command],
                input=kept.private,
                capture_output=True,
                text=True,
                timeout=120,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise HostKeyRefused(target.name, "took no host key within 120 s") from None
    if ended.returncode != 0:
        said = " ".join(ended.stderr.split())[-300:]
        raise HostKeyRefused(target.name, f"took no host key (exit {ended.returncode})", found=said, run="pulumi up")


class FirstContact(Resource, module="decamp", name="AwsFirstContact"):
    """The first contact as a resource."""

    host_key: pulumi.Output[str]
    machine_id: pulumi.Output[str]

    def __init__(self, name: str, properties: dict[str, Any], options: pulumi.ResourceOptions) -> None:
        unknown = {"host_key": None, "machine_id": None}
        super().__init__(FirstContactProvider(), name, {**properties, **unknown}, options)
