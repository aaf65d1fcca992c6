"""A run may end at any moment: the next one goes on, sends nothing twice and leaves nothing behind."""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from decamp.packs import PACK_TARGET_BYTES
from tests.faults.exchange import WRITES, Request, Response
from tests.faults.proxy import FaultProxy, Schedule
from tests.faults.store_faults import Action, CorruptedGet, Delay, Fault, Forward, MissingChecksumAnswer
from tests.system.engine_node import EngineNode, judge

MEBIBYTE = os.urandom(1 << 20)
PACKS = {f"{number:03d}": MEBIBYTE[number:][: 128 << 10] for number in range(480)}  # 60 MiB: 7 full packs and a part
SETTLE_S = 1.0


class End(Fault):
    """Lets `start` requests of a kind through, and ends the run by a signal when they are settled."""

    def __init__(
        self, node: EngineNode, proxy: FaultProxy, number: int, *, start: int, operation: str, key: str = ""
    ) -> None:
        super().__init__(start=start, operations=[operation], key=key)
        self._node, self._proxy, self._number = node, proxy, number
        self._wanted = operation, re.compile(key, re.DOTALL), start
        self._once = threading.Lock()

    def handle(self, request: Request, forward: Forward) -> Response:
        operation, key, start = self._wanted
        limit = time.monotonic() + 30
        while time.monotonic() < limit:
            log = list(self._proxy.schedule.log)
            if sum(line.operation == operation and bool(key.search(line.key)) for line in log) >= start:
                break
            time.sleep(0.05)
        time.sleep(SETTLE_S)
        if self._once.acquire(blocking=False):  # the others that are held must not end the next run
            self._node.engine.kill(self._number)
        return forward(request)


@pytest.fixture
def proxy(node: EngineNode) -> Iterator[FaultProxy]:
    with FaultProxy(node.access.server.port) as running:
        node.environment["AWS_ENDPOINT_URL"] = running.endpoint_url
        yield running


def end(node: EngineNode, proxy: FaultProxy, words: list[str], fault: End) -> int:
    """Runs a command that the fault ends; returns its exit code."""
    proxy.schedule = Schedule(faults=[fault])
    node.start(*words)
    outcome = judge(node.engine.wait(120))
    assert fault.struck
    proxy.schedule = Schedule()
    return outcome.code


def served(proxy: FaultProxy, operation: str, part: str = "") -> list[str]:
    """Keys of the requests of one kind that the proxy let through."""
    return [line.key for line in proxy.schedule.log if line.operation == operation and part in line.key]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGKILL, -9), (signal.SIGTERM, 130), (signal.SIGINT, 130)])
def test_a_run_that_ended_among_packs_goes_on(node: EngineNode, proxy: FaultProxy, number: int, code: int) -> None:
    node.fill(PACKS)
    fault = End(node, proxy, number, start=2, operation="PutObject", key=r"\.packs/")
    assert end(node, proxy, node.evacuate_words(), fault) == code
    assert "decamp/receipt.json" not in node.listing()
    document = node.evacuate_safely()
    total = sum(map(len, PACKS.values()))
    assert document["tiers"]["irreplaceable"]["sent_bytes"] <= total - 2 * PACK_TARGET_BYTES + (1 << 20)
    assert len(served(proxy, "PutObject", ".packs/")) == 6
    assert node.verify("--read-back").code == 0
    node.restores_to_the_same()


@pytest.mark.parametrize("name", ["large", "50%"])
def test_a_run_that_ended_among_parts_goes_on(node: EngineNode, proxy: FaultProxy, name: str) -> None:
    node.fill({name: MEBIBYTE * 80 + b"end"})
    fault = End(node, proxy, signal.SIGKILL, start=3, operation="UploadPart", key="/data/")
    assert end(node, proxy, node.evacuate_words(), fault) == -9
    (upload,) = node.uploads()
    node.evacuate_safely()
    # Of its eleven parts; those that were held when the run ended may have arrived after all, unknown to it.
    assert len(served(proxy, "UploadPart", upload)) <= 8
    assert len(served(proxy, "CreateMultipartUpload")) == 1  # the one of the probe
    assert node.uploads() == []
    (key,) = [key for key, item in node.listing("data/").items() if item.size_bytes > 1 << 20]
    assert upload.endswith(key)
    assert node.verify("--read-back").code == 0
    node.restores_to_the_same()


def test_nothing_else_is_sent_before_all_that_is_irreplaceable_has_arrived(node: EngineNode, proxy: FaultProxy) -> None:
    """Whenever the node is taken away, what cannot be made again is in the store first, however it is sent."""
    sizes = {"small": 1, "medium": 3 << 20, "large": 20 << 20}  # whole, and in parts
    for tier in ("a-useful", "b-irreplaceable"):
        node.fill({f"{tier}/{name}": os.urandom(size) for name, size in sizes.items()})
    node.rules = [{"match": "a-useful/", "tier": "useful"}]
    # Were both under way at once, what is useful would be first.
    proxy.schedule = Schedule(faults=[Delay(operations=WRITES, key="/b-irreplaceable/")])
    node.evacuate_safely()
    # The log is in the order of the store's answers.
    keys = [line.key for line in proxy.schedule.log if line.operation in WRITES and "/data/" in line.key]
    written = [tuple(key.split("/")[-2:]) for key in keys]
    assert set(written) == {(tier, name) for tier in ("a-useful", "b-irreplaceable") for name in sizes}
    tiers = [tier for tier, _ in written]
    assert tiers == sorted(tiers, reverse=True), tiers


def test_an_upload_of_a_file_that_changed_is_ended(node: EngineNode, proxy: FaultProxy) -> None:
    node.fill({"large": MEBIBYTE * 40})
    fault = End(node, proxy, signal.SIGKILL, start=1, operation="UploadPart", key="/data/")
    end(node, proxy, node.evacuate_words(), fault)
    assert len(node.uploads()) == 1
    with (node.root / "large").open("r+b") as file:
        file.write(b"changed")
    node.evacuate_safely()
    assert node.uploads() == []
    node.restores_to_the_same()


def test_uploads_and_probes_that_nobody_knows_are_cleared_away(node: EngineNode) -> None:
    node.fill({"a": b"A"})
    client = node.access.connect()
    client.create_multipart_upload(Bucket=node.access.bucket, Key=f"{node.prefix}/data/x")
    client.create_multipart_upload(Bucket=node.access.bucket, Key="another/node/data/x")
    node.put("decamp/.probe/left/0", b"x")
    node.evacuate_safely()
    assert node.uploads() == ["another/node/data/x"]
    assert not [key for key in node.listing() if ".probe" in key]


@pytest.mark.parametrize("faults", [[], [MissingChecksumAnswer()]], ids=["checksums", "entity tags"])
def test_objects_that_nobody_knows_are_read_until_the_store_confirms_what_came(
    node: EngineNode, proxy: FaultProxy, faults: list[Fault]
) -> None:
    large = MEBIBYTE * 20 + b"end"
    node.fill({"large": large, "small": b"S"})
    node.evacuate_safely()
    for key in node.listing():
        if key.startswith("decamp/"):
            node.delete(key)
    shutil.rmtree(node.state)
    corrupted = CorruptedGet(key="/data/.*/large$", count=2)
    proxy.schedule = Schedule(faults=[corrupted, *faults])
    document = node.evacuate_safely()
    assert document["tiers"]["irreplaceable"]["sent_bytes"] == 0
    assert len(served(proxy, "GetObject", "/small")) == 1
    # Two readings that agree and are wrong, and the right one; nothing tells the last from the first but the store.
    assert len(served(proxy, "GetObject", "/large")) == 3
    assert hashlib.sha256(large).hexdigest() in node.get("manifest-sha256.txt").decode()
    assert node.verify("--read-back").code == 0


@pytest.mark.parametrize("leaves", ["nothing", "an empty directory"])
def test_a_root_that_vanishes_midway_is_a_reason(node: EngineNode, proxy: FaultProxy, leaves: str) -> None:
    node.fill({"a": b"A", "b": MEBIBYTE * 10})

    def vanish(_: Request) -> None:
        node.root.rename(node.directory / "away")
        if leaves != "nothing":
            node.root.mkdir()

    # When the root has been walked, and before any of its files is opened.
    proxy.schedule = Schedule(faults=[Action(vanish, operations={"PutObject"}, key="/.probe/", count=1)])
    whats = [reason["what"] for reason in node.refuse()]
    assert ("the root is missing" if leaves == "nothing" else "the root is empty") in whats
    proxy.schedule = Schedule()
    if leaves != "nothing":
        node.root.rmdir()
    (node.directory / "away").rename(node.root)
    node.evacuate_safely()
    node.restores_to_the_same()


def test_what_was_read_back_wrongly_is_not_vouched_for_by_the_old_receipt(node: EngineNode, proxy: FaultProxy) -> None:
    node.fill({"a": b"A"})
    node.evacuate_safely()
    proxy.schedule = Schedule(faults=[CorruptedGet(key="/data/")])
    (reason,) = node.refuse("--read-back")
    assert reason["what"] == "the store holds something else than was sent"
    proxy.schedule = Schedule()
    assert "decamp/receipt.json" not in node.listing()
    assert node.verify().code == 5
    node.evacuate_safely()
    assert node.verify("--read-back").code == 0


def test_what_only_the_store_had_and_was_read_back_wrongly_is_named(node: EngineNode, proxy: FaultProxy) -> None:
    node.fill({"a": b"A", "b": b"B"})
    node.evacuate_safely()
    (node.root / "b").unlink()
    node.evacuate_safely()
    proxy.schedule = Schedule(faults=[CorruptedGet(key="/data/.*/b$")])
    outcome = node.evacuate("--read-back")
    assert outcome.code == 3, outcome
    (warning,) = outcome.document["warnings"]
    assert warning["path"] == str(node.root / "b")
    assert warning["what"] == "gone from the node, and now from the store too"


def test_a_key_that_no_manifest_can_name_is_told(node: EngineNode) -> None:
    node.fill({"a": b"A"})
    node.put("data/two\nlines", b"x")
    outcome = node.evacuate()
    assert outcome.code == 4 and "line break" in outcome.document["error"]["what"], outcome
    node.delete("data/two\nlines")
    node.evacuate_safely()


@pytest.mark.parametrize("key", ["decamp/entries.jsonl", "manifest-sha256.txt", "decamp/receipt.json"])
def test_a_run_that_ended_while_it_wrote_records_goes_on(node: EngineNode, proxy: FaultProxy, key: str) -> None:
    node.fill({"a": b"A", "b": MEBIBYTE * 2})
    node.evacuate_safely()
    node.fill({"c": b"C"})
    fault = End(node, proxy, signal.SIGKILL, start=0, operation="PutObject", key=key.replace(".", r"\."))
    assert end(node, proxy, node.evacuate_words(), fault) == -9
    verified = node.verify()
    assert (verified.code, verified.document["exit_code"]) == (5, 5) if key != "decamp/receipt.json" else True
    document = node.evacuate_safely()
    assert document["tiers"]["irreplaceable"]["sent_bytes"] == 0
    node.restores_to_the_same()


def test_a_restore_that_was_killed_is_continued(node: EngineNode, proxy: FaultProxy) -> None:
    node.fill({**PACKS, "large": MEBIBYTE * 40})
    node.evacuate_safely()
    destination = node.directory / "back"
    fault = End(node, proxy, signal.SIGKILL, start=3, operation="GetObject", key=r"/data/")
    assert end(node, proxy, ["restore", node.url, str(destination), "--quiet"], fault) == -9
    outcome = node.restore(destination)
    assert outcome.code == 0
    assert outcome.document["present"] > 0
    assert not list(destination.rglob(".decamp-*"))
    node.restores_to_the_same()


def test_a_second_run_at_the_same_time_is_refused(node: EngineNode, proxy: FaultProxy) -> None:
    node.fill({"a": b"A"})

    class RunAgain(Fault):
        code = 0

        def handle(self, request: Request, forward: Forward) -> Response:
            done = node.run_in_mounts("true", *node.evacuate_words())
            self.code = done.returncode
            assert "another evacuation of this archive is running here" in done.stderr
            return forward(request)

    again = RunAgain(start=3, count=1)
    proxy.schedule = Schedule(faults=[again])
    node.evacuate_safely()
    assert again.code == 3


def use_state_of(node: EngineNode, mount: str) -> str:
    node.state.mkdir(exist_ok=True)
    return f"mount -t tmpfs {mount} tmpfs '{node.state}'"


@pytest.mark.parametrize("option", ["-o size=48k", "-o size=400k", "-o ro", "-o size=4k"])
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_a_state_directory_that_cannot_be_used_is_one_message(
    node: EngineNode, option: str, more: tuple[str, ...]
) -> None:
    node.fill({f"{number:05d}{'n' * 200}": b"%d" % number for number in range(1500)})
    words = node.evacuate_words(*more)
    done = node.run_in_mounts(use_state_of(node, option), *words)
    assert done.returncode == 3
    assert done.stderr.count("\n") == 1
    assert "state directory" in done.stderr
    assert "DECAMP_STATE_DIR" in done.stderr
    assert "decamp/receipt.json" not in node.listing()
    node.evacuate_safely()
    node.restores_to_the_same()


def test_an_index_that_is_damaged_is_rebuilt(node: EngineNode) -> None:
    node.fill({f"{number:04d}": b"%d" % number for number in range(1500)})
    node.evacuate_safely()
    (path,) = node.state.glob("*.sqlite")
    content = bytearray(path.read_bytes())
    for start in range(8192, len(content), 4096):
        content[start : start + 64] = b"\xa5" * 64
    path.write_bytes(content)
    outcome = node.evacuate()
    assert outcome.code in (0, 3)
    if outcome.code == 3:
        assert "the index was damaged" in outcome.stderr
    assert node.evacuate_safely()["tiers"]["irreplaceable"]["sent_bytes"] == 0
    node.restores_to_the_same()


@pytest.mark.parametrize("command", ["verify", "restore", "ls"])
def test_a_full_temporary_directory_is_one_message(node: EngineNode, command: str) -> None:
    node.fill({f"{number:05d}{'n' * 200}": b"%d" % number for number in range(1500)})
    node.evacuate_safely()
    scratch = node.directory / "scratch"
    scratch.mkdir()
    node.environment["TMPDIR"] = str(scratch)
    words = [command, node.url, *([str(node.directory / "back")] if command == "restore" else []), "--json", "--quiet"]
    done = node.run_in_mounts(f"mount -t tmpfs -o size=64k tmpfs '{scratch}'", *words)
    assert done.returncode == 3, done
    assert done.stderr.count("\n") == 1
    assert "TMPDIR" in done.stderr
    assert list(Path(scratch).iterdir()) == []
    assert not (node.directory / "back").exists()
