"""With decamp:configure an up runs site.yml in a process of its own, and its failures are told as they are."""

from __future__ import annotations

import os
from typing import Any

import pytest

from decamp.playbook import PlaybookFailure
from decamp.rehearsal import addresses, host
from infra import playbook_process
from infra.configuration import ConfigurationProvider
from infra.playbook_process import run_apart


@pytest.fixture
def outputs(tmp_path: Any) -> dict[str, Any]:
    """Outputs of a stack whose one node does not answer."""
    key = host.generate_key_pair(tmp_path / "key")
    node = {"name": "gpu-1", "host": "127.0.0.1", "port": addresses.find_free_ports(1)[0], "user": "root"}
    told = {"host_key": host.read_public_key(key), "gpu": "none", "price_per_hour": None}
    return {
        "target": "rented",
        "store": {"url": "s3://archives", "endpoint": "", "region": "us-east-1"},
        "nodes": [{**node, **told, "deadline": "2099-01-01T00:00:00Z"}],
        "ssh_private_key_file": str(key),
    }


def test_node_that_does_not_answer_is_named_and_nothing_is_forked_here(
    outputs: dict[str, Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse() -> int:
        raise AssertionError("a process that serves gRPC must not fork")

    for name in ("fork", "forkpty"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(PlaybookFailure, match="gpu-1") as failed:
        ConfigurationProvider().create({"outputs": outputs, "sources_sha256": ""})
    assert "site.yml: ended with exit status" in str(failed.value) and "Connection refused" in str(failed.value)
    assert "left until 2099-01-01T00:00:00Z" in capsys.readouterr().out


def test_process_that_ends_without_a_result_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playbook_process, "_PROGRAM", "import os; os.kill(os.getpid(), 9)")
    result = run_apart("site.yml", print, {})
    assert result.exit_status != 0
    assert result.failures[0].message == "its process ended with -9 before it had a result"
