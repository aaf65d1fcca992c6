"""A disk that is not mounted any more, or another one in its place, is not taken for data that is gone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.exchange import Request
from tests.faults.mounts import Mounted
from tests.faults.proxy import FaultProxy, Schedule
from tests.faults.store_faults import Action
from tests.system.engine_node import EngineNode

OTHERWISE = "something else is mounted here than at the last evacuation"


@pytest.mark.parametrize("ended", ["SAFE", "NOT SAFE"])
def test_a_root_whose_disk_is_not_mounted_any_more_is_a_reason(node: EngineNode, ended: str) -> None:
    node.fill({"below": b"what lies in the directory that the disk is mounted over"})
    script = f"mount -t tmpfs tmpfs '{node.root}'; echo A >'{node.root}/a'"
    if ended != "SAFE":
        script += f"; mkfifo '{node.root}/fifo'"  # so this run leaves no receipt
    done = node.run_in_mounts(script, *node.evacuate_words())
    assert json.loads(done.stdout)["verdict"] == ended, done
    before = node.listing()
    (reason,) = node.refuse()
    assert reason["what"] == "the root is on another filesystem than at the last evacuation"
    assert node.listing() == before
    node.more_spec = {"mount": "/"}
    node.evacuate_safely()


def evacuate_with_disk(node: EngineNode, ended: str, name: str = "data") -> None:
    """An evacuation while a disk is mounted at a directory below the root, which shows nothing without it."""
    (node.root / name).mkdir(parents=True)
    script = f"mount -t tmpfs tmpfs '{node.root}/{name}'; echo A >'{node.root}/{name}/a'"
    if ended != "SAFE":
        script += f"; mkfifo '{node.root}/fifo'"  # so this run leaves no receipt
    done = node.run_in_mounts(script, *node.evacuate_words())
    assert json.loads(done.stdout)["verdict"] == ended, done
    (node.root / "fifo").unlink(missing_ok=True)


@pytest.mark.parametrize("ended", ["SAFE", "NOT SAFE"])
def test_a_disk_below_a_root_that_is_not_mounted_any_more_is_a_reason(node: EngineNode, ended: str) -> None:
    node.fill({"a": b"A"})
    evacuate_with_disk(node, ended)
    before = node.listing()
    (reason,) = node.refuse()
    assert (reason["path"], reason["what"]) == (str(node.root / "data"), OTHERWISE)
    assert (reason["expected"], reason["found"]) == ("tmpfs", "no mount point")
    assert node.listing() == before
    (node.root / "data").rmdir()  # nor does its mount point have to be there
    assert [reason["what"] for reason in node.refuse()] == [OTHERWISE]
    assert node.entries()["data/a"]["state"] == "proven"
    node.more_spec = {"mount": "/"}
    node.evacuate_safely()
    node.more_spec = {}
    node.evacuate_safely()
    assert node.entries()["data/a"]["state"] == "gone"


def test_a_disk_that_is_gone_is_missed_whatever_its_name_is(node: EngineNode) -> None:
    name = "d\\\r\n\u200b " + os.fsdecode(b"\xff")
    evacuate_with_disk(node, "SAFE", name)
    (reason,) = node.refuse()
    assert reason["what"] == OTHERWISE
    assert reason["path"] == f"{node.root}/d\\\\r\\n\\u200b \\xff"


def test_a_disk_of_garbage_may_go_and_come(node: EngineNode) -> None:
    node.fill({"a": b"A"})
    node.rules = [
        {"match": "*.pt", "tier": "irreplaceable", "optional": True},
        {"match": "scratch/", "tier": "garbage"},
    ]
    evacuate_with_disk(node, "SAFE", "scratch/disk")
    node.evacuate_safely()
    done = node.run_in_mounts(f"mount -t tmpfs tmpfs '{node.root}/scratch/disk'", *node.evacuate_words())
    assert done.returncode == 0, done
    script = f"mount -t tmpfs tmpfs '{node.root}/scratch/disk'; echo A >'{node.root}/scratch/disk/a.pt'"
    assert node.run_in_mounts(script, *node.evacuate_words()).returncode == 0
    assert [reason["what"] for reason in node.refuse()] == [OTHERWISE]
    node.rules.reverse()  # now all of it is garbage
    node.evacuate_safely()


def test_a_disk_that_hides_what_was_counted_is_a_reason(node: EngineNode) -> None:
    node.fill({"data/a": b"A", "none/x": b"X"})
    node.evacuate_safely()
    (node.root / "new").mkdir()
    script = f"mount -t tmpfs tmpfs '{node.root}/new'; echo B >'{node.root}/new/b'"
    assert node.run_in_mounts(script, *node.evacuate_words()).returncode == 0  # there was nothing
    done = node.run_in_mounts(f"{script}; mount -t tmpfs tmpfs '{node.root}/data'", *node.evacuate_words())
    (reason,) = json.loads(done.stdout)["reasons"]
    assert (reason["path"], reason["what"]) == (str(node.root / "data"), OTHERWISE)
    assert (reason["expected"], reason["found"]) == ("no mount point", "tmpfs")


@pytest.fixture
def proxy(node: EngineNode) -> Iterator[FaultProxy]:
    with FaultProxy(node.access.server.port) as running:
        node.environment["AWS_ENDPOINT_URL"] = running.endpoint_url
        yield running


def test_a_disk_below_a_root_that_vanishes_midway_is_a_reason(node: EngineNode, proxy: FaultProxy) -> None:
    node.fill({"a": b"A", "data/below": b"B"})
    disk = Mounted(str(node.root / "data"), "-t", "tmpfs", "tmpfs")
    try:
        Path(node.root / "data/on-it").write_text("X")

        def vanish(_: Request) -> None:
            disk.remove()

        proxy.schedule = Schedule(faults=[Action(vanish, operations={"PutObject"}, key="/.probe/", count=1)])
        reasons = node.refuse()
    finally:
        proxy.schedule = Schedule()
        if (node.root / "data").is_mount():
            disk.remove()
    assert "something else is mounted here than when this run began" in [reason["what"] for reason in reasons]
