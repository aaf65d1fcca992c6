"""Where the index of a bag is kept on this machine."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from decamp.errors import BadInput


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
