"""The files of an index that is kept between runs, and what makes a lost bit in them harmless.

SQLite does not notice a bit that a disk lost in a row. So the main file has its digest beside it, and changes only at
the end of a run that proved everything. What a run writes until then is in the write-ahead log, whose frames SQLite
holds against checksums of their own (sqlite.org/walformat.html, "Checksum Algorithm"). So after a kill the next run
continues; a main file with another digest is thrown away, and built anew from the bag.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from pathlib import Path


def digest_path(path: Path) -> Path:
    """The file beside an index that has its digest."""
    return Path(f"{path}.sha256")


def has_its_digest(path: Path) -> bool:
    """Says whether the index's main file is there, and as it was when its digest was taken."""
    try:
        return digest_path(path).read_text(encoding="ascii") == _file_digest(path)
    except (FileNotFoundError, UnicodeDecodeError):
        return False


def keep_digest(path: Path) -> None:
    """Takes the digest of the main file as it is now."""
    fresh = Path(f"{digest_path(path)}.new")
    fresh.write_text(_file_digest(path), encoding="ascii")
    os.replace(fresh, digest_path(path))


def copy_index(path: Path, target: Path) -> None:
    """Copies an index's files, which another run may be writing; what does not fit together is no index then."""
    for suffix in (".sha256", "", "-wal"):  # the main file never before its digest
        with contextlib.suppress(FileNotFoundError):
            shutil.copyfile(f"{path}{suffix}", f"{target}{suffix}")


def remove_index(path: Path) -> None:
    """Removes an index's files; there may be none."""
    for name in (f"{path}-wal", f"{path}-shm", path, digest_path(path)):
        Path(name).unlink(missing_ok=True)


def _file_digest(path: Path) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()
