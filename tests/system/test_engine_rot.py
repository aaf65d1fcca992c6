"""Bytes that a store has lost while it still shows their checksum: found by reading back, and sent again then."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from tests.faults import bags
from tests.faults.exchange import Request, Response
from tests.faults.proxy import FaultProxy, Schedule
from tests.faults.store_faults import Forward
from tests.system.engine_node import EngineNode

MEBIBYTE = os.urandom(1 << 20)


class Rotten(bags.Altered):
    """An object whose bytes are others than its checksum, until it is written anew."""

    operations = frozenset({"GetObject", "PutObject", "CompleteMultipartUpload"})

    def handle(self, request: Request, forward: Forward) -> Response:
        if request.operation == "GetObject":
            return super().handle(request, forward)
        self.operations = frozenset()
        self.key = None
        self.count = 0
        return forward(request)


@pytest.fixture
def proxy(node: EngineNode) -> Iterator[FaultProxy]:
    with FaultProxy(node.access.server.port) as running:
        node.environment["AWS_ENDPOINT_URL"] = running.endpoint_url
        yield running


@pytest.mark.parametrize("again", [(), ("--read-back",)], ids=["plainly", "reading back"])
@pytest.mark.parametrize("size", [100, 3 << 20])
def test_what_has_rotted_elsewhere_in_the_store_is_sent(
    node: EngineNode, proxy: FaultProxy, size: int, again: tuple[str, ...]
) -> None:
    node.fill({"set": (MEBIBYTE * 3)[:size], "a": b"A"})
    bags.put(node.access.connect(), node.access.bucket, "shared/set", (MEBIBYTE * 3)[:size])
    node.more_spec = {"prefer_existing": [f"s3://{node.access.bucket}/shared/"]}
    node.evacuate_safely()
    proxy.schedule = Schedule(faults=[bags.Altered(key="shared/set$")])
    (reason,) = node.refuse("--read-back")
    assert reason["what"] == "the store holds something else than was sent"
    assert node.evacuate_safely(*again)["tiers"]["irreplaceable"]["sent_bytes"] == size
    assert "fetch.txt" not in node.listing()
    assert node.verify("--read-back").code == 0
    node.restores_to_the_same()


@pytest.mark.parametrize("size", [100, 3 << 20, 20 << 20])
@pytest.mark.parametrize("name", ["plain", "pack 100%"])
def test_what_has_rotted_in_the_archive_is_sent_anew(node: EngineNode, proxy: FaultProxy, name: str, size: int) -> None:
    node.fill({name: (MEBIBYTE * 20)[:size], "a": b"A"})
    node.evacuate_safely()
    key = node.entries()[name]["object"]
    proxy.schedule = Schedule(faults=[Rotten(key=f"{key}$")])
    (reason,) = node.refuse("--read-back")
    assert reason["what"] == "the store holds something else than was sent"
    assert node.evacuate_safely()["tiers"]["irreplaceable"]["sent_bytes"] == size
    assert node.verify("--read-back").code == 0
    node.restores_to_the_same()
