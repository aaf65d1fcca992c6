"""The rehearsal's parts behave as machines and stores do: they boot, reboot, die, come back, and leave nothing."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from botocore.exceptions import ClientError

from decamp.errors import BadInput
from decamp.rehearsal import addresses, base_image, host, prerequisites, process, store_server, supervisor
from tests.system.machines import Machine, StoreAccess, make_machine

NewHost = Callable[[str], Machine]
PARENT_THAT_DIES = """
import os, sys
from pathlib import Path
from decamp.rehearsal import store_server
store_server.start(Path(sys.argv[1]), "127.0.0.1", int(sys.argv[2]), "key", "secretsecret")
os.kill(os.getpid(), 9)
"""
SMALL_BUILD = """
from decamp.rehearsal import base_image
base_image.PACKAGES = ("openssh-client",)
base_image.ensure()
"""


def wait_until(holds: Callable[[], bool], timeout_s: float = 30) -> None:
    deadline = time.monotonic() + timeout_s
    while not holds():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.1)


def find_traces(machine: Machine) -> list[str]:
    """Names everything the host has outside its directory."""
    name = host.find_machine_name(machine.host)
    kept = [*supervisor.find_groups(name), host.NSPAWN_STATE / "propagate" / name]
    mounts = [line for line in Path("/proc/mounts").read_text().splitlines() if str(machine.host.directory) in line]
    return (
        [str(path) for path in kept if path.exists()]
        + mounts
        + [str(p) for p in host.find_processes(machine.host.directory)]
    )


class TestHost:
    def test_is_a_whole_debian_system_with_its_own_identity(self, booted_host: Machine) -> None:
        told = booted_host.run(
            "systemctl is-system-running --wait; hostname; cat /etc/machine-id;"
            " cut -d' ' -f1,2 /etc/ssh/ssh_host_ed25519_key.pub; . /etc/os-release; echo $ID"
        ).stdout.splitlines()
        mine = booted_host.host
        assert told == ["running", mine.name, mine.machine_id, mine.host_key, "debian"]

    def test_has_what_a_rented_node_has(self, booted_host: Machine) -> None:
        booted_host.run("command -v sudo curl ip ps systemctl python3 && python3 -c 'import apt' && sudo -n true")

    def test_installs_packages_from_this_machines_archives(self, booted_host: Machine) -> None:
        booted_host.run("apt-get update -qq && apt-get install -qq -y hello >/dev/null && hello", timeout_s=180)

    def test_two_at_once_are_two_machines(self, booted_host: Machine, new_host: NewHost) -> None:
        other = new_host("other")
        assert other.host.machine_id != booted_host.host.machine_id
        assert other.host.host_key != booted_host.host.host_key
        other.run("touch /root/only-here && systemctl stop dbus.service dbus.socket")
        booted_host.run("test ! -e /root/only-here && systemctl is-active dbus.service")

    def test_ssh_refuses_another_host_at_its_address(self, new_host: NewHost) -> None:
        machine = new_host("moved")
        directory = machine.host.directory
        host.destroy(directory)
        other_key = host.generate_key_pair(directory.parent / "other_ed25519")
        authorized = host.read_public_key(machine.private_key)
        host.start("moved", directory, machine.host.address, other_key, authorized, host.new_machine_id())
        refused = machine.run("true", check=False)
        assert refused.returncode != 0
        assert "REMOTE HOST IDENTIFICATION HAS CHANGED" in refused.stderr

    def test_comes_back_after_a_reboot_with_its_files(self, new_host: NewHost) -> None:
        machine = new_host("rebooting")
        first_boot = machine.run("echo kept > /root/kept; stat -c %Y /proc/1").stdout
        machine.run("systemctl reboot", check=False)
        time.sleep(1)

        def is_back() -> bool:
            told = machine.run("stat -c %Y /proc/1", check=False)
            return told.returncode == 0 and told.stdout != first_boot

        wait_until(is_back)
        assert machine.run("cat /root/kept").stdout == "kept\n"
        there = host.status(machine.host.directory)
        assert there is not None
        assert there.pid == machine.host.pid

    def test_stops_in_order_and_starts_as_it_was(self, new_host: NewHost) -> None:
        machine = new_host("stopping")
        unit = (
            "[Service]\\nType=oneshot\\nRemainAfterExit=yes\\nExecStart=true\\nExecStop=touch /root/stopped-in-order\\n"
        )
        machine.run(f"printf '{unit}' > /etc/systemd/system/witness.service && systemctl start witness")
        host.stop(machine.host.directory)
        stopped = host.status(machine.host.directory)
        assert stopped is not None
        assert not stopped.running
        assert not addresses.wait_for(lambda: host.answers_ssh(machine.host.address), lambda: True, 1)
        assert machine.start().machine_id == machine.host.machine_id
        machine.run("test -e /root/stopped-in-order")

    def test_poweroff_inside_ends_it(self, new_host: NewHost) -> None:
        machine = new_host("leaving")
        machine.run("systemctl poweroff", check=False)
        wait_until(lambda: host.find_processes(machine.host.directory) == [])
        there = host.status(machine.host.directory)
        assert there is not None
        assert not there.running

    def test_start_leaves_a_running_host_alone(self, booted_host: Machine) -> None:
        assert booted_host.start().pid == booted_host.host.pid

    def test_a_directory_holds_one_host_for_life(self, booted_host: Machine) -> None:
        mine = booted_host.host
        authorized = host.read_public_key(booted_host.private_key)
        with pytest.raises(BadInput, match="holds another host"):
            host.start(
                mine.name, mine.directory, mine.address, booted_host.host_key_pair, authorized, host.new_machine_id()
            )

    def test_dies_with_its_supervisor_and_starts_again(self, new_host: NewHost) -> None:
        machine = new_host("dying")
        machine.run("echo kept > /root/kept; sync")
        assert machine.host.pid is not None
        os.kill(machine.host.pid, signal.SIGKILL)
        wait_until(lambda: host.find_processes(machine.host.directory) == [], timeout_s=5)
        there = host.status(machine.host.directory)
        assert there is not None
        assert not there.running
        machine.start()
        assert machine.run("cat /root/kept").stdout == "kept\n"

    def test_a_lost_pidfile_does_not_hide_a_running_host(self, new_host: NewHost) -> None:
        machine = new_host("lost")
        (machine.host.directory / "supervisor.json").unlink()
        host.destroy(machine.host.directory)
        assert find_traces(machine) == []

    def test_destroy_leaves_nothing(self, new_host: NewHost) -> None:
        machine = new_host("gone")
        assert find_traces(machine) != []
        host.destroy(machine.host.directory)
        assert not machine.host.directory.exists()
        assert find_traces(machine) == []
        host.destroy(machine.host.directory)

    def test_a_start_killed_halfway_is_made_whole_by_the_next(self, session_directory: Path) -> None:
        directory, address = session_directory / "halfway", addresses.find_free_address()
        (directory / "host" / "upper" / "etc").mkdir(parents=True)
        (directory / "host" / "upper" / "etc" / "hostname").write_text("half\n")
        (directory / "host" / "host.json.partial").write_text('{"name": "ha')
        machine = make_machine(directory, "whole", address)
        assert machine.run("hostname").stdout == "whole\n"
        host.destroy(machine.host.directory)

    def test_an_address_in_use_is_an_error_that_names_it(self, booted_host: Machine, session_directory: Path) -> None:
        with pytest.raises(host.HostFailure, match=rf"{booted_host.host.address}:22: in use"):
            make_machine(session_directory / "clash", "clash", booted_host.host.address)
        host.destroy(session_directory / "clash" / "host")


class TestStoreServer:
    def test_keeps_what_it_is_given_and_checks_it(self, store_server: StoreAccess) -> None:
        client = store_server.connect()
        client.put_object(Bucket=store_server.bucket, Key="a/b", Body=b"content", ChecksumAlgorithm="SHA256")
        assert client.get_object(Bucket=store_server.bucket, Key="a/b")["Body"].read() == b"content"
        with pytest.raises(ClientError, match="BadDigest"):
            client.put_object(Bucket=store_server.bucket, Key="c", Body=b"content", ChecksumSHA256="A" * 43 + "=")

    def test_refuses_other_keys_and_buckets_nobody_made(self, store_server: StoreAccess) -> None:
        stranger = StoreAccess(store_server.server, store_server.bucket, store_server.access_key, "wrong")
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            stranger.connect().list_objects_v2(Bucket=store_server.bucket)
        with pytest.raises(ClientError, match="NoSuchBucket"):
            store_server.connect().put_object(Bucket="never-made", Key="a", Body=b"")

    def test_outlives_its_parent_and_a_kill_loses_nothing(self, session_directory: Path) -> None:
        directory, port = session_directory / "killed", addresses.find_free_ports(1)[0]
        parent = [sys.executable, "-c", PARENT_THAT_DIES, str(directory), str(port)]
        assert subprocess.run(parent, check=False, timeout=90).returncode == -signal.SIGKILL
        there = store_server.status(directory)
        assert there is not None
        assert there.pid is not None
        access = StoreAccess(there, "kept", "key", "secretsecret")
        client = access.connect()
        client.create_bucket(Bucket="kept")
        content = os.urandom(3_000_000)
        client.put_object(Bucket="kept", Key="object", Body=content)
        os.kill(there.pid, signal.SIGKILL)
        wait_until(lambda: store_server.status(directory) == store_server.StoreServer(directory, "127.0.0.1", port))
        again = store_server.start(directory, "127.0.0.1", port, "key", "secretsecret")
        assert again.pid != there.pid
        assert client.get_object(Bucket="kept", Key="object")["Body"].read() == content
        assert store_server.start(directory, "127.0.0.1", port, "key", "secretsecret").pid == again.pid
        changed = store_server.start(directory, "127.0.0.1", port, "key", "another secret")
        assert changed.pid != again.pid
        with pytest.raises(ClientError, match="SignatureDoesNotMatch"):
            client.list_objects_v2(Bucket="kept")
        store_server.destroy(directory)
        assert not directory.exists()
        assert addresses.is_free("127.0.0.1", port)

    def test_takes_space_as_objects_come(self, store_server: StoreAccess) -> None:
        store_server.connect().put_object(Bucket=store_server.bucket, Key="small", Body=b"x")
        used = subprocess.run(["du", "-sm", store_server.server.directory], capture_output=True, text=True, check=True)
        assert int(used.stdout.split()[0]) < 100

    def test_listens_on_loopback_alone(self, store_server: StoreAccess) -> None:
        told = subprocess.run(["ss", "-ltnpH"], capture_output=True, text=True, check=True).stdout.splitlines()
        mine = [line.split()[3] for line in told if f"pid={store_server.server.pid}," in line]
        assert len(mine) >= 4
        assert all(address.startswith("127.0.0.1:") for address in mine)

    def test_a_port_in_use_is_an_error_that_names_it(self, session_directory: Path) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            port = taken.getsockname()[1]
            with pytest.raises(store_server.StoreServerFailure, match=f"127.0.0.1:{port}: in use"):
                store_server.start(session_directory / "taken", "127.0.0.1", port, "key", "secretsecret")


class TestProcessRecord:
    def test_a_recycled_pid_is_another_process(self, tmp_path: Path) -> None:
        with subprocess.Popen(["sleep", "60"]) as innocent:
            started = supervisor.read_start_ticks(innocent.pid)
            earlier = process.ProcessRecord(innocent.pid, started - 1, supervisor.read_boot_id())
            (tmp_path / "pidfile").write_text(json.dumps(asdict(earlier)))
            assert process.find_running(tmp_path / "pidfile") is None
            process.end(earlier, grace_s=1)
            assert innocent.poll() is None
            process.end(replace(earlier, start_ticks=started), grace_s=5)
            assert not Path(f"/proc/{innocent.pid}").exists()

    @pytest.mark.parametrize("content", ["", "{", "[]", '{"pid": 1}', "\0"])
    def test_a_torn_pidfile_names_nobody(self, tmp_path: Path, content: str) -> None:
        (tmp_path / "pidfile").write_text(content)
        assert process.read_record(tmp_path / "pidfile") is None


class TestBaseImage:
    def test_an_interrupted_build_leaves_nothing_and_the_next_is_whole(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
        monkeypatch.setattr(base_image, "PACKAGES", ("openssh-client",))  # a small image is built in half a minute
        with subprocess.Popen([sys.executable, "-c", SMALL_BUILD], start_new_session=True) as building:
            wait_until(lambda: any(base_image.find_cache().glob(".partial-*/usr")), timeout_s=60)
            os.killpg(building.pid, signal.SIGKILL)
        image = base_image.find_cache() / base_image.define().hash()
        assert list(base_image.find_cache().glob(".partial-*"))
        assert not image.exists()
        assert str(tmp_path) not in Path("/proc/mounts").read_text()
        assert base_image.ensure() == image
        assert (image / "usr/bin/ssh").exists()
        assert not list(base_image.find_cache().glob(".partial-*"))

    def test_holds_no_identity(self) -> None:
        image = base_image.ensure()
        assert not list((image / "etc/ssh").glob("ssh_host_*"))
        assert (image / "etc/machine-id").read_text() == ""


class TestPrerequisites:
    def test_one_error_lists_all_that_is_missing(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", "")
        monkeypatch.setattr(os, "geteuid", lambda: 1000)
        with pytest.raises(prerequisites.MissingPrerequisite) as refused:
            prerequisites.check_machine()
        told = str(refused.value)
        assert all(word in told for word in ("root (this is user id 1000)", "debootstrap", "systemd-nspawn", "rented"))
        assert refused.value.exit_code == 2
