"""The rehearsal's S3 keys are made once, are readable by their owner alone, and live in one file."""

from __future__ import annotations

import os
import secrets
from dataclasses import dataclass
from pathlib import Path

from decamp.rehearsal import process

FILE_NAME = "store-credentials.env"


@dataclass(frozen=True)
class StoreCredentials:
    """One pair of S3 keys."""

    access_key: str
    secret_key: str


def ensure_credentials(directory: Path, endpoint_url: str = "") -> StoreCredentials:
    """Returns the keys kept in the directory's store-credentials.env, making them on first use.

    The file holds `NAME=value` lines for a shell: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_ENDPOINT_URL.

    Args:
        directory: the rehearsal's directory.
        endpoint_url: endpoint the keys belong to; empty leaves the one in the file.
    """
    path = directory / FILE_NAME
    with process.lock(directory / ".credentials.lock"):
        held = read_variables(path)
        wanted = {
            "AWS_ACCESS_KEY_ID": held.get("AWS_ACCESS_KEY_ID") or f"REHEARSAL{secrets.token_hex(6).upper()}",
            "AWS_SECRET_ACCESS_KEY": held.get("AWS_SECRET_ACCESS_KEY") or secrets.token_urlsafe(30),
            "AWS_ENDPOINT_URL": endpoint_url or held.get("AWS_ENDPOINT_URL", ""),
        }
        if wanted != held:
            write_variables(path, wanted)
    return StoreCredentials(wanted["AWS_ACCESS_KEY_ID"], wanted["AWS_SECRET_ACCESS_KEY"])


def read_variables(path: Path) -> dict[str, str]:
    """Returns the file's variables; none when there is no such file."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line and not line.startswith("#"))
    return {name.strip(): value.strip() for name, _, value in pairs}


def write_variables(path: Path, variables: dict[str, str]) -> None:
    """Writes the file whole or not at all, readable by its owner alone."""
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    with os.fdopen(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
        file.writelines(f"{name}={value}\n" for name, value in variables.items())
    partial.replace(path)
