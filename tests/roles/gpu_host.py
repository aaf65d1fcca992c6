"""A booted Debian host that looks like a GPU machine to anything that reads /sys, /proc and NVIDIA's tools.

The looks are bind mounts made at each boot of the host, before its services start, so that roles need no way of being
told about a test. As on a real machine, the driver that is "loaded" is the one that was installed when the host booted.
"""

from __future__ import annotations

import io
import json
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decamp.rehearsal import addresses, host
from tests.roles.gpu_machines import Machine

CHECKOUT = Path(__file__).resolve().parents[2]
STAND_IN = Path("/var/lib/stand-in-gpu")
PLAYBOOK_TIMEOUT_S = 480  # a reboot included, on two busy cores

# Runs at each boot. /proc and /sys cannot be written, so whole directories are laid over them.
BOOT = r"""#!/bin/sh
set -e
s=/var/lib/stand-in-gpu; r=/run/stand-in-gpu
mkdir -p $r/driver $r/module
version=$(modinfo -F version nvidia 2>/dev/null || true)
licence=$(modinfo -F license nvidia 2>/dev/null || true)
if [ -n "$version" ] && grep -qs 0x10de $s/bus/pci/devices/*/vendor; then
    mkdir -p $r/driver/nvidia $r/module/nvidia
    kind="NVIDIA UNIX x86_64 Kernel Module"
    case "$licence" in *GPL*) kind="NVIDIA UNIX Open Kernel Module for x86_64" ;; esac
    printf 'NVRM version: %s  %s  Release Build  (dvs-builder@U22)  Mon Dec  8 12:00:00 UTC 2025\n' \
        "$kind" "$version" > $r/driver/nvidia/version
    echo 'GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)' >> $r/driver/nvidia/version
fi
if [ -e $s/has-nouveau ] && ! grep -qs '^blacklist nouveau' /etc/modprobe.d/*; then mkdir -p $r/module/nouveau; fi
if grep -qsx ib_umad /etc/modules-load.d/*; then mkdir -p $r/module/ib_umad; fi
mount --bind $s/bus /sys/bus
mount --bind $r/driver /proc/driver
mount --bind $r/module /sys/module
[ -e /dev/btrfs-control ] || mknod /dev/btrfs-control c 10 234
while read -r node major minor; do [ -e "$node" ] || mknod "$node" b "$major" "$minor"; done < $s/block-devices
"""

BOOT_UNIT = """[Unit]
Description=Makes this host look like a GPU machine
DefaultDependencies=no
Before=local-fs-pre.target sysinit.target
Wants=local-fs-pre.target
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/local/lib/stand-in-gpu-boot
[Install]
WantedBy=sysinit.target
"""

# Kernel modules cannot be loaded in a container. This one says of nvidia what a kernel says that still has something
# in the way, so that the role has to reboot; ib_umad it "loads".
MODPROBE = """#!/bin/sh
echo "$*" >> /var/log/modprobe-calls
case "$1" in
ib_umad) mkdir -p /run/stand-in-gpu/module/ib_umad ;;
*) echo "modprobe: ERROR: could not insert '$1': Operation not permitted" >&2; exit 1 ;;
esac
"""

UPDATE_INITRAMFS = "#!/bin/sh\ncat /etc/modprobe.d/*nouveau* >> /var/log/initramfs-updates\n"


@dataclass(frozen=True)
class Played:
    """How a playbook run ended."""

    status: int
    output: str

    @property
    def changed(self) -> int:
        return self._count("changed")

    @property
    def failed(self) -> int:
        return self._count("failed")

    def _count(self, word: str) -> int:
        found = re.search(rf"^node\s+:.*\b{word}=(\d+)", self.output, re.M)
        assert found, self.output
        return int(found[1])

    def says(self, *parts: str) -> None:
        """Fails unless the output has every part, whatever lines it was broken into."""
        text = " ".join(self.output.split())
        missing = [part for part in parts if part not in text]
        assert not missing, f"not in the output: {missing}\n{self.output}"

    def tell(self, name: str) -> str:
        """Gives what `GpuHost.play_steps` with `rescued` says of a step."""
        found = re.search(rf"step {re.escape(name)}: (.*?)(?=TASK \[|PLAY RECAP)", " ".join(self.output.split()))
        assert found, f"no step {name} in\n{self.output}"
        return found[1].replace("''", "'")  # as the output's YAML quotes a quote


@dataclass(frozen=True)
class Step:
    """A role, or a part of it, with variables of its own."""

    role: str
    variables: Mapping[str, Any] = field(default_factory=dict)
    tasks_from: str = "main"

    def as_task(self) -> dict[str, Any]:
        return {"include_role": {"name": self.role, "tasks_from": self.tasks_from}, "vars": dict(self.variables)}


@dataclass(frozen=True)
class GpuHost:
    """A running host and the key that logs in to it."""

    directory: Path
    address: str
    private_key: Path

    def run(self, command: str, *, check: bool = True, stdin: str | None = None) -> subprocess.CompletedProcess[str]:
        """Runs a shell command on the host over SSH."""
        done = subprocess.run(
            ["ssh", *self.ssh_options, f"root@{self.address}", command],
            input=stdin, stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert not check or done.returncode == 0, f"{command}\n{done.stdout}{done.stderr}"
        return done

    def ask(self, command: str) -> str:
        """Gives what a command that succeeds prints, without the last line end."""
        return self.run(command).stdout.rstrip("\n")

    def write(self, path: Path | str, content: str, mode: str = "0644") -> None:
        quoted = shlex.quote(str(path))
        self.run(f"mkdir -p $(dirname {quoted}) && cat > {quoted} && chmod {mode} {quoted}", stdin=content)

    def copy(self, directory: str, files: Mapping[str, bytes]) -> None:
        """Puts files below a directory of the host."""
        packed = io.BytesIO()
        with tarfile.open(fileobj=packed, mode="w") as archive:
            for name, content in files.items():
                entry = tarfile.TarInfo(name)
                entry.size, entry.mode = len(content), 0o644
                archive.addfile(entry, io.BytesIO(content))
        quoted = shlex.quote(directory)
        subprocess.run(
            ["ssh", *self.ssh_options, f"root@{self.address}", f"mkdir -p {quoted} && tar -C {quoted} -x"],
            input=packed.getvalue(), check=True, timeout=60,
        )  # fmt: skip

    def play(
        self, *roles: str, check: bool = False, tags: str = "", arguments: Sequence[str] = (), **variables: Any
    ) -> Played:
        """Runs roles on the host as a playbook of their own would, without gathered facts.

        The host is a container, so its looks count only where it is told that they do.
        """
        variables = {"node_facts_count_shared_gpus": True, **variables}
        steps: list[dict[str, Any]] = [{"role": role} for role in roles]
        play = [{"hosts": "all", "gather_facts": False, "roles": steps, "vars": variables}]
        (self.directory / "play.yml").write_text(json.dumps(play))
        inventory = {"all": {"hosts": {"node": {
            "ansible_host": self.address, "ansible_user": "root", "ansible_python_interpreter": "/usr/bin/python3",
            "ansible_ssh_private_key_file": str(self.private_key),
            "ansible_ssh_common_args": shlex.join(self.ssh_options),
        }}}}  # fmt: skip
        (self.directory / "inventory.json").write_text(json.dumps(inventory))
        command = [
            str(Path(sys.executable).with_name("ansible-playbook")),
            "-i",
            str(self.directory / "inventory.json"),
        ]
        command += (
            ["--check"] * check + (["--tags", tags] if tags else []) + [*arguments, str(self.directory / "play.yml")]
        )
        environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")},
            "ANSIBLE_ROLES_PATH": str(CHECKOUT / "roles"), "ANSIBLE_PIPELINING": "1", "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_LOCAL_TEMP": str(self.directory / "ansible"), "ANSIBLE_DEPRECATION_WARNINGS": "0",
        }  # fmt: skip
        done = subprocess.run(
            command, cwd=CHECKOUT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True, timeout=PLAYBOOK_TIMEOUT_S, check=False,
        )  # fmt: skip
        return Played(done.returncode, done.stdout)

    def play_steps(self, steps: Mapping[str, Step], *, rescued: bool = False, **options: Any) -> Played:
        """Runs steps one after the other in one play; with `rescued`, a failure is told and the next one follows."""
        tasks: list[dict[str, Any]] = []
        for name, step in steps.items():
            refused = {"debug": {"msg": f"step {name}: {{{{ ansible_failed_result.msg }}}}"}}
            passed = {"debug": {"msg": f"step {name}: not refused"}}
            tasks.append({"block": [step.as_task(), passed], "rescue": [refused]} if rescued else step.as_task())
        role = self.directory / "roles" / "steps" / "tasks"
        role.mkdir(parents=True, exist_ok=True)
        (role / "main.yml").write_text(json.dumps(tasks))
        return self.play(str(role.parent), **options)

    def reboot(self) -> None:
        """Reboots the host and waits until it is another boot that has finished starting."""
        before = self.boot_id()
        self.run("systemctl reboot", check=False)
        assert addresses.wait_for(lambda: self.boot_id() not in ("", before), lambda: True, 60)
        self.run("systemctl is-system-running --wait", check=False)

    def boot_id(self) -> str:
        """Names the present boot (systemd-nspawn gives each its own id); empty while the host does not answer."""
        return self.run("cat /proc/sys/kernel/random/boot_id", check=False).stdout.strip()

    @property
    def ssh_options(self) -> list[str]:
        return [
            "-i", str(self.private_key), "-o", "IdentitiesOnly=yes", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5",
            "-o", f"UserKnownHostsFile={self.directory / 'known_hosts'}", "-o", "StrictHostKeyChecking=yes",
            "-o", "LogLevel=ERROR", "-o", "ControlMaster=auto", "-o", "ControlPersist=30",
            "-o", f"ControlPath={self.directory}/cm",
        ]  # fmt: skip


def dress(started: GpuHost, machine: Machine, smi: str, block_devices: list[Path]) -> None:
    """Gives the host its looks, now and at each boot."""
    with tempfile.TemporaryDirectory() as scratch:
        machine.write_pci(Path(scratch) / "bus")
        tar = subprocess.run(["tar", "-C", scratch, "-c", "bus"], capture_output=True, check=True).stdout
    subprocess.run(
        ["ssh", *started.ssh_options, f"root@{started.address}", f"mkdir -p {STAND_IN} && tar -C {STAND_IN} -x"],
        input=tar, check=True, timeout=30,
    )  # fmt: skip
    nodes = [(path, os.stat(path).st_rdev) for path in block_devices]
    started.write(STAND_IN / "nvidia-smi-q.txt", smi)
    started.write(
        STAND_IN / "block-devices", "".join(f"{path} {os.major(rdev)} {os.minor(rdev)}\n" for path, rdev in nodes)
    )
    started.write("/usr/local/lib/stand-in-gpu-boot", BOOT, "0755")
    started.write("/usr/local/sbin/modprobe", MODPROBE, "0755")
    started.write("/usr/local/sbin/update-initramfs", UPDATE_INITRAMFS, "0755")
    started.write("/etc/systemd/system/stand-in-gpu.service", BOOT_UNIT)
    started.run("systemctl daemon-reload && systemctl enable --now -q stand-in-gpu.service")


@contextmanager
def booted(
    directory: Path, machine: Machine, *, smi: str | None = None, block_devices: list[Path] | None = None
) -> Iterator[GpuHost]:
    """Boots a host that looks like the machine; destroys it when left."""
    directory.mkdir(parents=True, exist_ok=True)
    keys = {name: host.generate_key_pair(directory / name) for name in ("host_key", "login_key")}
    address = addresses.find_free_address()
    login = host.read_public_key(keys["login_key"])
    try:
        host.start("node", directory / "host", address, keys["host_key"], login, host.new_machine_id())
        (directory / "known_hosts").write_text(f"{address} {host.read_public_key(keys['host_key'])}\n")
        started = GpuHost(directory, address, keys["login_key"])
        dress(started, machine, machine.format_smi("@DRIVER@", "13.2") if smi is None else smi, block_devices or [])
        yield started
    finally:
        host.destroy(directory / "host")
