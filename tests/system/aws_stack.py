"""A stack of the target aws for a test: the real engine and SDK, the stand-in provider, AWS played on loopback."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from botocore.exceptions import ClientError

from decamp.rehearsal import host
from decamp.ssh import SshResult, SshTarget, run_remote
from tests.aws_provider.cloud import Cloud, Server
from tests.system.machines import StoreAccess
from tests.system.pulumi_project import CHECKOUT, PulumiProject

STACK = "rented-gpu"
PROVIDER_DIRECTORY = CHECKOUT / "tests" / "aws_provider" / "bin"
BUCKET = "decamp-archives-of-a-test"
NODE = "gpu-1"


class AwsStack(PulumiProject):
    """A stack of the target aws.

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
        self.cloud, self.hosts = cloud, directory / "hosts"
        environment = {
            **cloud.environment(),
            "PATH": f"{PROVIDER_DIRECTORY}:{os.environ['PATH']}",
            **({"DECAMP_STAND_IN_HOSTS": str(self.hosts)} if with_hosts else {}),
            **(variables or {}),
        }
        super().__init__(directory, STACK, environment)
        self.store_endpoint = store_endpoint or cloud.url
        self.key = host.generate_key_pair(directory / "operator_ed25519")
        self.configure()
        self.init()

    def configure(self, aws: Mapping[str, Any] | None = None, **settings: Any) -> None:
        """Writes the stack's configuration; `aws` changes keys of `decamp:aws`, a value of None leaves a key out."""
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
        self.write_config({key: value for key, value in values.items() if value is not None})

    def resources(self) -> dict[str, dict[str, Any]]:
        """Every resource in the state, by its name."""
        return {resource["urn"].rsplit("::", 1)[-1]: resource for resource in self.held()}

    def outputs(self) -> dict[str, Any]:
        (stack,) = [resource for resource in self.held() if resource["type"] == "pulumi:pulumi:Stack"]
        outputs: dict[str, Any] = stack["outputs"]
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


@contextmanager
def played_stack(directory: Path, cloud: Cloud, **options: Any) -> Iterator[AwsStack]:
    """A stack on an AWS of its own, with the options of AwsStack; gone afterwards, and its hosts with it."""
    server = Server(cloud)
    made = AwsStack(directory / f"aws-{secrets.token_hex(4)}", cloud, **options)
    try:
        yield made
    finally:
        made.remove()
        server.stop()


@contextmanager
def hosted_stack(directory: Path, cloud: Cloud, store_process: Any, **variables: str) -> Iterator[AwsStack]:
    """A stack whose instances are booted hosts and whose archives lie on the session's real S3 server."""
    store, access_key, secret_key = store_process
    keys = {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key}
    told = {**keys, "DECAMP_STAND_IN_S3_URL": store.endpoint_url, **variables}
    options = {"with_hosts": True, "store_endpoint": store.endpoint_url, "variables": told}
    try:
        with played_stack(directory, cloud, **options) as made:
            yield made
    finally:
        with contextlib.suppress(ClientError):  # an up that failed has made none
            StoreAccess(store, BUCKET, access_key, secret_key).connect().delete_bucket(Bucket=BUCKET)
