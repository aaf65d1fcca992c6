"""A store that is out of reach or refuses is one clear message and exit code 4, and nothing is believed or lost."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from decamp.rehearsal.store_server import StoreServer
from tests.faults import seaweed
from tests.faults.engine_process import Engine, Outcome
from tests.faults.seaweed import SeaweedServer, free_ports
from tests.system.engine_node import EngineNode
from tests.system.machines import StoreAccess

SECRET = "a-made-up-secret-key"
RIGHTS = {
    "reader": ["Read", "List"],
    "writer": ["Read", "Write"],
    "nobody": [],
}


@pytest.fixture(scope="module")
def server() -> Iterator[SeaweedServer]:
    """A server that knows users with fewer rights than all."""
    identities = [
        {"name": name, "credentials": [{"accessKey": name, "secretKey": SECRET}], "actions": actions}
        for name, actions in RIGHTS.items()
    ]
    with SeaweedServer(more_identities=identities) as running:
        running.client().create_bucket(Bucket="rights")
        yield running


@pytest.fixture
def node(server: SeaweedServer, engine: Engine) -> Iterator[EngineNode]:
    directory = Path(tempfile.mkdtemp(prefix="decamp-node-"))
    (directory / "w").mkdir()
    place = StoreServer(server.directory, "127.0.0.1", server.port, None)
    access = StoreAccess(place, "rights", seaweed.ACCESS_KEY, seaweed.SECRET_KEY)
    made = EngineNode(directory, access, engine, prefix=f"nodes/{directory.name}")
    made.fill({"a": b"A", "big": b"B" * (2 << 20)})
    yield made
    shutil.rmtree(directory)


def become(node: EngineNode, name: str, secret: str = SECRET) -> None:
    node.environment.update(AWS_ACCESS_KEY_ID=name, AWS_SECRET_ACCESS_KEY=secret)


def assert_refused(outcome: Outcome, *parts: str) -> None:
    """Exit code 4, one line for people, one document for programs."""
    assert outcome.code == 4, outcome
    document = outcome.document
    if "error" in document:
        assert document["exit_code"] == 4
        assert outcome.stderr.startswith("decamp: s3://")
        assert outcome.stderr.count("\n") == 1
        told = outcome.stderr
    else:
        assert document["verdict"] == "NOT SAFE"
        told = str(document["reasons"])
    for part in parts:
        assert part in told, told
    assert SECRET not in outcome.stdout + outcome.stderr


def commands(node: EngineNode) -> list[list[str]]:
    return [
        node.evacuate_words(),
        node.evacuate_words("--dry-run"),
        ["verify", node.url, "--json", "--quiet"],
        ["restore", node.url, str(node.directory / "back"), "--json", "--quiet"],
        ["ls", node.url, "--json"],
    ]


def test_a_store_that_does_not_answer(node: EngineNode) -> None:
    node.environment["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{free_ports(1)[0]}"
    for words in commands(node):
        assert_refused(node.run(*words), "the store cannot be reached", "check --endpoint-url")
    assert not (node.directory / "back").exists()


def test_a_store_that_is_no_store(node: EngineNode) -> None:
    node.environment["AWS_ENDPOINT_URL"] = "nonsense"
    for words in commands(node):
        outcome = node.run(*words)
        assert outcome.code == 2
        assert "the store's address is wrong" in outcome.stderr


def test_a_bucket_that_is_missing(node: EngineNode) -> None:
    for words in commands(node):
        missing = [word.replace("s3://rights/", "s3://missing-bucket/") for word in words]
        assert_refused(node.run(*missing), "the bucket does not exist", "create it, or correct --store")


@pytest.mark.parametrize(
    ("name", "secret", "part"),
    [
        ("reader", "wrong", "the store refuses the signature"),
        ("unknown", SECRET, "the access key is unknown to the store"),
        ("nobody", SECRET, "access is denied"),
    ],
)
def test_credentials_that_open_nothing(node: EngineNode, name: str, secret: str, part: str) -> None:
    become(node, name, secret)
    for words in commands(node):
        assert_refused(node.run(*words), part)


def test_no_credentials_at_all(node: EngineNode) -> None:
    become(node, "", "")
    for words in commands(node):
        assert_refused(node.run(*words), "no credentials for the store", "export AWS_ACCESS_KEY_ID")


def test_credentials_that_may_only_read(node: EngineNode) -> None:
    become(node, "reader")
    assert_refused(node.evacuate(), "access is denied")
    assert node.listing() == {}
    node.environment.clear()
    node.evacuate_safely()
    before = node.listing()
    become(node, "reader")
    assert node.verify().code == 0
    node.restores_to_the_same()
    assert node.evacuate_safely()["unchanged"] is True
    node.fill({"new": b"N"})
    assert_refused(node.evacuate(), "access is denied")
    assert node.listing() == before
    node.environment.clear()
    node.evacuate_safely()
    node.restores_to_the_same()


def test_credentials_that_may_not_list(node: EngineNode) -> None:
    become(node, "writer")
    assert_refused(node.evacuate(), "access is denied")
    assert "decamp/receipt.json" not in node.listing()


def test_the_endpoint_can_be_an_argument(node: EngineNode) -> None:
    endpoint = node.access.endpoint_url
    node.environment["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{free_ports(1)[0]}"
    node.evacuate_safely("--endpoint-url", endpoint, "--region", "eu-west-1")
    assert node.verify("--endpoint-url", endpoint).code == 0
