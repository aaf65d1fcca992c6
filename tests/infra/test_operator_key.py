"""Hosts that start at the same time share one operator key, whichever of them comes first."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from decamp.rehearsal.host import read_public_key
from infra.nodes.rehearsal import ensure_operator_key


def test_hosts_that_start_together_get_one_key(tmp_path: Path) -> None:
    private_key = tmp_path / "ssh" / "operator_ed25519"

    def read(_number: int) -> str:
        return read_public_key(ensure_operator_key(private_key))

    with ThreadPoolExecutor(8) as threads:
        keys = set(threads.map(read, range(8)))
    assert keys == {read_public_key(private_key)}
    assert private_key.stat().st_mode & 0o777 == 0o600
