"""One SeaweedFS for all fault tests of a session, and a fault proxy in front of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.faults.proxy import FaultProxy
from tests.faults.seaweed import SeaweedServer

BUCKET = "cases"


@pytest.fixture(scope="session")
def seaweed() -> Iterator[SeaweedServer]:
    with SeaweedServer() as server:
        server.client().create_bucket(Bucket=BUCKET)
        yield server


@pytest.fixture()
def proxy(seaweed: SeaweedServer) -> Iterator[FaultProxy]:
    with FaultProxy(seaweed.port) as running:
        yield running
