"""A real S3 server (SeaweedFS) on loopback that outlives whoever started it and answers when `start` returns.

Objects stay in its directory from start to start. It takes space as objects come, sends nothing to anybody, and knows
one pair of keys.
"""

from __future__ import annotations

import http.client
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from decamp.errors import DecampError
from decamp.rehearsal import addresses, process

READY_TIMEOUT_S = 60.0
# An orderly end waits 15 s for idle clients. What was acknowledged is with the kernel by then and survives a SIGKILL.
SHUTDOWN_TIMEOUT_S = 3.0
START_ATTEMPTS = 3  # somebody may take one of its inner ports before it does
VOLUME_SIZE_MB = 512
READY_PATH = "/decamp/ready"
READY_CONTENT = b"this server keeps what it is given"
MAX_VOLUMES = 1000  # each bucket takes at least one; they cost no space until something is written


class StoreServerFailure(DecampError):
    """The rehearsal's S3 server could not be started or stopped."""


@dataclass(frozen=True)
class StoreServer:
    """A store server; `pid` is None while it does not run."""

    directory: Path
    host: str
    port: int
    pid: int | None = None

    @property
    def endpoint_url(self) -> str:
        return f"http://{self.host}:{self.port}"

    @property
    def running(self) -> bool:
        return self.pid is not None


def find_program() -> str:
    """Returns the path of `weed`, from this Python's environment or PATH."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    if not found:
        raise StoreServerFailure("weed", "the S3 server is not installed", run="make setup")
    return found


def answers(host: str, port: int) -> bool:
    """Says whether an S3 server answers there: it refuses an unsigned listing with 403."""
    connection = http.client.HTTPConnection(host, port, timeout=2)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status == http.HTTPStatus.FORBIDDEN
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def status(directory: Path) -> StoreServer | None:
    """Returns the server that lives in the directory, with `pid` while it runs; None if there is none."""
    try:
        saved = json.loads((directory / "server.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    running = process.find_running(directory / "weed.json")
    return StoreServer(directory, saved["host"], saved["port"], running.pid if running else None)


def write_private(path: Path, document: object) -> None:
    """Writes a JSON file only its owner can read, whole or not at all."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    with open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        json.dump(document, file, indent=1)
    partial.replace(path)


def make_identities(access_key: str, secret_key: str) -> dict[str, object]:
    """Returns SeaweedFS's list of who may do what: one administrator."""
    return {
        "identities": [
            {
                "name": "rehearsal",
                "credentials": [{"accessKey": access_key, "secretKey": secret_key}],
                "actions": ["Admin", "Read", "Write", "List", "Tagging"],
            }
        ]
    }


def serves_content(host: str, filer_port: int) -> bool:
    """Says whether content can be read: after a start, requests are answered before any volume is known again.

    A file of ours, outside the buckets, is written at the first start and read at each one after it.
    """
    connection = http.client.HTTPConnection(host, filer_port, timeout=5)
    try:
        connection.request("GET", READY_PATH)
        response = connection.getresponse()
        if response.status == http.HTTPStatus.OK and response.read() == READY_CONTENT:
            return True
        response.read()
        if response.status == http.HTTPStatus.NOT_FOUND:
            connection.request("PUT", READY_PATH, body=READY_CONTENT, headers={"Content-Type": "text/plain"})
            connection.getresponse().read()
        return False
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def make_command(host: str, port: int, filer: int) -> list[str]:
    """Returns the command that runs master, volume server, filer and S3 gateway in one process, on loopback alone."""
    (master, master_rpc, volume, volume_rpc, filer_rpc, s3_rpc) = addresses.find_free_ports(6, host)
    options = {
        "ip": host,
        "ip.bind": host,
        "dir": "data",
        "master.port": master,
        "master.port.grpc": master_rpc,
        "master.telemetry": "false",
        "master.volumePreallocate": "false",
        "master.volumeSizeLimitMB": VOLUME_SIZE_MB,
        "volume.port": volume,
        "volume.port.grpc": volume_rpc,
        "volume.max": MAX_VOLUMES,
        "volume.preStopSeconds": 0,
        "filer.port": filer,
        "filer.port.grpc": filer_rpc,
        "filer.localSocket": "filer.sock",
        "s3.port": port,
        "s3.port.grpc": s3_rpc,
        "s3.port.iceberg": 0,
        "s3.port.lance": 0,
        "s3.localSocket": "s3.sock",
        "s3.config": "identities.json",
        "s3.autoCreateBucket": "false",
    }
    return [find_program(), "server", "-s3", *(f"-{name}={value}" for name, value in options.items())]


def start(directory: Path, host: str, port: int, access_key: str, secret_key: str) -> StoreServer:
    """Returns a server that answers at host:port and takes these keys; one that runs already is left alone.

    A server of this directory that runs at another address or with other keys is started again with the new ones.

    Raises:
        StoreServerFailure: `weed` is not installed, the port is taken, or it did not answer within 60 s.
    """
    directory = directory.resolve()
    identities = make_identities(access_key, secret_key)
    with process.lock(directory / ".lock"):
        there = status(directory)
        if there is not None and there.running:
            same = (there.host, there.port) == (host, port) and read_identities(directory) == identities
            if same and answers(host, port):
                return there
            end_running(directory)
        (directory / "data").mkdir(exist_ok=True)
        write_private(directory / "identities.json", identities)
        write_private(directory / "server.json", {"host": host, "port": port})
        boot(directory, host, port)
    found = status(directory)
    if found is None or not found.running:
        raise StoreServerFailure(f"{host}:{port}", "the S3 server ended right after its start")
    return found


def boot(directory: Path, host: str, port: int) -> None:
    """Starts the server and returns when it answers."""
    endpoint = f"{host}:{port}"
    if not addresses.is_free(host, port):
        raise StoreServerFailure(
            endpoint,
            "in use, so the S3 server cannot listen there",
            expected="a free port",
            run=f"ss -ltnp 'sport = :{port}'",
        )
    log = directory / "weed.log"
    for _ in range(START_ATTEMPTS):
        (filer,) = addresses.find_free_ports(1, host)
        started = process.launch(
            # One volume a bucket at first, not seven.
            ["env", "WEED_MASTER_VOLUME_GROWTH_COPY_1=1", *make_command(host, port, filer)],
            pidfile=directory / "weed.json",
            log=log,
            directory=directory,
        )

        def is_ready(filer: int = filer) -> bool:
            return answers(host, port) and serves_content(host, filer)

        def is_starting(started: subprocess.Popen[bytes] = started) -> bool:
            return started.poll() is None

        if addresses.wait_for(is_ready, is_starting, READY_TIMEOUT_S):
            return
        has_ended = not is_starting()
        end_running(directory)
        if not has_ended:
            break  # it runs and does not answer: that is no port taken by another program in between
    raise StoreServerFailure(
        endpoint,
        "the S3 server did not come up",
        expected=f"an answer within {READY_TIMEOUT_S:.0f} s",
        found=process.read_tail(log, 5),
        run=f"less {log}",
    )


def read_identities(directory: Path) -> object:
    try:
        return json.loads((directory / "identities.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None


def end_running(directory: Path) -> None:
    running = process.find_running(directory / "weed.json")
    if running is not None:
        process.end(running, grace_s=SHUTDOWN_TIMEOUT_S)
    (directory / "weed.json").unlink(missing_ok=True)


def stop(directory: Path) -> None:
    """Ends the server; its objects stay. Nothing happens when none runs."""
    directory = directory.resolve()
    if directory.is_dir():
        with process.lock(directory / ".lock"):
            end_running(directory)


def destroy(directory: Path) -> None:
    """Ends the server and removes its objects with it; running it again is fine."""
    directory = directory.resolve()
    if directory.is_dir():
        stop(directory)
        shutil.rmtree(directory)
