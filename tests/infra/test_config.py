"""Wrong settings are named all at once, each with its key, its value and what is allowed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from infra.config import CHECKOUT, ConfigRefused, StackConfig, parse_config
from tests.infra.declaration import HOST_KEY


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text("a private key")
    path.chmod(0o600)
    return path


def rented(key_file: Path, **changes: Any) -> dict[str, Any]:
    settings: dict[str, Any] = {
        "target": "rented",
        "nodes": [{"name": "gpu-1", "host": "203.0.113.7", "host_key": HOST_KEY}],
        "store": {"url": "s3://archives/runs", "endpoint": "https://s3.example.org"},
        "ssh": {"private_key_file": str(key_file)},
    }
    return {key: value for key, value in {**settings, **changes}.items() if value is not None}


def node(**changes: Any) -> dict[str, Any]:
    settings = {"name": "gpu-1", "host": "203.0.113.7", "host_key": HOST_KEY, **changes}
    return {key: value for key, value in settings.items() if value is not None}


def parse(settings: dict[str, Any], checkout: Path = CHECKOUT) -> StackConfig:
    """Hands the settings over as Pulumi does: objects as JSON, everything else as text."""
    raw = {
        f"decamp:{key}": json.dumps(value) if isinstance(value, dict | list | bool | int | float) else str(value)
        for key, value in settings.items()
    }
    return parse_config("test", {**raw, "aws:region": "us-east-1"}, checkout)


def find_problems(settings: dict[str, Any]) -> list[str]:
    with pytest.raises(ConfigRefused) as refused:
        parse(settings)
    assert all(str(problem) in str(refused.value) for problem in refused.value.problems)
    assert refused.value.exit_code == 2
    return [str(problem) for problem in refused.value.problems]


def test_rehearsal_needs_nothing_but_its_target(tmp_path: Path) -> None:
    config = parse({"target": "rehearsal"}, tmp_path)
    (only,) = config.nodes
    assert (only.name, only.host, only.port, only.user, only.gpu) == ("node-1", "127.0.10.1", 22, "root", "none")
    assert config.store.url == "s3://decamp-rehearsal" and config.store.endpoint == "http://127.0.0.1:18333"
    assert config.ssh_private_key_file.is_relative_to(tmp_path / ".rehearsal")
    assert not config.configure


def test_address_of_a_rehearsal_node_follows_from_its_name_alone() -> None:
    one = parse({"target": "rehearsal", "nodes": [{"name": "node-1"}, {"name": "node-2"}]})
    other = parse({"target": "rehearsal", "nodes": [{"name": "node-2"}]})
    assert one.nodes[1] == other.nodes[0] and other.nodes[0].host == "127.0.10.2"
    (problem,) = find_problems({"target": "rehearsal", "nodes": [{"name": "other"}]})
    assert problem.startswith("decamp:nodes[0].host: missing: expected an address in 127.0.0.0/8")


def test_rented_stack_is_read_whole(key_file: Path) -> None:
    nodes = [
        node(port=2222, user="ubuntu", gpu="8x B200", price_per_hour=31.5),
        node(name="b", host="b", host_key=HOST_KEY[:-1] + "A"),
    ]
    changes = {"deadline": "2026-12-01T11:00:00Z", "configure": True, "workspace": "/data"}
    config = parse(rented(key_file, nodes=nodes, **changes))
    first, second = config.nodes
    assert (first.port, first.user, first.gpu, first.price_per_hour) == (2222, "ubuntu", "8x B200", 31.5)
    assert first.deadline == second.deadline == "2026-12-01T11:00:00Z"
    assert (second.port, second.user, second.price_per_hour) == (22, "root", None)
    assert config.configure and config.workspace == "/data" and config.ssh_private_key_file == key_file
    assert config.store.url == "s3://archives/runs" and config.store.region == "us-east-1"


def test_missing_host_key_is_refused_with_the_way_to_get_it(key_file: Path) -> None:
    (problem,) = find_problems(rented(key_file, nodes=[node(host_key=None, port=2200)]))
    assert problem.startswith("decamp:nodes[0].host_key: missing: expected the host's public key, \"ssh-ed25519")
    assert "run: ssh-keyscan -t ed25519 -p 2200 203.0.113.7" in problem and "compare it over another way" in problem


def test_everything_wrong_is_named_at_once(tmp_path: Path) -> None:
    problems = find_problems(
        {
            "target": "rented",
            "nodes": [
                {"name": "GPU", "host": "a b", "port": 70000, "user": "Root", "price_per_hour": -1, "deadline": "soon"},
                {"host": "h", "host_key": "ssh-ed25519 AAAA", "prot": 22},
            ],
            "store": {"url": "archives", "endpoint": "https://me:secret@s3.example.org"},
            "ssh": {"private_key_file": str(tmp_path / "none")},
            "workspace": "relative",
            "configure": "yes",
            "deadline": "2026-12-01T11:00:00",
            "max_price_per_hour": "cheap",
            "rehearsal": {"store_port": 18333},
            "nodse": 1,
        }
    )
    keys = {problem.split(": ")[0].removeprefix("decamp:") for problem in problems}
    first = ("name", "host", "port", "user", "host_key", "price_per_hour", "deadline")
    assert keys == {
        *("rehearsal", "store.url", "store.endpoint", "ssh.private_key_file", "deadline", "max_price_per_hour"),
        *("workspace", "configure", "nodse"),
        *(f"nodes[0].{key}" for key in first),
        *(f"nodes[1].{key}" for key in ("name", "host_key", "prot")),
    }
    told = "\n".join(problems)
    for value in ('"GPU"', '"a b"', "70000", '"Root"', "-1", '"soon"', '"archives"', '"relative"', '"yes"', '"cheap"'):
        assert f"found {value}" in told, value
    assert "expected a whole number from 1 to 65535" in told and "expected true or false" in told


@pytest.mark.parametrize("target", [None, "aws-gov", "Rented"])
def test_unknown_target_names_those_there_are(key_file: Path, target: str | None) -> None:
    problems = find_problems(rented(key_file, target=target))
    assert any(problem.startswith("decamp:target: ") and "rehearsal or rented" in problem for problem in problems)


@pytest.mark.parametrize(
    "host_key",
    [
        HOST_KEY[:40],
        HOST_KEY.replace("ssh-ed25519 ", "ssh-rsa "),
        HOST_KEY.replace("ssh-ed25519 ", ""),
        "ssh-dss AAAAB3NzaC1kc3MAAACBAP",
        HOST_KEY.replace("AAAA", "A!AA"),
    ],
)
def test_host_key_that_is_not_one(key_file: Path, host_key: str) -> None:
    (problem,) = find_problems(rented(key_file, nodes=[node(host_key=host_key)]))
    assert problem.startswith("decamp:nodes[0].host_key: not a public key")


def test_host_key_loses_its_comment(key_file: Path) -> None:
    config = parse(rented(key_file, nodes=[node(host_key=f"{HOST_KEY} root@gpu-1\n")]))
    assert config.nodes[0].host_key == HOST_KEY


@pytest.mark.parametrize(
    ("twice", "key", "places"),
    [
        (node(), "name", "nodes[0], nodes[1]"),
        (node(name="b"), "host", "nodes[0], nodes[1]"),
        (node(name="b", host="h"), "host_key", "nodes[0], nodes[1]"),
    ],
)
def test_what_two_nodes_cannot_share(key_file: Path, twice: dict[str, Any], key: str, places: str) -> None:
    problems = find_problems(rented(key_file, nodes=[node(), twice]))
    assert any(problem.startswith(f"decamp:nodes.{key}: given twice, in {places}") for problem in problems)


@pytest.mark.parametrize("nodes", [None, [], 3, "gpu-1", ["gpu-1"]])
def test_nodes_that_are_no_list_of_nodes(key_file: Path, nodes: Any) -> None:
    (problem,) = find_problems(rented(key_file, nodes=nodes))
    assert problem.startswith("decamp:nodes: ") and "expected a list of nodes" in problem


def test_private_key_that_others_can_read(key_file: Path) -> None:
    key_file.chmod(0o644)
    (problem,) = find_problems(rented(key_file))
    assert 'readable by others: expected 0600, found "0644"; run: chmod 600' in problem


def test_price_above_the_limit(key_file: Path) -> None:
    nodes = [node(price_per_hour=60), node(name="b", host="b", host_key=HOST_KEY[:-1] + "A", price_per_hour=45.5)]
    (problem,) = find_problems(rented(key_file, nodes=nodes, max_price_per_hour=100))
    assert "expected at most 100.00 dollars an hour" in problem and "105.50" in problem
    assert len(parse(rented(key_file, nodes=nodes, max_price_per_hour=105.5)).nodes) == 2
    nodes[1].pop("price_per_hour")
    (problem,) = find_problems(rented(key_file, nodes=nodes, max_price_per_hour=100))
    assert "no price_per_hour for b" in problem


def test_rehearsal_takes_no_endpoint_of_another_store() -> None:
    (problem,) = find_problems({"target": "rehearsal", "store": {"endpoint": "https://s3.example.org"}})
    assert problem.startswith("decamp:store.endpoint: the rehearsal starts its own S3 server")


def test_section_that_is_no_mapping(key_file: Path) -> None:
    problems = find_problems(rented(key_file, store="s3://archives"))
    assert any(problem.startswith("decamp:store: not allowed: expected a mapping") for problem in problems)
    problems = find_problems(rented(key_file, store="{url: s3://archives"))
    assert any(problem.startswith("decamp:store: not readable") for problem in problems)
