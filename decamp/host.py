"""Which machine this is, what is mounted where, and which processes hold files open for writing."""

from __future__ import annotations

import contextlib
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path

_WRITE_FLAGS = os.O_WRONLY | os.O_RDWR
_KERNEL_FILESYSTEMS = frozenset(
    (
        "proc",
        "sysfs",
        "devtmpfs",
        "devpts",
        "cgroup",
        "cgroup2",
        "securityfs",
        "debugfs",
        "tracefs",
        "bpf",
        "mqueue",
        "hugetlbfs",
        "configfs",
        "fusectl",
        "pstore",
        "efivarfs",
        "binfmt_misc",
        "rpc_pipefs",
        "nsfs",
        "selinuxfs",
    )
)


@dataclass(frozen=True)
class HostIdentity:
    """What tells one machine from another at the same address.

    Attributes:
        machine_id: content of /etc/machine-id; empty where there is none.
        host_keys: public SSH host keys, each `type base64`, sorted.
    """

    machine_id: str
    host_keys: tuple[str, ...]


def read_identity(root: Path = Path("/")) -> HostIdentity:
    """Returns this machine's identity; unreadable parts are left empty, and an empty one matches nothing."""
    try:
        machine_id = (root / "etc/machine-id").read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        machine_id = ""
    keys = []
    for path in sorted((root / "etc/ssh").glob("ssh_host_*_key.pub")):
        try:
            keys.append(" ".join(path.read_text(encoding="utf-8").split()[:2]))
        except (OSError, UnicodeDecodeError):
            continue
    return HostIdentity(machine_id, tuple(sorted(keys)))


@dataclass(frozen=True)
class Writer:
    """A process that has a file open for writing, or mapped so that it can write to it; 0 is the kernel."""

    pid: int
    command: str
    path: bytes


@dataclass(frozen=True)
class Writers:
    """Every file that some process can write to through what it has open already.

    Attributes:
        by_identity: (device, inode) of the file to the process.
        unseen: number of processes, besides init, whose open files this user may not see.
    """

    by_identity: dict[tuple[int, int], Writer]
    unseen: int

    def below(self, roots: tuple[bytes, ...]) -> list[Writer]:
        """Returns the writers of files whose path, as the kernel tells it, lies below one of the roots."""
        prefixes = tuple(root.rstrip(b"/") + b"/" for root in roots)
        return [
            writer
            for writer in self.by_identity.values()
            if writer.path.startswith(prefixes) and not writer.path.endswith(b" (deleted)")
        ]


def find_writers() -> Writers:
    """Returns which files are open for writing now, from /proc; processes that end meanwhile are left out.

    A deleted file that is still open has no name in the workspace, so nothing of it could be kept.
    """
    found: dict[tuple[int, int], Writer] = {}
    unseen = 0
    own = os.getpid()
    for name in os.listdir("/proc"):
        if not name.isdigit() or int(name) == own:
            continue
        try:
            if not _add_writers(name, name, found):
                # The kernel's own thread, or a process whose first thread has ended: the others show what it has open.
                for thread in os.listdir(f"/proc/{name}/task"):
                    with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                        _add_writers(name, thread, found)
        except PermissionError:
            # A virtual machine's init may hold capabilities that root here lacks; it supervises, it writes no data.
            unseen += name != "1"
        except (FileNotFoundError, ProcessLookupError):
            continue
    _add_mounted_images(found)
    return Writers(found, unseen)


def _add_writers(pid: str, thread: str, found: dict[tuple[int, int], Writer]) -> bool:
    """Adds what a process can write to, as one of its threads shows it; returns whether it has anything open."""
    has_any = _add_open_files(pid, thread, found)
    return _add_mappings(pid, thread, found) or has_any


def _command(pid: str) -> str:
    try:
        line = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").strip()
    except OSError:
        line = b""
    return line.decode("utf-8", "replace")[:200]


def _add_open_files(pid: str, thread: str, found: dict[tuple[int, int], Writer]) -> bool:
    base = f"/proc/{thread}/fd"
    numbers = os.listdir(base)
    for number in numbers:
        try:
            status = os.stat(f"{base}/{number}")
            if not stat.S_ISREG(status.st_mode):
                continue
            with open(f"/proc/{thread}/fdinfo/{number}", "rb") as info:
                text = info.read(256)
            flags = int(text.split(b"flags:", 1)[1].split(None, 1)[0], 8)
            if flags & _WRITE_FLAGS:
                path = os.readlink(os.fsencode(f"{base}/{number}"))
                found.setdefault((status.st_dev, status.st_ino), Writer(int(pid), _command(thread), path))
        except (FileNotFoundError, ProcessLookupError, OSError, IndexError, ValueError) as error:
            if isinstance(error, PermissionError):
                raise
            continue
    return bool(numbers)


_MAPPING = re.compile(rb"^([0-9a-f]+-[0-9a-f]+) .w.s [0-9a-f]+ [0-9a-f:]+ [1-9][0-9]* +(/.*)$", re.MULTILINE)


def _add_mappings(pid: str, thread: str, found: dict[tuple[int, int], Writer]) -> bool:
    with open(f"/proc/{thread}/maps", "rb") as file:
        text = file.read()
    if b"s " not in text:
        return bool(text)
    for match in _MAPPING.finditer(text):
        area, path = match.groups()
        try:
            status = os.stat(b"/proc/%s/map_files/%s" % (thread.encode(), area))
        except FileNotFoundError:
            continue
        if stat.S_ISREG(status.st_mode):
            found.setdefault((status.st_dev, status.st_ino), Writer(int(pid), _command(thread), path))
    return True


def _add_mounted_images(found: dict[tuple[int, int], Writer]) -> None:
    """Adds the files behind loop devices: no process has them open, and what is mounted there is not all in them."""
    for device in Path("/sys/block").glob("loop*"):
        with contextlib.suppress(OSError):  # nothing is behind it
            path = (device / "loop/backing_file").read_bytes().removesuffix(b"\n")
            status = os.stat(path)
            if (device / "ro").read_bytes() == b"0\n":
                found.setdefault((status.st_dev, status.st_ino), Writer(0, f"the kernel's {device.name}", path))


@dataclass(frozen=True)
class Mount:
    """A line of mountinfo that matters here."""

    point: bytes
    filesystem: str
    source: str


def read_mounts() -> list[Mount]:
    """Returns what is mounted in this process's namespace (proc(5), /proc/self/mountinfo)."""
    mounts = []
    # Of the characters that end a line elsewhere, only the newline is escaped there.
    for line in Path("/proc/self/mountinfo").read_bytes().removesuffix(b"\n").split(b"\n"):
        fields, _, rest = line.partition(b" - ")
        point = re.sub(rb"\\([0-7]{3})", lambda found: bytes([int(found.group(1), 8)]), fields.split(b" ")[4])
        kind, source = rest.split(b" ")[:2]
        mounts.append(Mount(point, kind.decode(), source.decode("utf-8", "replace")))
    return mounts


def kernel_mount_points(mounts: list[Mount]) -> frozenset[bytes]:
    """Mount points whose files the kernel makes up (proc, sysfs, ...): there is nothing in them to keep."""
    on_top = {mount.point: mount.filesystem for mount in mounts}
    return frozenset(point for point, filesystem in on_top.items() if filesystem in _KERNEL_FILESYSTEMS)


def mount_of(path: bytes, mounts: list[Mount]) -> Mount | None:
    """The mount that a path lies on: the last one mounted at its longest mounted prefix."""
    best: Mount | None = None
    for mount in mounts:
        inside = path == mount.point or path.startswith(mount.point.rstrip(b"/") + b"/")
        if inside and (best is None or len(mount.point) >= len(best.point)):
            best = mount
    return best
