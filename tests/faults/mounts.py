"""Mounts that make a workspace worse than a test's own file system: whole seconds, and a file that nobody can read."""

from __future__ import annotations

import subprocess
from pathlib import Path

SIZE = "8M"


class Mounted:
    """Something mounted at a place until `remove`; needs root."""

    def __init__(self, mount_point: str, *options: str) -> None:
        self.mount_point = mount_point
        subprocess.run(["mount", *options, mount_point], check=True)

    def remove(self) -> None:
        subprocess.run(["umount", "--lazy", self.mount_point], check=True)


class UnreadableFile(Mounted):
    """A regular file of 4,096 bytes that even root cannot read: an attribute of the kernel that is write-only."""

    def __init__(self, mount_point: str) -> None:
        source = sorted(Path("/sys/bus").glob("*/drivers_probe"))[0]
        Path(mount_point).touch()
        super().__init__(mount_point, "--bind", str(source))


class CoarseFileSystem(Mounted):
    """An ext4 with 128-byte inodes, which have no room for nanoseconds, mounted from an image.

    Args:
        directory: where the image goes.
        mount_point: made when it is not there.
    """

    def __init__(self, directory: Path, mount_point: str) -> None:
        image = directory / f"{Path(mount_point).name}.img"
        Path(mount_point).mkdir(parents=True)
        subprocess.run(["mkfs.ext4", "-q", "-I", "128", str(image), SIZE], check=True, capture_output=True)
        super().__init__(mount_point, "-o", "loop", str(image))
        (Path(mount_point) / "lost+found").rmdir()
