"""Two hosts that write one archive by mistake: whoever says SAFE last is right, and the other one does not say it."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from tests.faults.comparison import compare, take_picture
from tests.faults.exchange import Request
from tests.faults.proxy import FaultProxy, Schedule
from tests.faults.store_faults import Action
from tests.system.engine_node import EngineNode


@pytest.fixture
def proxy(node: EngineNode) -> Iterator[FaultProxy]:
    with FaultProxy(node.access.server.port) as running:
        node.environment["AWS_ENDPOINT_URL"] = running.endpoint_url
        yield running


def host_of(node: EngineNode, content: str) -> str:
    """A script that makes another host: another machine id, workspace and memory, at the same paths."""
    other = node.directory / "other"
    (other / "w").mkdir(parents=True)
    (other / "state").mkdir()
    (other / "machine-id").write_text("f" * 32 + "\n")
    (other / "w/a").write_text(content)
    (other / "w/b").write_text("only there")
    mounts = {"machine-id": "/etc/machine-id", "w": node.root, "state": node.state}
    return "\n".join(f"mount --bind '{other}/{name}' '{place}'" for name, place in mounts.items())


MOMENTS = {
    "before the first change": ("DeleteObject", r"/decamp/receipt\.json$"),
    "after its first object": ("PutObject", r"/data/.*/c$"),
    "while it writes its records": ("PutObject", r"/bag-info\.txt$"),
    "when its records are written": ("PutObject", r"/tagmanifest-sha256\.txt$"),
    "when it writes its receipt": ("PutObject", r"/decamp/receipt\.json$"),
}


@pytest.mark.parametrize(("moment", "is_first"), [*((moment, False) for moment in MOMENTS), (list(MOMENTS)[-1], True)])
def test_another_host_evacuates_to_the_same_archive_meanwhile(
    node: EngineNode, proxy: FaultProxy, moment: str, is_first: bool
) -> None:
    node.fill({"a": "of one", "c": "only here"})
    if not is_first:
        node.evacuate_safely()
        node.fill({"a": "of one, changed", "c": "changed"})
    node.state.mkdir(exist_ok=True)
    other = host_of(node, "of two")
    ended: list[int] = []

    def evacuate(_: Request) -> None:
        ended.append(node.run_in_mounts(other, *node.evacuate_words()).returncode)

    operation, key = MOMENTS[moment]
    proxy.schedule = Schedule(faults=[Action(evacuate, operations={operation}, key=key, count=1)])
    outcome = node.evacuate()
    proxy.schedule = Schedule()
    assert ended
    assert outcome.code in (0, 3)
    if outcome.code == 0:
        assert node.verify("--read-back").code == 0
        node.restores_to_the_same()
    else:
        assert outcome.document["reasons"], outcome
        if node.verify().code == 0:
            assert ended == [0]
            assert node.restore(node.directory / "back").code == 0
            back = take_picture(bytes(node.directory / "back") + bytes(node.root))
            assert compare(take_picture(bytes(node.directory / "other/w")), back) == []
    node.evacuate_safely()  # once it is alone
    node.restores_to_the_same("alone")
    assert json.loads(node.get("decamp/receipt.json"))["host"]["machine_id"] != "f" * 32
