"""A fresh count of a workspace, for whoever holds it against a receipt: needs no store and no credentials."""

from __future__ import annotations

from typing import Any

from decamp.census import Census
from decamp.entries import shown
from decamp.findings import Finding
from decamp.host import find_writers, read_identity, read_mounts
from decamp.spec import Spec


def count_workspace(spec: Spec) -> dict[str, Any]:
    """Returns the machine's identity, the census's digest, what hinders it, and who has files open for writing.

    The digest equals a receipt's `census_sha256` exactly when no entry worth keeping has changed since.
    """
    identity = read_identity()
    census = Census(spec, read_mounts())
    for _ in census.walk():
        pass
    findings: list[Finding] = list(census.findings)
    writers = find_writers()
    if writers.unseen:
        findings.append(Finding("/proc", f"open files of {writers.unseen} processes cannot be seen", run="run as root"))
    return {
        "machine_id": identity.machine_id,
        "host_keys": list(identity.host_keys),
        "census_sha256": census.sha256,
        "entries": census.entries,
        "findings": [finding.document() for finding in findings],
        "writers": [
            {"pid": writer.pid, "command": writer.command, "path": shown(writer.path)}
            for writer in writers.below(spec.roots)
        ],
    }
