"""A guard lets its node go on evidence alone: each thing that is wrong with it is refused, then the real thing goes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from decamp.receipt import seal
from decamp.rehearsal import host, store_server
from decamp.ssh import run_remote
from tests.system.guard_stack import GuardStack

NODE = "node-1"


@pytest.fixture(scope="module")
def fresh(session_directory: Path) -> Iterator[GuardStack]:
    """One node with work on it that was never evacuated."""
    made = GuardStack(session_directory / "guard-evidence", [NODE])
    try:
        brought_up = made.up()
        assert brought_up.exit_code == 0, brought_up.output
        made.fill_workspace(NODE)
        made.install_decamp(NODE)
        yield made
    finally:
        made.remove()


@pytest.fixture(scope="module")
def evacuated(fresh: GuardStack) -> GuardStack:
    """The same node, evacuated for real; what a test breaks it puts right again."""
    refused = fresh.destroy()
    assert refused.exit_code != 0 and "there is no receipt" in refused.output, refused.output
    assert "4 files" in refused.output, refused.output
    fresh.evacuate(NODE)
    return fresh


def assert_refused(stack: GuardStack, *reasons: str, credentials: bool = True) -> str:
    """A destroy is refused for these reasons, and nothing is gone from the state."""
    before = stack.resources()
    outcome = stack.destroy(credentials=credentials)
    assert outcome.exit_code != 0, outcome.output
    assert "Traceback" not in outcome.output, outcome.output
    for reason in reasons:
        assert reason in outcome.output, outcome.output
    assert f"decamp abandon {NODE} --reason" in outcome.output
    assert stack.resources() == before
    return outcome.output


@contextmanager
def replaced_object(stack: GuardStack, key: str, body: bytes) -> Iterator[None]:
    """The object has another content for a while."""
    client, bucket = stack.connect_store(), stack.store_url.removeprefix("s3://")
    held = client.get_object(Bucket=bucket, Key=key, ChecksumMode="ENABLED")
    content = held["Body"].read()
    assert content != body
    client.put_object(Bucket=bucket, Key=key, Body=body)
    try:
        yield
    finally:
        client.put_object(Bucket=bucket, Key=key, Body=content, ChecksumSHA256=held.get("ChecksumSHA256", ""))


def find_payload(stack: GuardStack) -> tuple[str, bytes]:
    client, bucket = stack.connect_store(), stack.store_url.removeprefix("s3://")
    listed = client.list_objects_v2(Bucket=bucket, Prefix=f"{NODE}/data/")["Contents"]
    key = max(item["Key"] for item in listed)
    return key, client.get_object(Bucket=bucket, Key=key)["Body"].read()


def test_file_changed_after_the_evacuation(evacuated: GuardStack) -> None:
    evacuated.on_node(NODE, "cp -a /workspace/PROGRESS.md /root/held && echo more >> /workspace/PROGRESS.md")
    assert_refused(evacuated, "the workspace has changed since it was evacuated at")
    evacuated.on_node(NODE, "cp -a /root/held /workspace/PROGRESS.md && rm /root/held")
    evacuated.evacuate(NODE)


def test_file_open_for_writing(evacuated: GuardStack) -> None:
    evacuated.on_node(NODE, "systemd-run --quiet --unit=writer sh -c 'exec 3>>/workspace/PROGRESS.md; sleep 300'")
    assert_refused(evacuated, f"{NODE}:/workspace/PROGRESS.md: open for writing by")
    evacuated.on_node(NODE, "systemctl stop writer")


def test_object_of_the_archive_tampered_with(evacuated: GuardStack) -> None:
    key, content = find_payload(evacuated)
    same_size = bytes([content[0] ^ 1]) + content[1:]
    with replaced_object(evacuated, key, same_size):
        assert_refused(evacuated, f"{evacuated.store_url}/{key}: the object")


def test_receipt_that_only_the_store_s_keys_have_written(evacuated: GuardStack) -> None:
    """Whoever has the store's keys can write a whole receipt, but not sign it with the node's host key."""
    client, bucket = evacuated.connect_store(), evacuated.store_url.removeprefix("s3://")
    key = f"{NODE}/decamp/receipt.json"
    receipt = json.loads(client.get_object(Bucket=bucket, Key=key)["Body"].read())
    for seal_field in ("receipt_sha256", "signature"):
        receipt.pop(seal_field)
    receipt["host"]["machine_id"] = "0" * 32
    own_key = evacuated.directory / "forger"
    host.generate_key_pair(own_key)
    with replaced_object(evacuated, key, seal(receipt, own_key)):
        assert_refused(evacuated, "the receipt has another machine id", "the receipt is not signed by the node")


def test_node_that_has_another_machine_id(evacuated: GuardStack) -> None:
    evacuated.on_node(
        NODE, "cp -a /etc/machine-id /root/held && echo 0123456789abcdef0123456789abcdef > /etc/machine-id"
    )
    assert_refused(evacuated, f"{NODE}: another machine id: expected", "found 0123456789abcdef0123456789abcdef")
    evacuated.on_node(NODE, "cat /root/held > /etc/machine-id")


def test_address_that_shows_another_host_key(evacuated: GuardStack) -> None:
    """sshd answers with another key until it is told, over that key, to take its own again."""
    other_key = evacuated.on_node(NODE, "ssh-keygen -q -t ed25519 -N '' -f /root/other && cat /root/other.pub").stdout
    own = evacuated.target(NODE)
    swap = "cd /etc/ssh && mkdir -p /root/own && mv ssh_host_ed25519_key* /root/own/ && "
    swap += (
        "mv /root/other ssh_host_ed25519_key && mv /root/other.pub ssh_host_ed25519_key.pub && systemctl restart ssh"
    )
    evacuated.on_node(NODE, f"systemd-run --quiet --wait sh -c '{swap}'")
    try:
        output = assert_refused(evacuated, "another host key at", f"expected {own.host_key}")
        assert " ".join(other_key.split()[:2]) in output
    finally:
        run_remote(replace(own, host_key=" ".join(other_key.split()[:2])), "mv /root/own/* /etc/ssh/", 60)
        evacuated.restart_sshd(NODE)


def test_store_that_is_down(evacuated: GuardStack) -> None:
    store_server.stop(evacuated.rehearsal / "store")
    assert_refused(evacuated, "the store cannot be reached")
    again = evacuated.up()
    assert again.exit_code == 0, again.output


def test_credentials_that_are_missing(evacuated: GuardStack) -> None:
    assert_refused(evacuated, "no credentials for the store", "export AWS_ACCESS_KEY_ID=", credentials=False)


def test_node_that_was_killed_is_refused_and_put_back(evacuated: GuardStack) -> None:
    before = evacuated.boot_id(NODE)
    host.stop(evacuated.host_directory(NODE))
    assert "would be lost: whatever node-1 holds" in assert_refused(evacuated, "no answer from")
    preview = evacuated.pulumi("preview")
    assert "node-1-host update" in preview.output and "guard replace" not in preview.output, preview.output
    again = evacuated.up()
    assert again.exit_code == 0, again.output
    assert evacuated.boot_id(NODE) == before


def test_guard_that_an_up_took_away_while_the_archive_held(evacuated: GuardStack) -> None:
    """The host itself is asked for once more: it has gone on working since."""
    evacuated.use_unguarded_program(with_nodes=True)
    without = evacuated.up()
    assert without.exit_code == 0, without.output
    assert not any("Guard::" in urn for urn in evacuated.resources())
    evacuated.on_node(NODE, "echo more > /workspace/later.md")
    refused = evacuated.destroy()
    assert refused.exit_code != 0, refused.output
    assert "the workspace has changed since it was evacuated at" in refused.output
    assert evacuated.urn("node-1-host") and evacuated.on_node(NODE, "cat /workspace/later.md").stdout == "more\n"
    evacuated.use_program("infra")
    again = evacuated.up()
    assert again.exit_code == 0, again.output
    evacuated.evacuate(NODE)


def test_destroy_after_the_evacuation(evacuated: GuardStack) -> None:
    outcome = evacuated.destroy()
    assert outcome.exit_code == 0, outcome.output
    assert evacuated.resources() == {}
    assert not evacuated.host_directory(NODE).exists()
    endpoint = f"http://127.0.0.1:{evacuated.store_port}"
    verified = evacuated.decamp("verify", f"{evacuated.store_url}/{NODE}", "--endpoint-url", endpoint)
    assert verified.exit_code == 0, verified.output
