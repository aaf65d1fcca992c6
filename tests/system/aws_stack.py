"""A stack of the target aws for a test: the real engine and SDK, the stand-in provider, AWS played on loopback."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from decamp.rehearsal import host
from decamp.ssh import SshResult, SshTarget, run_remote
from tests.aws_provider.cloud import Cloud
from tests.system.guard_stack import CHECKOUT, PULUMI, Outcome

STACK = "rented-gpu"
PULUMI_TIMEOUT_S = 300
PROVIDER_DIRECTORY = CHECKOUT / "tests" / "aws_provider" / "bin"
BUCKET = "decamp-archives-of-a-test"
NODE = "gpu-1"


class AwsStack:
    """A Pulumi project beside the checkout that runs the checkout's program on the target aws.

    Args:
        directory: everything lies below it.
        cloud: what plays AWS.
        with_hosts: an instance is a booted host of this machine.
        store_endpoint: the S3 server of the archives; the played AWS by default.
        variables: further environment of every command.
    """

    def __init__(
        self,
        directory: Path,
        cloud: Cloud,
        *,
        with_hosts: bool = False,
        store_endpoint: str = "",
        variables: Mapping[str, str] | None = None,
    ) -> None:
        self.directory, self.cloud = directory, cloud
        self.project, self.hosts = directory / "project", directory / "hosts"
        self.store_endpoint = store_endpoint or cloud.url
        self.project.mkdir(parents=True)
        (directory / "state").mkdir()
        (self.project / "infra").symlink_to(CHECKOUT / "infra")
        project = {"name": "decamp", "runtime": "python", "main": "infra/"}
        (self.project / "Pulumi.yaml").write_text(yaml.safe_dump(project))
        self.key = host.generate_key_pair(directory / "operator_ed25519")
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(("AWS_", "PULUMI_", "DECAMP_"))},
            **cloud.environment(),
            "PULUMI_BACKEND_URL": f"file://{directory / 'state'}",
            "PULUMI_CONFIG_PASSPHRASE": "of a test",
            "PULUMI_HOME": str(directory / "pulumi"),
            "PATH": f"{PROVIDER_DIRECTORY}:{os.environ['PATH']}",
            "NO_COLOR": "1",
            **({"DECAMP_STAND_IN_HOSTS": str(self.hosts)} if with_hosts else {}),
            **(variables or {}),
        }
        self.configure()
        created = self.pulumi("stack", "init", STACK)
        assert created.exit_code == 0, created.output

    def configure(self, aws: Mapping[str, Any] | None = None, **settings: Any) -> None:
        """Writes the stack's configuration; `aws` changes keys of `decamp:aws`, a value of None leaves a key out."""
        path = self.project / f"Pulumi.{STACK}.yaml"
        held = yaml.safe_load(path.read_text()) if path.exists() else {}
        of_aws = {
            "region": "us-east-1",
            "availability_zone": "us-east-1b",
            "owner": "somebody@example.org",
            "instance_type": "g6.xlarge",
            "purchase": {"option": "on_demand"},
            "network": {"ssh_from": ["127.0.0.0/8"]},
            **(aws or {}),
        }
        values = {
            "target": "aws",
            "nodes": [{"name": NODE}],
            "store": {"url": f"s3://{BUCKET}/rentals", "endpoint": self.store_endpoint},
            "ssh": {"private_key_file": str(self.key)},
            "deadline": "2099-01-01T00:00:00Z",
            "aws": {key: value for key, value in of_aws.items() if value is not None},
            **settings,
        }
        held["config"] = {f"decamp:{key}": value for key, value in values.items() if value is not None}
        path.write_text(yaml.safe_dump(held))

    def pulumi(self, *arguments: str, **variables: str) -> Outcome:
        return self.run([str(PULUMI), *arguments, "--non-interactive"], {**self.environment, **variables})

    def up(self, *arguments: str, **variables: str) -> Outcome:
        return self.pulumi("up", "--yes", "--skip-preview", *arguments, **variables)

    def preview(self, *arguments: str, **variables: str) -> Outcome:
        return self.pulumi("preview", *arguments, **variables)

    def destroy(self, *arguments: str) -> Outcome:
        return self.pulumi("destroy", "--yes", "--skip-preview", *arguments)

    def decamp(self, *arguments: str, stdin: str = "", **variables: str) -> Outcome:
        command = [str(CHECKOUT / ".venv" / "bin" / "decamp"), *arguments]
        return self.run(command, {**self.environment, **variables}, stdin)

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], stdin: str = "", directory: Path | None = None
    ) -> Outcome:
        ended = subprocess.run(
            command,
            cwd=directory or self.project,
            env=dict(environment),
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PULUMI_TIMEOUT_S,
            check=False,
        )
        return Outcome(ended.returncode, ended.stdout)

    def state_text(self) -> str:
        """The state as it lies on the disk, secrets encrypted."""
        return (self.directory / f"state/.pulumi/stacks/decamp/{STACK}.json").read_text()

    def resources(self) -> dict[str, dict[str, Any]]:
        """Every resource in the state, by its name."""
        held = json.loads(self.state_text())["checkpoint"]["latest"].get("resources") or []
        return {resource["urn"].rsplit("::", 1)[-1]: resource for resource in held}

    def outputs(self) -> dict[str, Any]:
        told = self.pulumi("stack", "output", "--json")
        assert told.exit_code == 0, told.output
        outputs: dict[str, Any] = json.loads(told.output)
        return outputs

    def instances(self) -> dict[str, str]:
        """State of every instance the played AWS knows, by its id."""
        told = self.cloud.connect("ec2").describe_instances()["Reservations"]
        return {one["InstanceId"]: one["State"]["Name"] for reservation in told for one in reservation["Instances"]}

    def target(self) -> SshTarget:
        (node,) = self.outputs()["nodes"]
        return SshTarget(node["name"], node["host"], node["port"], node["user"], node["host_key"], str(self.key))

    def on_node(self, command: str) -> SshResult:
        ended = run_remote(self.target(), command, 120)
        assert ended.exit_status == 0, f"{command}: {ended.stdout}{ended.stderr}"
        return ended

    def remove(self) -> None:
        """Ends every host, whatever state a test has left it in, and removes all files."""
        for directory in self.hosts.glob("*/host"):
            host.destroy(directory)
        shutil.rmtree(self.directory)
