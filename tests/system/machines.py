"""A booted host and a bucket of a real store as tests see them: what to connect with and a way to run a command."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from decamp.rehearsal import host as booted_host
from decamp.rehearsal import store_server

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client


@dataclass(frozen=True)
class Machine:
    """A rehearsal host with the keys to enter it; `known_hosts` pins its host key."""

    host: booted_host.Host
    private_key: Path
    host_key_pair: Path
    known_hosts: Path

    def ssh_command(self, *options: str) -> list[str]:
        """Returns the ssh command that logs in, refusing any other host key than the pinned one."""
        pinned = [f"UserKnownHostsFile={self.known_hosts}", "GlobalKnownHostsFile=/dev/null"]
        settings = ["BatchMode=yes", "IdentitiesOnly=yes", "ConnectTimeout=10", "StrictHostKeyChecking=yes", *pinned]
        login = [part for setting in settings for part in ("-o", setting)]
        return ["ssh", "-F", "none", "-i", str(self.private_key), *login, *options, f"root@{self.host.address}"]

    def run(
        self, command: str, *, check: bool = True, timeout_s: float = 60, given: str | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Runs a shell command on the host; a non-zero exit fails the test, with what it wrote, unless check is off."""
        ended = subprocess.run(
            [*self.ssh_command(), command], input=given, capture_output=True, text=True, timeout=timeout_s, check=False
        )
        assert not check or ended.returncode == 0, f"{command}: exit {ended.returncode}\n{ended.stdout}{ended.stderr}"
        return ended

    def start(self) -> booted_host.Host:
        """Boots the host again, as it was."""
        mine = self.host
        authorized = booted_host.read_public_key(self.private_key)
        return booted_host.start(
            mine.name, mine.directory, mine.address, self.host_key_pair, authorized, mine.machine_id
        )


@dataclass(frozen=True)
class StoreAccess:
    """A bucket of its own on the real store server, and what opens it."""

    server: store_server.StoreServer
    bucket: str
    access_key: str
    secret_key: str
    region: str = "us-east-1"

    @property
    def endpoint_url(self) -> str:
        return self.server.endpoint_url

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}"

    @property
    def environment(self) -> dict[str, str]:
        """The variables by which boto3's usual chain finds the store."""
        return {
            "AWS_ACCESS_KEY_ID": self.access_key,
            "AWS_SECRET_ACCESS_KEY": self.secret_key,
            "AWS_DEFAULT_REGION": self.region,
            "AWS_ENDPOINT_URL": self.endpoint_url,
        }

    def connect(self) -> S3Client:
        """Returns a boto3 client with exactly these keys."""
        import boto3

        client: S3Client = boto3.client(
            "s3",
            endpoint_url=self.endpoint_url,
            aws_access_key_id=self.access_key,
            aws_secret_access_key=self.secret_key,
            region_name=self.region,
        )
        return client


def make_machine(directory: Path, name: str, address: str) -> Machine:
    """Boots a host of its own below `directory`, with new keys and a new machine id."""
    private_key = booted_host.generate_key_pair(directory / "operator_ed25519")
    host_key_pair = booted_host.generate_key_pair(directory / "host_ed25519")
    authorized = booted_host.read_public_key(private_key)
    booted = booted_host.start(
        name, directory / "host", address, host_key_pair, authorized, booted_host.new_machine_id()
    )
    known_hosts = directory / "known_hosts"
    known_hosts.write_text(f"{address} {booted.host_key}\n", encoding="ascii")
    return Machine(booted, private_key, host_key_pair, known_hosts)
