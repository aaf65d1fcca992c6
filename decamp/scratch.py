"""A directory for what a command needs only while it runs; what goes wrong in it is one message."""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import tempfile
from collections.abc import Iterator
from pathlib import Path

from decamp.errors import DecampError


class ScratchFailure(DecampError):
    """The directory for temporary files cannot be used; nothing but it was touched."""


@contextlib.contextmanager
def make_scratch(command: str) -> Iterator[Path]:
    """Gives a new directory below $TMPDIR, gone afterwards.

    Raises:
        ScratchFailure: it cannot be made, or an index or a file in it cannot be written.
    """
    directory = ""
    try:
        with tempfile.TemporaryDirectory(prefix=f"decamp-{command}-") as directory:
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


def _is_in(directory: str, error: OSError) -> bool:
    """Whether an error is about a file below the directory; a write that finds no room names no file."""
    if error.filename is None:
        return error.errno in (errno.ENOSPC, errno.EDQUOT)
    return os.fsdecode(error.filename).startswith(directory)
