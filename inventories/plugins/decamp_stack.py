"""The inventory is the stack's outputs, read anew for each run, with each node's SSH host key pinned; else an error.

The host keys go into a known_hosts file that this run alone uses, so neither the user's file nor an old entry counts.
Connections of another run are not reused: they were checked against that run's keys.
"""

from __future__ import annotations

import atexit
import os
import shutil
import sys
import tempfile
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleParserError
from ansible.plugins.inventory import BaseInventoryPlugin

DOCUMENTATION = r"""
name: decamp_stack
short_description: Nodes of a Decamp stack
description:
  - Reads the outputs of the Pulumi stack named by O(stack), else by E(DECAMP_STACK), else of the selected one.
  - Every node gets the variables C(stack_node); all get C(stack_name), C(stack_target), C(stack_store) and
    C(stack_nodes), and are in a group named as the target.
author: Decamp
options:
  plugin:
    description: Must be V(decamp_stack).
    required: true
    choices: [decamp_stack]
  stack:
    description: Name of the stack; empty for the selected one.
    type: str
    default: ""
    env:
      - name: DECAMP_STACK
"""

CHECKOUT = Path(__file__).resolve().parents[2]


def known_hosts_line(host: str, port: int, host_key: str) -> str:
    """Returns a line of sshd(8)'s known_hosts format; a port other than 22 is written as `[host]:port`."""
    return f"{host if port == 22 else f'[{host}]:{port}'} {host_key}\n"


def make_run_directory() -> Path:
    """Returns a private directory that is removed when the process that made it ends."""
    directory = Path(tempfile.mkdtemp(prefix="decamp-ssh-"))
    owner = os.getpid()

    def remove() -> None:
        if os.getpid() == owner:  # Ansible's workers are forks: they must not take it from the others
            shutil.rmtree(directory, ignore_errors=True)

    atexit.register(remove)
    return directory


class InventoryModule(BaseInventoryPlugin):  # type: ignore[misc]
    NAME = "decamp_stack"

    def verify_file(self, path: str) -> bool:
        return bool(super().verify_file(path)) and path.endswith(".decamp")

    def parse(self, inventory: Any, loader: Any, path: str, cache: bool = True) -> None:
        super().parse(inventory, loader, path, cache)
        self._read_config_data(path)
        sys.path.insert(0, str(CHECKOUT))
        try:
            from decamp.errors import DecampError
            from decamp.stack import read_outputs
        finally:
            sys.path.pop(0)
        stack = str(self.get_option("stack") or "")
        try:
            outputs = read_outputs(stack or None)
        except DecampError as error:
            raise AnsibleParserError(str(error)) from None
        nodes = [vars(node) for node in outputs.nodes]
        unpinned = [node["name"] for node in nodes if not node["host_key"].strip()]
        if unpinned:
            raise AnsibleParserError(
                f"{', '.join(unpinned)}: no SSH host key in the stack's outputs: expected `ssh-ed25519 AAAA...`, found "
                "none; run: set decamp:nodes host_key to what the provider's console or the host itself shows"
            )
        directory = make_run_directory()
        known_hosts = directory / "known_hosts"
        known_hosts.write_text(
            "".join(known_hosts_line(node["host"], int(node["port"]), node["host_key"]) for node in nodes)
        )
        self.inventory.add_group(outputs.target)
        common = {
            "stack_name": stack or "the selected stack",
            "stack_target": outputs.target,
            "stack_store": vars(outputs.store),
            "stack_nodes": sorted(node["name"] for node in nodes),
        }
        for name, value in common.items():
            self.inventory.set_variable("all", name, value)
        for node in nodes:
            self.inventory.add_host(node["name"], group=outputs.target)
            settings = {
                "ansible_host": node["host"],
                "ansible_port": int(node["port"]),
                "ansible_user": node["user"],
                "ansible_ssh_private_key_file": outputs.ssh_private_key_file,
                "ansible_ssh_common_args": f"-o UserKnownHostsFile={known_hosts} -o GlobalKnownHostsFile=/dev/null "
                "-o StrictHostKeyChecking=yes -o IdentitiesOnly=yes",
                "ansible_control_path": f"{directory}/%%C",
                "stack_node": node,
            }
            for name, value in settings.items():
                self.inventory.set_variable(node["name"], name, value)
