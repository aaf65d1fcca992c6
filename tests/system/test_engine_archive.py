"""The archive is open to everybody's tools, notices what others do to it, and is known again after a loss."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import bags
from tests.system.engine_node import NOBODY, EngineNode

MEBIBYTE = os.urandom(1 << 20)
MANY = {f"many/{number:03d}": b"content %d" % number for number in range(130)}
RECEIPT = "decamp/receipt.json"
ENTRIES, OBJECTS = "decamp/entries.jsonl", "decamp/objects.jsonl"


def data_key(node: EngineNode, name: str) -> str:
    return f"data{node.root}/{name}"


def test_a_bag_is_read_with_everybodys_tools(node: EngineNode) -> None:
    node.fill({**MANY, "big ü": MEBIBYTE * 9, "50%\n": b"odd"})
    node.evacuate_safely()
    client, copy = node.access.connect(), node.directory / "copy"
    assert bags.validate(client, node.access.bucket, node.prefix, node.directory / "validated") == ""
    copy.mkdir()
    bags.download(client, node.access.bucket, node.prefix, copy)
    for manifest in ("manifest-sha256.txt", "tagmanifest-sha256.txt"):
        done = subprocess.run(
            ["sha256sum", "--check", "--strict", "--quiet", manifest],
            cwd=copy,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    packs = sorted((copy / "data/.packs").iterdir())
    assert packs
    (copy / "out").mkdir()
    for pack in packs:
        done = subprocess.run(["tar", "-xf", pack, "-C", copy / "out"], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
    for name in (*MANY, "50%\n"):
        assert Path(f"{copy}/out{node.root}/{name}").read_bytes() == (node.root / name).read_bytes()
    assert Path(f"{copy}/data{node.root}/big ü").read_bytes() == MEBIBYTE * 9


def test_a_member_can_be_fetched_out_of_a_pack_by_its_range(node: EngineNode) -> None:
    node.fill(MANY)
    node.evacuate_safely()
    lines = [json.loads(line) for line in node.get("decamp/entries.jsonl").splitlines()]
    entry = next(line for line in lines if line["path"].endswith("/many/077"))
    wanted = f"bytes={entry['offset']}-{entry['offset'] + entry['size'] - 1}"
    key = f"{node.prefix}/{entry['object']}"
    body = node.access.connect().get_object(Bucket=node.access.bucket, Key=key, Range=wanted)["Body"].read()
    assert body == MANY["many/077"]


def flip(node: EngineNode, key: str) -> None:
    body = bytearray(node.get(key))
    body[len(body) // 2] ^= 1
    node.put(key, bytes(body))


TAMPERINGS: dict[str, Callable[[EngineNode], object]] = {
    "same size": lambda node: flip(node, data_key(node, "big")),
    "shorter": lambda node: node.put(data_key(node, "big"), b"short"),
    "deleted": lambda node: node.delete(data_key(node, "a")),
    "added": lambda node: node.put("data/added", b"x"),
    "entries": lambda node: flip(node, "decamp/entries.jsonl"),
    "objects": lambda node: flip(node, "decamp/objects.jsonl"),
    "manifest": lambda node: flip(node, "manifest-sha256.txt"),
    "tag manifest": lambda node: flip(node, "tagmanifest-sha256.txt"),
    "bag-info": lambda node: node.delete("bag-info.txt"),
    "report": lambda node: flip(node, "decamp/report.html"),
    "receipt": lambda node: flip(node, RECEIPT),
    "no receipt": lambda node: node.delete(RECEIPT),
    "no tag manifest": lambda node: node.delete("tagmanifest-sha256.txt"),
}


@pytest.mark.parametrize("what", TAMPERINGS)
def test_what_others_do_to_an_archive_is_noticed_and_mended(node: EngineNode, what: str) -> None:
    node.fill({"a": b"A", "big": MEBIBYTE * 2})
    node.evacuate_safely()
    TAMPERINGS[what](node)
    verified = node.verify()
    assert verified.code == 5
    if "receipt" in what:
        assert verified.document["exit_code"] == 5
        assert "receipt" in verified.stderr
    else:
        assert not verified.document["holds"]
        assert verified.document["findings"]
    assert node.evacuate("--dry-run").code == 3
    document = node.evacuate_safely()
    assert document["unchanged"] is False
    assert node.verify("--read-back").code == 0
    node.restores_to_the_same()


def test_a_damaged_pack_names_exactly_its_damaged_members(node: EngineNode) -> None:
    node.fill(MANY)
    node.evacuate_safely()
    entry = node.entries()["many/042"]
    body = bytearray(node.get(entry["object"]))
    body[entry["offset"]] ^= 1
    node.put(entry["object"], bytes(body))
    destination = node.directory / "back"
    outcome = node.restore(destination)
    assert outcome.code == 5
    assert outcome.document["restored"] is False
    assert {finding["path"] for finding in outcome.document["findings"]} == {
        str(node.root / "many/042"),
        f"{node.url}/{entry['object']}",
    }
    back = Path(f"{destination}{node.root}/many")
    assert sorted(path.name for path in back.iterdir()) == [f"{number:03d}" for number in range(130) if number != 42]
    assert (back / "041").read_bytes() == MANY["many/041"]


@pytest.mark.parametrize("has_receipt", [True, False])
def test_a_lost_memory_is_rebuilt_from_the_archive(node: EngineNode, has_receipt: bool) -> None:
    node.fill({**MANY, "big": MEBIBYTE * 3})
    node.evacuate_safely()
    shutil.rmtree(node.state)
    if not has_receipt:
        node.delete(RECEIPT)
    node.fill({"new": b"new"})
    document = node.evacuate_safely()
    assert document["tiers"]["irreplaceable"]["sent_bytes"] == 3
    assert (document["tiers"]["irreplaceable"]["already_there"] == 0) is has_receipt
    assert node.verify("--read-back").code == 0
    node.restores_to_the_same()


RECORDS: dict[str, tuple[str, Callable[[bytes], bytes]]] = {
    "no JSON": (ENTRIES, lambda line: line[:-9]),
    "a time beyond all numbers": (ENTRIES, lambda line: re.sub(rb'"ctime_ns":', rb'"ctime_ns":99', line)),
    "a place that is none": (ENTRIES, lambda line: re.sub(rb'"mode"', rb'"offset":[0],"mode"', line)),
    "a link that is none": (ENTRIES, lambda line: re.sub(rb'"mode"', rb'"link_base64":[0],"mode"', line)),
    "a path with half a character": (ENTRIES, lambda line: re.sub(rb'"path":"', rb'"path":"/\\ud800', line)),
    "a deep line": (ENTRIES, lambda _: b"[" * 100_000 + b"\n"),
    "a checksum that is none": (
        OBJECTS,
        lambda line: re.sub(rb'"store_checksum":', rb'"store_checksum":{},"x":', line),
    ),
    "a size beyond all numbers": (OBJECTS, lambda line: re.sub(rb'"size":', rb'"size":99999999999999999999', line)),
    "an address that is none": (OBJECTS, lambda line: re.sub(rb'"etag"', rb'"url":7,"etag"', line)),
}


@pytest.mark.parametrize("what", RECORDS)
def test_records_without_a_receipt_that_cannot_be_understood_are_told(node: EngineNode, what: str) -> None:
    node.fill({"a": b"A", "b": b"B"})
    node.evacuate_safely()
    node.delete(RECEIPT)
    shutil.rmtree(node.state)
    key, change = RECORDS[what]
    node.put(key, b"".join(change(line) for line in node.get(key).splitlines(keepends=True)))
    for words in (["restore", node.url, str(node.directory / "back"), "--incomplete"], ["ls", node.url]):
        outcome = node.run(*words, "--json")
        assert (outcome.code, outcome.document["exit_code"]) == (5, 5), outcome
    document = node.evacuate_safely()
    assert [warning["what"] for warning in document["warnings"]] == [
        "the archive's own records are damaged; everything is read anew"
    ]
    node.restores_to_the_same()


def test_another_machine_trusts_nothing_of_the_first_but_sends_nothing_twice(node: EngineNode) -> None:
    node.fill({**MANY, "big": MEBIBYTE * 3})
    node.evacuate_safely()
    first = json.loads(node.get(RECEIPT))["host"]["machine_id"]
    (node.directory / "machine-id").write_text("f" * 32 + "\n")
    script = f"mount --bind '{node.directory}/machine-id' /etc/machine-id"
    shutil.rmtree(node.state)
    done = node.run_in_mounts(script, *node.evacuate_words())
    assert done.returncode == 0, done
    tier = json.loads(done.stdout)["tiers"]["irreplaceable"]
    assert (tier["sent_bytes"], tier["already_there"]) == (0, tier["bytes"])  # all of it was read again
    again = json.loads(node.run_in_mounts(script, *node.evacuate_words()).stdout)
    assert again["unchanged"] is True
    receipt = json.loads(node.get(RECEIPT))
    assert receipt["host"]["machine_id"] == "f" * 32 != first
    assert node.evacuate_safely()["unchanged"] is False  # the first machine again
    node.restores_to_the_same()


def test_the_receipt_is_signed_with_the_hosts_key(node: EngineNode) -> None:
    node.fill({"a": b"A"})
    ssh = node.directory / "ssh"
    ssh.mkdir()
    key = ssh / "ssh_host_ed25519_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True, timeout=30)
    done = node.run_in_mounts(f"mount --bind '{ssh}' /etc/ssh", *node.evacuate_words())
    assert done.returncode == 0, done
    receipt = json.loads(node.get(RECEIPT))
    public = " ".join(key.with_suffix(".pub").read_text().split()[:2])
    assert receipt["host"]["host_keys"] == [public]
    assert "BEGIN SSH SIGNATURE" in receipt["signature"]
    assert node.verify().code == 0


def test_what_lies_elsewhere_in_the_store_is_not_copied(node: EngineNode) -> None:
    client, bucket = node.access.connect(), node.access.bucket
    node.fill({"data/tokens": MEBIBYTE * 2, "other": MEBIBYTE * 2 + b"x", "small": b"here already", "a": b"A"})
    bags.put(client, bucket, "shared/sets/renamed", MEBIBYTE * 2)
    client.put_object(Bucket=bucket, Key="shared/small", Body=b"here already")
    client.put_object(Bucket=bucket, Key="shared/same-size", Body=b"x" * (2 << 20))
    node.more_spec = {"prefer_existing": [f"s3://{bucket}/shared/"]}
    document = node.evacuate_safely()
    assert document["tiers"]["irreplaceable"]["already_there"] == (2 << 20) + 12
    lines = node.get("fetch.txt").decode().splitlines()
    assert sorted(lines) == sorted(
        [
            f"s3://{bucket}/shared/sets/renamed {2 << 20} {data_key(node, 'data/tokens')}",
            f"s3://{bucket}/shared/small 12 {data_key(node, 'small')}",
        ]
    )
    assert data_key(node, "data/tokens") not in node.listing()
    assert bags.validate(client, bucket, node.prefix, node.directory / "validated") == ""
    assert node.verify().code == 0
    node.restores_to_the_same()
    assert node.evacuate_safely()["unchanged"] is True
    client.put_object(Bucket=bucket, Key="shared/small", Body=b"HERE already")
    assert node.verify().code == 5
    assert node.evacuate_safely()["tiers"]["irreplaceable"]["sent_bytes"] == 12
    node.restores_to_the_same()


def test_what_lies_elsewhere_is_named_no_longer_than_something_needs_it(node: EngineNode) -> None:
    client, bucket = node.access.connect(), node.access.bucket
    node.fill({"changes": b"here already", "goes": b"here as well"})
    for name, content in (("a", b"here already"), ("b", b"here as well")):
        bags.put(client, bucket, f"shared/{name}", content)
    node.more_spec = {"prefer_existing": [f"s3://{bucket}/shared/"]}
    node.evacuate_safely()
    node.fill({"changes": b"otherwise"})
    (node.root / "goes").unlink()  # it stays in the archive
    node.evacuate_safely()
    assert [line.split()[0] for line in node.get("fetch.txt").decode().splitlines()] == [f"s3://{bucket}/shared/b"]
    client.delete_object(Bucket=bucket, Key="shared/a")
    assert node.verify().code == 0
    assert bags.validate(client, bucket, node.prefix, node.directory / "validated") == ""
    assert node.evacuate_safely()["unchanged"] is True
    node.restores_to_the_same()


def test_who_is_not_root_reads_nothing_as_empty(node: EngineNode) -> None:
    node.fill({"a": b"A", "secret": b"S", "closed/x": b"X"})
    node.evacuate_safely()
    kept = node.listing("data/")
    for path in (node.root, node.root / "a"):
        os.chown(path, NOBODY, NOBODY)
    (node.root / "secret").chmod(0o600)
    (node.root / "closed").chmod(0o700)
    node.state.joinpath("x").touch()
    for path in (node.state, *node.state.iterdir()):
        os.chown(path, NOBODY, NOBODY)
    node.uid = NOBODY
    told = {reason["path"]: reason["what"] for reason in node.refuse()}
    assert told[str(node.root / "secret")] == "the file cannot be read"
    assert told[str(node.root / "closed")] == "the directory cannot be read"
    assert "open files of" in told["/proc"]
    assert node.listing("data/").keys() == kept.keys()
    node.uid = None
    assert node.entries()["closed/x"]["state"] == "proven"
    for path in (node.state, *node.state.iterdir()):
        os.chown(path, 0, 0)
    assert node.evacuate_safely()["tiers"]["irreplaceable"]["sent_bytes"] == 0
    node.restores_to_the_same()
