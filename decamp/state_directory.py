"""Where the index of a bag is kept on this machine, by whom it is used, and what is said when it cannot be."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path

from decamp.errors import BadInput, NotSafe
from decamp.index import BusyIndex
from decamp.index_file import remove_index


def state_directory() -> Path:
    """Where indexes are kept: $DECAMP_STATE_DIR, else /var/lib/decamp, else one in the user's own state."""
    chosen = os.environ.get("DECAMP_STATE_DIR")
    if chosen:
        return Path(chosen)
    if os.geteuid() == 0:
        return Path("/var/lib/decamp")
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local/state") / "decamp"


def index_path(store_url: str, endpoint_url: str | None, roots: tuple[bytes, ...]) -> Path:
    """The index file of a bag.

    Raises:
        BadInput: the state directory lies inside the workspace, or cannot be made.
    """
    directory = state_directory()
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        real = os.fsencode(directory.resolve())
    except OSError as error:
        raise BadInput(
            str(directory),
            "the state directory cannot be made",
            found=error.strerror or str(error),
            run="DECAMP_STATE_DIR=/dev/shm/decamp decamp evacuate ...",
        ) from error
    for root in roots:
        if real == root or real.startswith(root.rstrip(b"/") + b"/"):
            raise BadInput(
                str(directory),
                "the state directory lies inside the workspace",
                expected="a directory outside of it",
                run="DECAMP_STATE_DIR=/dev/shm/decamp decamp ...",
            )
    name = hashlib.sha256(f"{endpoint_url or ''} {store_url}".encode()).hexdigest()[:32]
    return directory / f"{name}.sqlite"


@contextlib.contextmanager
def lock_index(path: Path) -> Iterator[None]:
    """Keeps a bag's index to one run at a time; raises BusyIndex while another has it."""
    with open(f"{path}.lock", "w", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise BusyIndex(
                str(path),
                "another evacuation of this archive is running here",
                run="wait for it to end, then run again",
            ) from error
        yield


@contextlib.contextmanager
def usable_index(path: Path) -> Iterator[None]:
    """Says in one line what is wrong with the index or its directory; entries' own errors are findings by now."""
    try:
        yield
    except (sqlite3.OperationalError, OSError) as error:
        if isinstance(error, BrokenPipeError):
            raise
        raise NotSafe(
            str(path),
            "the state directory cannot be used",
            found=str(error),
            run="DECAMP_STATE_DIR=/dev/shm/decamp decamp evacuate ...",
        ) from error
    except sqlite3.DatabaseError as error:
        if type(error) is not sqlite3.DatabaseError:
            raise
        remove_index(path)
        raise NotSafe(
            str(path),
            "the index was damaged and is removed; the archive has all that it said",
            found=str(error),
            run="the same command again",
        ) from error
