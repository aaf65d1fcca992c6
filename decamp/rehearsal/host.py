"""A booted Debian host on its own loopback address, with an identity of its own, that leaves nothing when destroyed.

The host is an overlay over the base image, booted by systemd-nspawn. The overlay is mounted in a mount namespace of the
host's own processes, so it ends with them: no kill, at whatever time, leaves a mount behind. A process belongs to the
host if it sees that overlay, whatever the pidfile says; that is how leftovers of a killed run are found.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
import socket
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from uuid import uuid4

from decamp.errors import BadInput, DecampError
from decamp.rehearsal import addresses, base_image, process, supervisor

SSH_PORT = 22
READY_TIMEOUT_S = 60.0
SHUTDOWN_TIMEOUT_S = 30.0
NSPAWN_STATE = Path("/run/systemd/nspawn")


class HostFailure(DecampError):
    """A rehearsal host could not be started or stopped."""


@dataclass(frozen=True)
class Host:
    """What a host is (fixed from its first start) and whether it runs (`pid` is its supervisor's, else None)."""

    name: str
    directory: Path
    address: str
    machine_id: str
    host_key: str
    base: str
    port: int = SSH_PORT
    user: str = "root"
    pid: int | None = None

    @property
    def running(self) -> bool:
        return self.pid is not None


def new_machine_id() -> str:
    """Returns a machine id as machine-id(5) wants it: 32 hexadecimal digits."""
    return uuid4().hex


def generate_key_pair(private_key: Path, comment: str = "") -> Path:
    """Makes an Ed25519 key pair at `private_key` and `private_key`.pub, replacing any there; returns `private_key`."""
    private_key.parent.mkdir(parents=True, exist_ok=True)
    for old in (private_key, public_half(private_key)):
        old.unlink(missing_ok=True)
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(private_key)], check=True)
    return private_key


def public_half(private_key: Path) -> Path:
    return private_key.with_name(f"{private_key.name}.pub")


def read_public_key(private_key: Path) -> str:
    """Returns the public key as `ssh-ed25519 AAAA...`, without its comment."""
    return " ".join(public_half(private_key).read_text(encoding="ascii").split()[:2])


def find_processes(directory: Path) -> list[int]:
    """Returns every process that sees the host's overlay: its supervisor, systemd-nspawn and all that runs inside."""
    marker = f"upperdir={directory.resolve()}/upper"
    escaped = marker.replace("\\", "\\134").replace(" ", "\\040")
    pattern = re.compile(rf"\boverlay\b.*{re.escape(escaped)}(,|\s|$)")
    found = []
    for mounts in Path("/proc").glob("[0-9]*/mountinfo"):
        with contextlib.suppress(OSError):
            if any(pattern.search(line) for line in mounts.read_text(errors="surrogateescape").splitlines()):
                found.append(int(mounts.parent.name))
    return found


def answers_ssh(address: str, port: int = SSH_PORT) -> bool:
    """Says whether an SSH server greets at the address."""
    try:
        with socket.create_connection((address, port), timeout=2) as connection:
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def read_saved(directory: Path) -> Host | None:
    try:
        saved = json.loads((directory / "host.json").read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return None
    return Host(**{**saved, "directory": directory})


def status(directory: Path) -> Host | None:
    """Returns the host that lives in the directory, with `pid` while it runs; None if there is none."""
    saved = read_saved(directory)
    if saved is None:
        return None
    running = process.find_running(directory / "supervisor.json")
    return Host(**{**vars(saved), "pid": running.pid if running else None})


def write_identity(upper: Path, host: Host, host_key_pair: Path, authorized_key: str) -> None:
    """Writes into the host's layer what makes it this host, so that its first boot already is itself."""
    files = {
        "etc/hostname": (f"{host.name}\n", 0o644),
        "etc/hosts": (f"127.0.0.1 localhost\n::1 localhost\n{host.address} {host.name}\n", 0o644),
        "etc/machine-id": (f"{host.machine_id}\n", 0o444),
        "etc/ssh/ssh_host_ed25519_key": (host_key_pair.read_text(encoding="ascii"), 0o600),
        "etc/ssh/ssh_host_ed25519_key.pub": (f"{host.host_key} root@{host.name}\n", 0o644),
        "etc/ssh/sshd_config.d/rehearsal.conf": (
            f"ListenAddress {host.address}:{host.port}\n"
            "HostKey /etc/ssh/ssh_host_ed25519_key\nPasswordAuthentication no\nUseDNS no\n",
            0o644,
        ),
        "root/.ssh/authorized_keys": (f"{authorized_key.strip()}\n", 0o600),
    }
    for name, (content, mode) in files.items():
        path = upper / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        path.write_text(content, encoding="ascii")
        path.chmod(mode)
    for private in ("root", "root/.ssh"):
        (upper / private).chmod(0o700)


def check_arguments(name: str, directory: Path, machine_id: str) -> None:
    if not re.fullmatch(r"[a-z0-9]([a-z0-9-]{0,40}[a-z0-9])?", name):
        raise BadInput("name", "not a host name", expected="a-z, 0-9 and hyphens, at most 42", found=repr(name))
    if not re.fullmatch(r"[0-9a-f]{32}", machine_id):
        raise BadInput("machine_id", "not a machine id", expected="32 hexadecimal digits", found=repr(machine_id))
    if re.search(r"[,:\\\n]", str(directory)):
        raise BadInput(
            str(directory),
            "cannot hold a host",
            expected="a path without comma, colon or backslash (overlay mount options)",
        )


def prepare(host: Host, host_key_pair: Path, authorized_key: str) -> None:
    """Makes the host's layer from nothing; host.json comes last and says that the layer is whole."""
    remove_layers(host.directory)
    for layer in ("upper", "work", "merged"):
        (host.directory / layer).mkdir(parents=True)
    write_identity(host.directory / "upper", host, host_key_pair, authorized_key)
    saved = {key: value for key, value in asdict(host).items() if key not in ("directory", "pid")}
    partial = host.directory / "host.json.partial"
    partial.write_text(json.dumps(saved, indent=1) + "\n", encoding="utf-8")
    partial.replace(host.directory / "host.json")


def find_machine_name(host: Host) -> str:
    """Returns a name for systemd-nspawn that no host of another checkout has."""
    return f"{host.name}-{hashlib.sha256(str(host.directory).encode()).hexdigest()[:8]}"


def boot(host: Host) -> None:
    """Starts the host's supervisor and returns when sshd greets."""
    directory = host.directory
    if not addresses.is_free(host.address, host.port):
        raise HostFailure(
            f"{host.address}:{host.port}",
            f"in use, so {host.name} cannot listen there",
            expected="a free address",
            run=f"ss -ltnp 'sport = :{host.port}'",
        )
    nspawn = ["systemd-nspawn", "--quiet", "--register=no", "--keep-unit", "--boot", "--link-journal=no"]
    nspawn += ["--timezone=off", "--console=pipe", f"--directory={directory}/merged"]
    nspawn += [f"--machine={find_machine_name(host)}", f"--hostname={host.name}", f"--uuid={host.machine_id}"]
    if Path("/etc/resolv.conf").exists():
        nspawn.append("--resolv-conf=replace-host")
    layers = [host.base, *(str(directory / layer) for layer in ("upper", "work", "merged"))]
    log = directory / "console.log"
    started = process.launch(
        nspawn,
        pidfile=directory / "supervisor.json",
        log=log,
        directory=directory,
        prefix=["unshare", "--mount", "--propagation", "private", "--"],
        options=["--container", find_machine_name(host), "--overlay", *layers],
    )
    if not addresses.wait_for(
        lambda: answers_ssh(host.address, host.port), lambda: started.poll() is None, READY_TIMEOUT_S
    ):
        kill_everything(directory)
        raise HostFailure(
            host.name,
            "did not come up",
            expected=f"sshd on {host.address}:{host.port} within {READY_TIMEOUT_S:.0f} s",
            found=process.read_tail(log),
            run=f"less {log}",
        )


def start(name: str, directory: Path, address: str, host_key_pair: Path, authorized_key: str, machine_id: str) -> Host:
    """Returns a running host with exactly this identity; a host that runs already is left alone.

    Args:
        name: host name.
        directory: where the host lives; its layer is kept there from start to start.
        address: loopback address its sshd listens on, port 22.
        host_key_pair: path of its private SSH host key; the public half lies beside it with .pub.
        authorized_key: public key that may log in as root.
        machine_id: 32 hexadecimal digits.

    Raises:
        BadInput: an argument is wrong, or the directory holds a host of another identity.
        HostFailure: the address is taken or sshd did not greet in time.
    """
    directory = directory.resolve()
    check_arguments(name, directory, machine_id)
    base = base_image.ensure()
    wanted = Host(name, directory, address, machine_id, read_public_key(host_key_pair), str(base))
    with process.lock(directory / ".lock"):
        there = status(directory)
        # A base image that has since been replaced stays what this host was made from.
        if there is not None and Host(**{**vars(there), "base": wanted.base, "pid": None}) != wanted:
            raise BadInput(str(directory), "holds another host", expected=repr(wanted), found=repr(there))
        if there is not None and not Path(there.base).is_dir():
            raise HostFailure(
                name, "its base image is gone, and it with it", expected=there.base, run="make clean-rehearsal"
            )
        if there is None:
            kill_everything(directory)
            prepare(wanted, host_key_pair, authorized_key)
            there = wanted
        if not (there.running and answers_ssh(address)):
            kill_everything(directory)
            boot(there)
    found = status(directory)
    if found is None or not found.running:
        raise HostFailure(name, "ended right after its start", found=process.read_tail(directory / "console.log"))
    return found


def kill_everything(directory: Path) -> None:
    """Ends whatever still belongs to the host, as a power cut would."""
    running = process.find_running(directory / "supervisor.json")
    if running is not None:
        process.end(running, grace_s=0)
    deadline = time.monotonic() + 20
    while left := find_processes(directory):
        if time.monotonic() > deadline:
            raise HostFailure(str(directory), "processes do not end", found=", ".join(map(str, left)))
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, 9)
        time.sleep(process.POLL_S)
    (directory / "supervisor.json").unlink(missing_ok=True)


def stop(directory: Path) -> None:
    """Shuts the host down in order, within 30 s, else by force; its layer stays and `start` boots it again."""
    directory = directory.resolve()
    if not directory.is_dir():
        return
    with process.lock(directory / ".lock"):
        running = process.find_running(directory / "supervisor.json")
        if running is not None:
            process.end(running, grace_s=SHUTDOWN_TIMEOUT_S)
        kill_everything(directory)


def remove_layers(directory: Path) -> None:
    (directory / "host.json").unlink(missing_ok=True)
    for layer in ("upper", "work", "merged"):
        if (directory / layer).exists():
            shutil.rmtree(directory / layer)


def remove_traces(machine_name: str) -> None:
    """Removes what systemd-nspawn and the kernel keep under the host's name outside its directory."""
    shutil.rmtree(NSPAWN_STATE / "propagate" / machine_name, ignore_errors=True)
    deadline = time.monotonic() + 5
    # A control group is busy for a moment after its last process has ended.
    while left := [group for group in supervisor.find_groups(machine_name) if group.exists()]:
        for group in left:
            for inner, _, _ in os.walk(group, topdown=False):
                with contextlib.suppress(OSError):
                    Path(inner).rmdir()
        if time.monotonic() > deadline:
            raise HostFailure(machine_name, "its control groups stay busy", found=", ".join(map(str, left)))
        time.sleep(process.POLL_S)


def destroy(directory: Path) -> None:
    """Ends the host and removes all it had; running it again, or on a directory that is not there, is fine."""
    directory = directory.resolve()
    if not directory.is_dir():
        return
    with process.lock(directory / ".lock"):
        saved = read_saved(directory)
        kill_everything(directory)
        if saved is not None:
            remove_traces(find_machine_name(saved))
        remove_layers(directory)
        shutil.rmtree(directory)
