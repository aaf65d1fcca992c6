"""A command runs on a node only after the node has shown the pinned host key; any other answer is a typed error."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from decamp.errors import BadInput, NotSafe

CONNECT_TIMEOUT_S = 10
# ssh(1): 255 is ssh's own failure; anything else is the remote command's exit status.
_SSH_FAILED = 255
# What ssh says when the key differs from the pinned one, or is of a type that is not pinned.
_OTHER_KEY = ("Host key verification failed", "REMOTE HOST IDENTIFICATION", "no matching host key type")


@dataclass(frozen=True)
class SshTarget:
    """Where a node answers and which host key it must show.

    Args:
        name: the node's name, for messages.
        host: address or host's name.
        port: sshd's port.
        user: login name.
        host_key: the pinned public key, `ssh-ed25519 AAAA...`.
        private_key_file: key of the operator that opens the node.
    """

    name: str
    host: str
    port: int
    user: str
    host_key: str
    private_key_file: str


@dataclass(frozen=True)
class SshResult:
    """What a remote command gave back."""

    exit_status: int
    stdout: str
    stderr: str


class NodeSilent(NotSafe):
    """The node did not answer."""


class OtherHostKey(NotSafe):
    """Something answers at the node's address, but not with the node's host key."""


class LoginRefused(NotSafe):
    """The node shows its host key but does not let the operator in."""


def run_remote(target: SshTarget, command: str, timeout_s: float) -> SshResult:
    """Returns what the command gave back, whatever its exit status.

    Raises:
        BadInput: the operator's private key file is not there.
        OtherHostKey: the pinned key was not shown.
        LoginRefused: the key was shown, the login was not let in.
        NodeSilent: no answer, or none within `timeout_s`.
    """
    if not Path(target.private_key_file).is_file():
        raise BadInput(target.private_key_file, f"the key that opens {target.name} is not there")
    address = f"{target.host}:{target.port}"
    with _known_hosts(target) as known_hosts:
        try:
            ended = subprocess.run(
                [*make_command(target, known_hosts), command],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise NodeSilent(
                target.name, f"no answer from {address}", expected=f"one within {timeout_s:.0f} s"
            ) from None
    if ended.returncode == _SSH_FAILED:
        _raise_failure(target, address, ended.stderr)
    return SshResult(ended.returncode, ended.stdout, ended.stderr)


def make_command(target: SshTarget, known_hosts: Path) -> list[str]:
    """The ssh command that trusts the pinned key and nothing else."""
    options = {
        "BatchMode": "yes",
        "CheckHostIP": "no",
        "ConnectTimeout": str(CONNECT_TIMEOUT_S),
        "GlobalKnownHostsFile": "/dev/null",
        "HostKeyAlgorithms": _algorithms(target.host_key),
        "HostKeyAlias": target.name,
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "LogLevel": "ERROR",
        "ServerAliveCountMax": "3",
        "ServerAliveInterval": "10",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "UserKnownHostsFile": str(known_hosts),
    }
    # -F: a ControlPath in the user's own configuration could hand us a connection to another machine.
    command = ["ssh", "-F", "/dev/null", "-i", target.private_key_file, "-p", str(target.port), "-l", target.user]
    for name, value in options.items():
        command += ["-o", f"{name}={value}"]
    return [*command, "--", target.host]


def scan_host_key(host: str, port: int, kind: str = "ssh-ed25519") -> str:
    """The host key of this type that the address shows now; empty when it shows none. For messages, never for trust."""
    name = {"ssh-rsa": "rsa"}.get(kind, "ecdsa" if kind.startswith("ecdsa") else "ed25519")
    try:
        scanned = subprocess.run(
            ["ssh-keyscan", "-T", "5", "-t", name, "-p", str(port), host],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=15,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired:
        return ""
    for line in scanned.splitlines():
        fields = line.split()
        if not line.startswith("#") and len(fields) >= 3:
            return f"{fields[1]} {fields[2]}"
    return ""


def _algorithms(host_key: str) -> str:
    kind = host_key.split(" ")[0]
    return "rsa-sha2-512,rsa-sha2-256" if kind == "ssh-rsa" else kind


@contextlib.contextmanager
def _known_hosts(target: SshTarget) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="decamp-ssh-") as directory:
        path = Path(directory) / "known_hosts"
        path.write_text(f"{target.name} {target.host_key}\n", encoding="ascii")
        yield path


def _raise_failure(target: SshTarget, address: str, stderr: str) -> None:
    said = " ".join(stderr.split())
    if any(sign in stderr for sign in _OTHER_KEY):
        raise OtherHostKey(
            target.name,
            f"another host key at {address}, so another machine answers there",
            expected=target.host_key,
            found=scan_host_key(target.host, target.port, target.host_key.split(" ")[0]) or said,
        )
    if "Permission denied" in stderr:
        raise LoginRefused(
            target.name,
            f"{target.user}@{address} does not let this key in",
            expected=f"a login with {target.private_key_file}",
            found=said,
        )
    raise NodeSilent(target.name, f"no answer from {address}", expected="an SSH login", found=said or "nothing")
