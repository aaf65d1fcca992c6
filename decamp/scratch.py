"""A directory for what a command needs only while it runs; what goes wrong in it is one message."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
import sqlite3
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path

from decamp.errors import DecampError

_LOCK = "decamp.lock"


class ScratchFailure(DecampError):
    """The directory for temporary files cannot be used; nothing but it was touched."""


@contextlib.contextmanager
def make_scratch(command: str) -> Iterator[Path]:
    """Gives a new directory below $TMPDIR, gone afterwards; those of commands that were killed go as well.

    Raises:
        ScratchFailure: it cannot be made, or an index or a file in it cannot be written.
    """
    directory = ""
    try:
        remove_abandoned()
        with tempfile.TemporaryDirectory(prefix=f"decamp-{command}-") as directory, _held(Path(directory)):
            yield Path(directory)
    except (OSError, sqlite3.OperationalError) as error:
        if directory and isinstance(error, OSError) and not _is_in(directory, error):
            raise
        raise ScratchFailure(
            directory or tempfile.gettempdir(),
            "the directory for temporary files cannot be used",
            found=str(error),
            run=f"TMPDIR=/dev/shm decamp {command} ...",
        ) from error


@contextlib.contextmanager
def _held(directory: Path) -> Iterator[None]:
    """Shows that the directory is in use for as long as this process lives; the lock has its name once it is held."""
    with open(directory / "lock.partial", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        (directory / "lock.partial").rename(directory / _LOCK)
        yield


def remove_abandoned() -> None:
    """Removes our directories below $TMPDIR whose command is gone without having removed its own."""
    for lock in Path(tempfile.gettempdir()).glob(f"decamp-*/{_LOCK}"):
        with contextlib.suppress(OSError):  # another command does the same, or it is another user's
            status = lock.parent.lstat()
            if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
                continue
            with open(lock) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(lock.parent)


def _is_in(directory: str, error: OSError) -> bool:
    """Whether an error is about a file below the directory; a write that finds no room names no file."""
    if error.filename is None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return os.fsdecode(error.filename).startswith(directory)
