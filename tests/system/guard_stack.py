"""A real stack of its own for a test: the real engine, booted hosts, a real S3 server, all below one directory."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3

from decamp.bundle import build_bundle
from decamp.rehearsal import addresses, host, store_server
from decamp.rehearsal.credentials import FILE_NAME, read_variables
from decamp.ssh import SshResult, SshTarget, make_command, run_remote
from tests.system.pulumi_project import CHECKOUT, PulumiProject

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

STACK = "guarded"
UNGUARDED_PROGRAM = """
import sys
sys.path.insert(0, {checkout!r})
import pulumi
from pulumi.runtime.config import CONFIG
from infra.config import parse_config
from infra.nodes import declare_nodes
from infra.store import Store
config = parse_config(pulumi.get_stack(), CONFIG.get())
store = Store(config)
if {with_nodes}:
    declare_nodes(config, store)
"""
NODE_LOCK = CHECKOUT / "requirements" / "node.txt"


class GuardStack(PulumiProject):
    """A stack of the rehearsal's target, with its own store and hosts.

    Args:
        directory: everything lies below it.
        node_names: nodes of the first configuration.
    """

    def __init__(self, directory: Path, node_names: Sequence[str]) -> None:
        super().__init__(directory, STACK, {})
        self.rehearsal = directory / "rehearsal"
        self.store_port = addresses.find_free_ports(1)[0]
        self.store_url = "s3://guarded-archives"
        self.addresses = {name: addresses.find_free_address() for name in node_names}
        self.configure()
        self.init()

    def use_unguarded_program(self, with_nodes: bool) -> None:
        """Makes the engine run a program that declares no guard, and no node either unless told to."""
        program = self.project / "unguarded"
        program.mkdir(exist_ok=True)
        (program / "__main__.py").write_text(UNGUARDED_PROGRAM.format(checkout=str(CHECKOUT), with_nodes=with_nodes))
        self.use_program("unguarded")

    def configure(self, nodes: Mapping[str, str] | None = None, **settings: Any) -> None:
        """Writes the stack's configuration; `nodes` maps names to addresses."""
        self.write_config(
            {
                "target": "rehearsal",
                "nodes": [{"name": name, "host": address} for name, address in (nodes or self.addresses).items()],
                "store": {"url": self.store_url},
                "rehearsal": {"directory": str(self.rehearsal), "store_port": self.store_port},
                **settings,
            }
        )

    def credentials(self) -> dict[str, str]:
        held = read_variables(self.rehearsal / FILE_NAME)
        return {key: value for key, value in held.items() if key != "AWS_ENDPOINT_URL"}

    def resources(self) -> dict[str, str]:
        """Every resource in the state, by URN, with its id."""
        return {resource["urn"]: resource.get("id", "") for resource in self.held()}

    def urn(self, name: str) -> str:
        """The URN of the resource with this name."""
        (found,) = [urn for urn in self.resources() if urn.endswith(f"::{name}")]
        return found

    def host_directory(self, node: str) -> Path:
        return self.rehearsal / "nodes" / node

    def target(self, node: str) -> SshTarget:
        """How to reach a node of the state, with its key pinned."""
        there = host.status(self.host_directory(node))
        assert there is not None
        key_file = str(self.rehearsal / "ssh" / "operator_ed25519")
        return SshTarget(node, there.address, there.port, "root", there.host_key, key_file)

    def on_node(self, node: str, command: str) -> SshResult:
        """Runs a shell command on a node; it must succeed."""
        ended = run_remote(self.target(node), command, 120)
        assert ended.exit_status == 0, f"{command}: {ended.stdout}{ended.stderr}"
        return ended

    def boot_id(self, node: str) -> str:
        """What changes when the node is booted again or is another one."""
        return self.on_node(node, "cat /etc/machine-id /etc/ssh/ssh_host_ed25519_key.pub; stat -c %i /workspace").stdout

    def fill_workspace(self, node: str) -> None:
        """Gives a node work that no other place has, and the spec that says so."""
        spec = "root: /workspace\\ndefault_tier: irreplaceable\\n"
        files = "mkdir -p /workspace/shards /etc/decamp && echo progress > /workspace/PROGRESS.md"
        files += " && for n in 1 2 3; do echo '{\"completion\": '$n'}' > /workspace/shards/$n.jsonl; done"
        self.on_node(node, f"{files} && printf '{spec}' > /etc/decamp/spec.yml")

    def install_decamp(self, node: str) -> None:
        """Installs this checkout's decamp on a node, as the evacuation role does."""
        bundle = build_bundle("decamp", NODE_LOCK, "3.11", os.uname().machine, with_decamp=True)
        target = self.target(node)
        known_hosts = self.directory / "known_hosts"
        known_hosts.write_text(f"{target.name} {target.host_key}\n")
        remote = f"/root/{bundle.path.name}"
        with bundle.path.open("rb") as content:
            subprocess.run(
                [*make_command(target, known_hosts), f"cat > {remote}"], stdin=content, check=True, timeout=120
            )
        install = f"python3 {remote} /opt/decamp/test && rm {remote}"
        self.on_node(node, f"{install} && ln -sf /opt/decamp/test/bin/decamp /usr/local/bin/decamp")

    def evacuate(self, node: str) -> None:
        """Evacuates a node for real, keys in the environment of this one command alone."""
        keys = " ".join(f"{name}={value}" for name, value in self.credentials().items())
        endpoint = f"http://127.0.0.1:{self.store_port}"
        command = f"/usr/local/bin/decamp evacuate /etc/decamp/spec.yml --store {self.store_url}/{node}"
        self.on_node(node, f"{keys} {command} --endpoint-url {endpoint} --json")

    def restart_sshd(self, node: str) -> None:
        """Has sshd read its keys again; asked from outside, as a console would."""
        there = host.status(self.host_directory(node))
        assert there is not None
        for process in host.find_processes(self.host_directory(node)):
            if Path(f"/proc/{process}/comm").read_text().strip() == "sshd":
                os.kill(process, signal.SIGHUP)

    def connect_store(self) -> S3Client:
        """A client of the stack's store with its keys."""
        keys = self.credentials()
        client: S3Client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{self.store_port}",
            region_name="us-east-1",
            aws_access_key_id=keys["AWS_ACCESS_KEY_ID"],
            aws_secret_access_key=keys["AWS_SECRET_ACCESS_KEY"],
        )
        return client

    def remove(self) -> None:
        """Ends and removes everything the stack has made, whatever state a test has left it in."""
        for directory in (self.rehearsal / "nodes").glob("*"):
            host.destroy(directory)
        store_server.destroy(self.rehearsal / "store")
        shutil.rmtree(self.directory)
