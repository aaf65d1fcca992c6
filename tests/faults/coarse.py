"""A file system that keeps whole seconds only: changes within one second look alike to whoever goes by times."""

from __future__ import annotations

import subprocess
from pathlib import Path

SIZE = "8M"


class CoarseFileSystem:
    """An ext4 with 128-byte inodes, which have no room for nanoseconds, mounted from an image; needs root.

    Args:
        directory: where the image goes.
        mount_point: made when it is not there.
    """

    def __init__(self, directory: Path, mount_point: str) -> None:
        self.mount_point = mount_point
        image = directory / f"{Path(mount_point).name}.img"
        Path(mount_point).mkdir(parents=True)
        subprocess.run(["mkfs.ext4", "-q", "-I", "128", str(image), SIZE], check=True, capture_output=True)
        # Without its loop option mount would keep the device after a lazy unmount.
        subprocess.run(["mount", "-o", "loop", str(image), mount_point], check=True)
        (Path(mount_point) / "lost+found").rmdir()

    def remove(self) -> None:
        subprocess.run(["umount", "--lazy", self.mount_point], check=True)
