"""The way out of a guard without proof is a person's word about one machine, and it reaches no further."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from decamp.rehearsal import host
from tests.system.guard_stack import GuardStack

NODE = "node-1"


@pytest.fixture(scope="module")
def stack(session_directory: Path) -> Iterator[GuardStack]:
    made = GuardStack(session_directory / "guard-release", [NODE])
    try:
        brought_up = made.up()
        assert brought_up.exit_code == 0, brought_up.output
        made.fill_workspace(NODE)
        yield made
    finally:
        made.remove()


def read_records(stack: GuardStack) -> dict[str, dict[str, str]]:
    client, bucket = stack.connect_store(), stack.store_url.removeprefix("s3://")
    listed = client.list_objects_v2(Bucket=bucket, Prefix=f"{NODE}/decamp/abandoned/").get("Contents", [])
    keys = [item["Key"] for item in listed]
    return {key: json.loads(client.get_object(Bucket=bucket, Key=key)["Body"].read()) for key in keys}


@pytest.mark.parametrize(
    ("arguments", "typed", "said"),
    [
        ([NODE, "--reason", "not needed"], "node-2\n", 'expected "node-1", found "node-2"'),
        ([NODE, "--reason", "not needed"], "", 'expected "node-1", found ""'),
        ([NODE, "--reason", "  "], f"{NODE}\n", "--reason: empty"),
        (["node-9", "--reason", "not needed"], "node-9\n", "expected one of: node-1"),
        ([NODE], f"{NODE}\n", "the following arguments are required: --reason"),
    ],
)
def test_nothing_is_given_up_by_a_slip(stack: GuardStack, arguments: list[str], typed: str, said: str) -> None:
    outcome = stack.decamp("abandon", *arguments, stdin=typed)
    assert outcome.exit_code == 2, outcome.output
    assert said in outcome.output and "Traceback" not in outcome.output, outcome.output
    assert read_records(stack) == {}


def test_host_whose_disk_is_gone_is_made_anew_only_when_it_was_given_up(stack: GuardStack) -> None:
    gone = host.status(stack.host_directory(NODE))
    assert gone is not None
    host.destroy(stack.host_directory(NODE))
    refreshed = stack.pulumi("refresh", "--yes", "--skip-preview")
    assert refreshed.exit_code == 0, refreshed.output
    refused = stack.up()
    assert refused.exit_code != 0 and f"decamp abandon {NODE} --reason" in refused.output, refused.output
    assert host.status(stack.host_directory(NODE)) is None
    given_up = stack.decamp("abandon", NODE, "--reason", "its disk is gone", stdin=f"{NODE}\n")
    assert given_up.exit_code == 0, given_up.output
    again = stack.up()
    assert again.exit_code == 0, again.output
    new = host.status(stack.host_directory(NODE))
    assert new is not None and new.running
    assert new.machine_id != gone.machine_id and new.host_key != gone.host_key
    (record,) = read_records(stack).values()
    assert (record["node"], record["machine_id"], record["host_key"]) == (NODE, gone.machine_id, gone.host_key)
    assert record["reason"] == "its disk is gone" and record["who"]
    assert datetime.now(timezone.utc) - datetime.fromisoformat(record["at"]) < timedelta(minutes=5)


def test_word_about_one_machine_does_not_hold_for_the_next(stack: GuardStack) -> None:
    stack.fill_workspace(NODE)
    refused = stack.destroy()
    assert refused.exit_code != 0 and "there is no receipt" in refused.output, refused.output
    assert stack.on_node(NODE, "cat /workspace/PROGRESS.md").stdout == "progress\n"


def test_word_given_long_ago_no_longer_holds(stack: GuardStack) -> None:
    before = read_records(stack)
    assert stack.decamp("abandon", NODE, "--reason", "a rehearsal of leaving", stdin=f"{NODE}\n").exit_code == 0
    ((key, record),) = [item for item in read_records(stack).items() if item[0] not in before]
    record["at"] = (datetime.now(timezone.utc) - timedelta(hours=25)).isoformat()
    bucket = stack.store_url.removeprefix("s3://")
    stack.connect_store().put_object(Bucket=bucket, Key=key, Body=json.dumps(record).encode())
    refused = stack.destroy()
    assert refused.exit_code != 0 and "the record no longer holds" in refused.output, refused.output


def test_node_that_was_given_up_goes(stack: GuardStack) -> None:
    assert stack.decamp("abandon", NODE, "--reason", "a rehearsal of leaving", stdin=f"{NODE}\n").exit_code == 0
    destroyed = stack.destroy()
    assert destroyed.exit_code == 0, destroyed.output
    assert stack.resources() == {}
    assert not stack.host_directory(NODE).exists()
    assert len(read_records(stack)) == 2
