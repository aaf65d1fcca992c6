"""A stack's outputs are read whole, or every one that is missing is named; an empty answer is an error."""

from __future__ import annotations

import copy
import stat
from pathlib import Path
from typing import Any

import pytest

from decamp import stack
from decamp.stack import UnreadableStack, parse_outputs, read_guards, read_outputs
from tests.infra.declaration import HOST_KEY

OUTPUTS: dict[str, Any] = {
    "target": "rented",
    "store": {"url": "s3://archives", "endpoint": "", "region": "us-east-1"},
    "nodes": [
        {
            "name": "gpu-1",
            "host": "203.0.113.7",
            "port": 22.0,
            "user": "root",
            "host_key": HOST_KEY,
            "gpu": "8x B200",
            "price_per_hour": None,
            "deadline": "",
        }
    ],
    "ssh_private_key_file": "/home/me/.ssh/id_ed25519",
}


def test_outputs_are_typed() -> None:
    outputs = parse_outputs(OUTPUTS, "rented")
    assert outputs.target == "rented" and outputs.store.endpoint == ""
    (node,) = outputs.nodes
    assert node.port == 22 and isinstance(node.port, int) and node.price_per_hour is None
    assert node.purchase == ""  # as in the outputs of an earlier version, which know no purchase
    spot = copy.deepcopy(OUTPUTS)
    spot["nodes"][0]["purchase"] = "spot"
    assert parse_outputs(spot, "rented").nodes[0].purchase == "spot"
    assert node.host_key == HOST_KEY and outputs.ssh_private_key_file == "/home/me/.ssh/id_ed25519"


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("target",), None, "target"),
        (("store", "url"), 3, "store.url"),
        (("store",), "s3://archives", "store"),
        (("nodes",), [], "nodes"),
        (("nodes", 0, "host_key"), None, "nodes[0].host_key"),
        (("nodes", 0, "port"), True, "nodes[0].port"),
        (("nodes", 0), "gpu-1", "nodes[0].name"),
        (("nodes", 0, "purchase"), 3, "nodes[0].purchase"),
        (("ssh_private_key_file",), None, "ssh_private_key_file"),
    ],
)
def test_output_that_is_missing_or_odd_is_named(path: tuple[Any, ...], value: Any, named: str) -> None:
    outputs = copy.deepcopy(OUTPUTS)
    place: Any = outputs
    for step in path[:-1]:
        place = place[step]
    place[path[-1]] = value
    with pytest.raises(UnreadableStack) as refused:
        parse_outputs(outputs, "rented")
    assert named in refused.value.found and refused.value.run == "pulumi up"


@pytest.mark.parametrize("outputs", [{}, [], None])
def test_stack_without_outputs_is_an_error(outputs: Any) -> None:
    with pytest.raises(UnreadableStack, match="the stack has no outputs"):
        parse_outputs(outputs, "rented")


@pytest.mark.parametrize(
    ("said", "what"),
    [
        ("error: no stack named 'x' found", "there is no such stack"),
        ("error: no stack selected; please use `pulumi stack select`", "no stack is selected"),
        ("error: constructing secrets manager: incorrect passphrase", "the stack's passphrase is missing or wrong"),
        ("error: something else", "failed"),
    ],
)
def test_engine_s_own_errors_are_told_with_what_helps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, what: str
) -> None:
    """A program in the engine's place prints what the engine prints (3.274); the real one is in the system tests."""
    engine = tmp_path / "pulumi"
    engine.write_text(f"#!/bin/sh\necho {said.replace('`', '')!r} >&2\nexit 255\n")
    engine.chmod(engine.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setattr(stack, "find_pulumi", lambda: str(engine))
    for read in (read_outputs, read_guards):
        with pytest.raises(UnreadableStack, match=what):
            read("x", tmp_path)


def test_no_engine_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stack, "CHECKOUT", tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UnreadableStack, match=r"the Pulumi engine is not installed; run: make setup"):
        read_outputs("x", tmp_path)
