"""Writers are found however they hold the file; readers are not; a machine says who it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from decamp.host import Mount, Writer, find_writers, kernel_mount_points, mount_of, read_identity, read_mounts
from tests.faults.mounts import CoarseFileSystem

HOLD = "import os, mmap, sys\npath = sys.argv[1]\n{}\nprint('ready', flush=True)\nsys.stdin.readline()\n"
# By a system call, as a process may: its other threads live on, and below its own number /proc shows nothing.
END_FIRST_THREAD = """import ctypes, threading
threading.Timer(0.2, lambda: (print('ready', flush=True), sys.stdin.readline(), os._exit(0))).start()
ctypes.CDLL(None).syscall({'x86_64': 60, 'aarch64': 93}[os.uname().machine], 0)"""


@pytest.fixture
def held_file(tmp_path: Path) -> Iterator[Callable[[str, str], tuple[Path, int]]]:
    """Starts a process that does something to a file of 8,192 bytes and stays; gives the file and the process."""
    running: list[subprocess.Popen[str]] = []

    def hold(name: str, what: str) -> tuple[Path, int]:
        path = tmp_path / name
        path.write_bytes(bytes(8192))
        command = [sys.executable, "-c", HOLD.format(what), str(path)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        running.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        return path, process.pid

    yield hold
    for process in running:
        process.kill()
        process.communicate(timeout=10)


def writers_of(path: Path) -> list[Writer]:
    status = path.stat()
    found = find_writers().by_identity.get((status.st_dev, status.st_ino))
    return [found] if found else []


@pytest.mark.parametrize(
    "what",
    [
        "f = open(path, 'ab')",
        "f = open(path, 'r+b')",
        "f = os.open(path, os.O_WRONLY)",
        "f = open(path, 'r+b'); m = mmap.mmap(f.fileno(), 0); os.closerange(3, 99)",
        "f = open(path, 'r+b'); m = mmap.mmap(f.fileno(), 4096, offset=4096); os.closerange(3, 99)",
        "f = open(path, 'r+b'); g = open(path, 'rb')",
        f"f = open(path, 'ab'); {END_FIRST_THREAD}",
        f"f = open(path, 'r+b'); m = mmap.mmap(f.fileno(), 0); os.closerange(3, 99); {END_FIRST_THREAD}",
    ],
)
def test_a_writer_is_found(held_file: Callable[[str, str], tuple[Path, int]], what: str) -> None:
    path, pid = held_file("file", what)
    (writer,) = writers_of(path)
    assert writer.pid == pid
    assert writer.path == bytes(path)
    assert sys.executable in writer.command


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a filesystem")
def test_an_image_that_is_mounted_is_written_to_by_the_kernel(tmp_path: Path) -> None:
    disk = CoarseFileSystem(tmp_path, str(tmp_path / "mounted"))
    try:
        (writer,) = writers_of(tmp_path / "mounted.img")
        assert (writer.pid, writer.path) == (0, bytes(tmp_path / "mounted.img"))
        assert writer.command.startswith("the kernel's loop")
        assert writer in find_writers().below((bytes(tmp_path),))
    finally:
        disk.remove()


@pytest.mark.parametrize(
    "what",
    [
        "f = open(path, 'rb')",
        "f = open(path, 'rb'); m = mmap.mmap(f.fileno(), 0, prot=mmap.PROT_READ)",
        "f = open(path, 'r+b'); m = mmap.mmap(f.fileno(), 0, access=mmap.ACCESS_COPY); os.closerange(3, 99)",
        "f = open(path, 'r+b'); m = mmap.mmap(f.fileno(), 0); m.close(); f.close()",
        "f = os.open(path, os.O_PATH)",
    ],
)
def test_who_cannot_write_is_not(held_file: Callable[[str, str], tuple[Path, int]], what: str) -> None:
    path, _ = held_file("file", what)
    assert writers_of(path) == []


@pytest.mark.parametrize("name", ["with space", "new\nline", "\udcff", "name (deleted)", "ü"])
def test_a_writer_is_found_whatever_the_name(held_file: Callable[[str, str], tuple[Path, int]], name: str) -> None:
    path, pid = held_file(name, "f = open(path, 'r+b')")
    assert [writer.pid for writer in writers_of(path)] == [pid]
    mapped, pid = held_file(name + "2", "f = open(path, 'r+b'); m = mmap.mmap(f.fileno(), 0); os.closerange(3, 99)")
    assert [writer.pid for writer in writers_of(mapped)] == [pid]


def test_a_hard_link_does_not_hide_a_writer(held_file: Callable[[str, str], tuple[Path, int]], tmp_path: Path) -> None:
    path, pid = held_file("file", "f = open(path, 'ab')")
    (tmp_path / "link").hardlink_to(path)
    assert [writer.pid for writer in writers_of(tmp_path / "link")] == [pid]


def test_below_names_writers_under_the_roots(held_file: Callable[[str, str], tuple[Path, int]], tmp_path: Path) -> None:
    path, pid = held_file("file", "f = open(path, 'ab')")
    gone, _ = held_file("gone", "f = open(path, 'ab'); os.unlink(path)")
    writers = find_writers()
    assert [(writer.pid, writer.path) for writer in writers.below((bytes(tmp_path),))] == [(pid, bytes(path))]
    assert writers.below((bytes(tmp_path / "fil"),)) == []
    assert writers.below((bytes(tmp_path) + b"/",)) != []
    assert not gone.exists()


def test_identity_is_machine_id_and_host_keys(tmp_path: Path) -> None:
    ssh = tmp_path / "etc/ssh"
    ssh.mkdir(parents=True)
    (tmp_path / "etc/machine-id").write_text("0123\n")
    (ssh / "ssh_host_rsa_key.pub").write_text("ssh-rsa BBBB root@host\n")
    (ssh / "ssh_host_ed25519_key.pub").write_text("ssh-ed25519 AAAA root@host\n")
    (ssh / "ssh_host_bad_key.pub").write_bytes(b"\xff\xfe")
    identity = read_identity(tmp_path)
    assert (identity.machine_id, identity.host_keys) == ("0123", ("ssh-ed25519 AAAA", "ssh-rsa BBBB"))


def test_a_machine_without_identity_has_an_empty_one(tmp_path: Path) -> None:
    identity = read_identity(tmp_path)
    assert (identity.machine_id, identity.host_keys) == ("", ())


def test_mounts_are_read() -> None:
    mounts = read_mounts()
    assert b"/" in {mount.point for mount in mounts}
    assert b"/proc" in kernel_mount_points(mounts)
    assert b"/" not in kernel_mount_points(mounts)


def test_what_is_mounted_over_the_kernels_own_files_is_not_the_kernels() -> None:
    mounts = [Mount(b"/a", "proc", "proc"), Mount(b"/a", "ext4", "/dev/a"), Mount(b"/b", "sysfs", "sysfs")]
    assert kernel_mount_points(mounts) == {b"/b"}


def test_a_path_lies_on_its_deepest_and_latest_mount() -> None:
    root, data, cover = Mount(b"/", "ext4", "a"), Mount(b"/data", "xfs", "b"), Mount(b"/data", "tmpfs", "c")
    assert mount_of(b"/data/x", [root, data]) == data
    assert mount_of(b"/data", [data, root]) == data
    assert mount_of(b"/database", [root, data]) == root
    assert mount_of(b"/data/x", [root, data, cover]) == cover
    assert mount_of(b"/x", [data]) is None
