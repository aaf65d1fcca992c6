"""The role model on a booted host: its three sources in one play, the same again, and what it refuses."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from decamp.rehearsal import addresses, store_server
from tests.roles.gpu_host import GpuHost, Played, Step, booted
from tests.roles.gpu_machines import NO_GPU
from tests.roles.model_files import INDEX, SHARDS, make_model
from tests.roles.model_hub import Hub, serve_hub

COMMIT = "9a3e" + "7" * 36
KEY, SECRET, TOKEN = "AKIA" + secrets.token_hex(8), secrets.token_hex(20), "hf_" + secrets.token_hex(17)
MODEL = make_model(300_000)

Case = dict[str, Any]


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuHost]:
    with booted(tmp_path_factory.mktemp("node"), NO_GPU) as started:
        started.run("useradd --system --no-create-home decamp")
        started.copy("/srv/model", MODEL)
        yield started


@pytest.fixture(scope="module")
def hub() -> Iterator[Hub]:
    with serve_hub(Hub("maker/model", COMMIT, dict(MODEL), TOKEN)) as served:
        yield served


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a real store that holds the model."""
    import boto3

    directory = tmp_path_factory.mktemp("store")
    server = store_server.start(directory, "127.0.0.1", addresses.find_free_ports(1)[0], KEY, SECRET)
    client = boto3.client(
        "s3", endpoint_url=server.endpoint_url, aws_access_key_id=KEY, aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )  # fmt: skip
    client.create_bucket(Bucket="models")
    for path, content in MODEL.items():
        client.put_object(Bucket="models", Key=f"qwen/{path}", Body=content)
    yield server.endpoint_url
    store_server.destroy(directory)


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's secrets are in the environment of ansible-playbook, as README says."""
    for name, value in (("HF_TOKEN", TOKEN), ("AWS_ACCESS_KEY_ID", KEY), ("AWS_SECRET_ACCESS_KEY", SECRET)):
        monkeypatch.setenv(name, value)


def make_sources(hub: Hub, store: str) -> dict[str, Case]:
    return {
        "hub": {
            "model_source": "huggingface", "model_repository": hub.repository, "model_revision": COMMIT,
            "model_hub_endpoint": hub.endpoint,
        },
        "store": {
            "model_source": "store", "model_store_url": "s3://models/qwen", "model_store_endpoint": store,
            "model_store_region": "us-east-1",
        },
        "directory": {"model_source": "directory", "model_source_directory": "/srv/model"},
    }  # fmt: skip


def play_cases(node: GpuHost, cases: dict[str, Case], **options: Any) -> Played:
    """Runs the role once for each case in one play, each with a directory of its own."""
    common = {"model_free_after_bytes": 1}
    return node.play_steps(
        {name: Step("model", {**common, "model_directory": f"/models/{name}", **case}) for name, case in cases.items()},
        **options,
    )


def test_check_mode_fetches_nothing(node: GpuHost, hub: Hub, store: str) -> None:
    checked = play_cases(node, make_sources(hub, store), check=True)
    assert (checked.status, checked.failed) == (0, 0), checked.output
    assert checked.changed > 0
    assert node.run("ls -d /models /usr/local/lib/decamp/model", check=False).stdout == ""
    assert hub.sent == {}


def test_each_source_gives_the_whole_model_once_and_leaves_no_secret(
    node: GpuHost, hub: Hub, store: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = play_cases(node, make_sources(hub, store), arguments=["-vvv"])
    assert (first.status, first.failed) == (0, 0), first.output
    for name in make_sources(hub, store):
        node.run(f"cd /srv/model && find . -type f -exec cmp {{}} /models/{name}/{{}} ';' > /tmp/differs 2>&1")
        assert node.ask("cat /tmp/differs") == ""
    assert node.ask("find /models -not -user decamp") == "/models"
    assert hub.sent == {path: len(content) for path, content in MODEL.items()}
    kept = f"grep -rlsF -e {TOKEN} -e {SECRET} -e {KEY} /etc /home /models /opt /root /run /srv /tmp /usr/local /var"
    assert node.run(f"journalctl --sync; {kept}", check=False).stdout == ""
    assert not any(secret in first.output for secret in (TOKEN, SECRET, KEY))

    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    second = play_cases(node, make_sources(hub, store))
    assert (second.status, second.changed) == (0, 0), second.output
    assert hub.sent[SHARDS[0]] == len(MODEL[SHARDS[0]])


def test_what_is_damaged_on_the_node_is_made_whole(node: GpuHost, hub: Hub, store: str) -> None:
    node.run(f"truncate -s 70 /models/directory/{SHARDS[0]}; printf x >> /models/store/config.json")
    node.run(f"printf x | dd of=/models/hub/{SHARDS[1]} bs=1 seek=5000 conv=notrunc status=none")
    hub.sent = {}
    again = play_cases(node, make_sources(hub, store))
    assert (again.status, again.changed) == (0, 3), again.output
    node.run(f"cmp /srv/model/{SHARDS[0]} /models/directory/{SHARDS[0]}")
    node.run("cmp /srv/model/config.json /models/store/config.json")
    node.run(f"cmp /srv/model/{SHARDS[1]} /models/hub/{SHARDS[1]}")
    assert hub.sent == {SHARDS[1]: len(MODEL[SHARDS[1]])}


def test_what_cannot_be_right_is_refused_with_the_reason(node: GpuHost, hub: Hub, store: str) -> None:
    sources = make_sources(hub, store)
    hub.altered = {SHARDS[0]}
    node.run(f"cp -r /srv/model /srv/torn && truncate -s 1000 /srv/torn/{SHARDS[0]} && rm /srv/torn/{SHARDS[1]}")
    size = sum(len(content) for content in MODEL.values())
    cases = {
        "altered": sources["hub"],
        "full": {**sources["hub"], "model_free_after_bytes": 1 << 60},
        "stored": {**sources["store"], "model_free_after_bytes": 1 << 60},
        "foreign": {**sources["hub"], "model_repository": "maker/other"},
        "larger": {**sources["store"], "model_size_bytes": 1 << 60},
        "torn": {"model_source": "directory", "model_source_directory": "/srv/torn"},
        "nowhere": {"model_source": "directory", "model_source_directory": "/nowhere"},
        "branch": {**sources["hub"], "model_revision": "main"},
        "empty": {**sources["store"], "model_store_url": "s3://models/nothing"},
    }
    hub.sent = {}
    told = play_cases(node, cases, rescued=True)
    hub.altered = set()
    assert told.status == 0, told.output
    expected = {
        "altered": f"{SHARDS[0]}: not what the source lists: expected SHA-256 {hub.find_digest(SHARDS[0])}, found",
        "full": f"too little space: expected 1048576.0 TiB ({size / 1024:.1f} KiB of them to fetch), found",
        "stored": f"too little space: expected 1048576.0 TiB ({size / 1024:.1f} KiB of them to fetch), found",
        "larger": "/models/larger: too little space: expected 1048576.0 TiB (1048576.0 TiB of them to fetch), found",
        "torn": f"{SHARDS[0]}: not whole: expected {len(MODEL[SHARDS[0]])} bytes, found 1000",
        "nowhere": "/nowhere: no model on the node: expected its files, found no directory",
        "branch": "model_revision: expected a commit of 40 hexadecimal digits, found main",
        "foreign": "maker/other@" + COMMIT + ": the hub has no such repository, commit or file: found 404",
        "empty": "s3://models/nothing: no model: expected objects, found none",
    }
    missing = {name: told.tell(name) for name, words in expected.items() if words not in told.tell(name)}
    assert not missing
    assert f"{SHARDS[1]}: missing: 1 tensors of {INDEX} are in it" in told.tell("torn")
    assert all("run: " in told.tell(name) for name in cases)
    assert set(hub.sent) == set(MODEL)  # the case `altered` alone fetched anything
    assert node.run("ls -d /models/full /models/larger /models/nowhere /models/branch", check=False).stdout == ""
