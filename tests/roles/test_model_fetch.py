"""What the role model fetches with: whole or refused, continued where it ended, from a hub and from a real store."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from decamp.rehearsal import addresses, store_server
from tests.roles.model_files import INDEX, SHARDS, VOCABULARY, make_model, make_shard
from tests.roles.model_hub import Hub, serve_hub
from tests.roles.relay import Relay, relay_to

if TYPE_CHECKING:
    from mypy_boto3_s3 import S3Client

PROGRAM = Path(__file__).resolve().parents[2] / "roles/model/files/fetch_model.py"
COMMIT = "4f0c1b" + "0" * 34
KEY, SECRET, TOKEN = "AKIA" + secrets.token_hex(8), secrets.token_hex(20), "hf_" + secrets.token_hex(17)
IN_FLIGHT = (1 << 20) + 200_000  # what a killed fetch may lose of one file, and the answers' headers
MODEL = make_model()


def start_fetch(target: Path, *source: str, free_after: int = 0) -> subprocess.Popen[str]:
    command = [sys.executable, str(PROGRAM), "--target", str(target), "--identity", "it", "--free-after"]
    environment = {
        "PATH": os.environ["PATH"], "HF_TOKEN": TOKEN, "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_EC2_METADATA_DISABLED": "true",
    }  # fmt: skip
    return subprocess.Popen([*command, str(free_after), *source], env=environment, stderr=subprocess.PIPE, text=True)


def fetch(target: Path, *source: str, free_after: int = 0) -> tuple[int, str]:
    """Gives the exit status and what it said."""
    running = start_fetch(target, *source, free_after=free_after)
    said = running.communicate(timeout=60)[1]
    return running.returncode, said


def kill_when(running: subprocess.Popen[str], holds: Callable[[], bool]) -> None:
    assert addresses.wait_for(holds, lambda: running.poll() is None, 30)
    running.send_signal(signal.SIGKILL)
    running.communicate(timeout=10)


def measure(target: Path) -> int:
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def read_tree(target: Path) -> dict[str, bytes]:
    return {
        path.relative_to(target).as_posix(): path.read_bytes()
        for path in target.rglob("*")
        if path.is_file() and not path.name.startswith(".decamp")
    }


@pytest.fixture
def hub() -> Iterator[Hub]:
    with serve_hub(Hub("maker/model", COMMIT, dict(MODEL), TOKEN)) as served:
        yield served


def hub_source(hub: Hub, **others: str) -> list[str]:
    options = {"endpoint": hub.endpoint, "repository": hub.repository, "revision": hub.commit, **others}
    return ["huggingface", *(f"--{name}={value}" for name, value in options.items())]


class TestHub:
    def test_every_file_comes_once_and_the_token_goes_to_the_hub_alone(self, hub: Hub, tmp_path: Path) -> None:
        status, said = fetch(tmp_path, *hub_source(hub))
        assert status == 0, said
        assert read_tree(tmp_path) == MODEL
        assert hub.sent == {path: len(content) for path, content in MODEL.items()}
        assert hub.tokens_elsewhere == []
        assert TOKEN not in said
        assert not any(TOKEN.encode() in path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        assert fetch(tmp_path, *hub_source(hub))[0] == 0
        assert hub.sent[SHARDS[0]] == len(MODEL[SHARDS[0]])

    def test_a_lost_connection_is_continued_at_its_byte(self, hub: Hub, tmp_path: Path) -> None:
        hub.cut_off = {SHARDS[0]: 2_500_000, SHARDS[1]: 1, INDEX: 10}
        status, said = fetch(tmp_path, *hub_source(hub))
        assert status == 0, said
        assert read_tree(tmp_path) == MODEL
        assert hub.sent == {path: len(content) for path, content in MODEL.items()}

    def test_a_killed_fetch_is_continued_by_the_next(self, hub: Hub, tmp_path: Path) -> None:
        hub.slow = {SHARDS[0]}
        running = start_fetch(tmp_path, *hub_source(hub))
        kill_when(running, lambda: hub.sent.get(SHARDS[0], 0) > 2_000_000 and (tmp_path / SHARDS[1]).exists())
        assert not (tmp_path / SHARDS[0]).exists()
        hub.slow = set()
        status, said = fetch(tmp_path, *hub_source(hub))
        assert status == 0, said
        assert "(continued)" in said
        assert read_tree(tmp_path) == MODEL
        assert hub.sent[SHARDS[0]] <= len(MODEL[SHARDS[0]]) + IN_FLIGHT
        assert hub.sent[SHARDS[1]] == len(MODEL[SHARDS[1]])

    def test_wrong_content_is_refused_and_fetched_anew(self, hub: Hub, tmp_path: Path) -> None:
        hub.altered, hub.shortened = {SHARDS[0], "config.json"}, {SHARDS[1]}
        status, said = fetch(tmp_path, *hub_source(hub))
        assert status == 1
        size = len(MODEL[SHARDS[1]])
        assert f"{SHARDS[0]}: not what the source lists: expected SHA-256 {hub.find_digest(SHARDS[0])}, found" in said
        assert f"config.json: not what the source lists: expected git object {hub.find_digest('config.json')}" in said
        assert f"{SHARDS[1]}: not got: expected {size} bytes, found {size - 100} (no more)" in said
        assert not (tmp_path / SHARDS[0]).exists() and not (tmp_path / "config.json").exists()
        hub.altered, hub.shortened, hub.sent = set(), set(), {}
        assert fetch(tmp_path, *hub_source(hub))[0] == 0
        assert read_tree(tmp_path) == MODEL
        assert hub.sent == {SHARDS[0]: len(MODEL[SHARDS[0]]), "config.json": len(MODEL["config.json"]), SHARDS[1]: 100}

    def test_a_file_that_was_altered_on_the_disk_is_fetched_anew(self, hub: Hub, tmp_path: Path) -> None:
        assert fetch(tmp_path, *hub_source(hub))[0] == 0
        with (tmp_path / SHARDS[1]).open("r+b") as shard:
            shard.seek(-1, os.SEEK_END)
            shard.write(bytes([MODEL[SHARDS[1]][-1] ^ 255]))
        looked = subprocess.run(
            [sys.executable, str(PROGRAM.with_name("verify_model.py")), str(tmp_path), "it"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert looked.returncode == 1
        assert f"{SHARDS[1]}: written to since it was fetched" in looked.stdout
        hub.sent = {}
        assert fetch(tmp_path, *hub_source(hub))[0] == 0
        assert read_tree(tmp_path) == MODEL
        assert hub.sent == {SHARDS[1]: len(MODEL[SHARDS[1]])}

    def test_a_repository_without_one_of_its_shards_is_refused(self, hub: Hub, tmp_path: Path) -> None:
        del hub.files[SHARDS[1]]
        status, said = fetch(tmp_path, *hub_source(hub))
        assert status == 1
        assert f"{SHARDS[1]}: missing: 1 tensors of {INDEX} are in it" in said

    def test_a_shard_that_its_maker_cut_off_is_refused(self, hub: Hub, tmp_path: Path) -> None:
        hub.files[SHARDS[1]] = hub.files[SHARDS[1]][:-5]
        hub.files[SHARDS[0]] = make_shard("layers.7.weight", 50_000, 1)
        status, said = fetch(tmp_path, *hub_source(hub))
        assert status == 1
        size = len(MODEL[SHARDS[1]])
        assert f"{SHARDS[1]}: not whole: expected {size} bytes, found {size - 5}" in said
        assert f"{SHARDS[0]}: 1 tensors missing, such as layers.0.weight" in said

    def test_too_little_space_is_said_before_a_byte_is_fetched(self, hub: Hub, tmp_path: Path) -> None:
        status, said = fetch(tmp_path, *hub_source(hub), free_after=1 << 60)
        assert status == 1
        assert "too little space: expected 1073741824.0 GiB free (0.0 to fetch), found" in said
        assert hub.sent == {}

    def test_what_the_hub_refuses_is_told_with_what_to_do(self, hub: Hub, tmp_path: Path) -> None:
        told = fetch(tmp_path, *hub_source(hub, revision="1" * 40))
        assert told[0] == 1
        assert f"maker/model@{'1' * 40}: the hub has no such repository, commit or file: found 404 Invalid" in told[1]
        hub.token = "another"
        told = fetch(tmp_path, *hub_source(hub))
        assert told[0] == 1
        assert "the hub refuses: expected 200, found 401 Access to model maker/model is restricted." in told[1]
        assert "(a token was given); run: export HF_TOKEN=" in told[1]

    def test_a_hub_that_is_busy_is_asked_again_and_a_silent_one_is_told(
        self, hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        hub.busy = 2
        status, said = fetch(tmp_path, *hub_source(hub))
        assert status == 0, said
        assert hub.busy == 0
        monkeypatch.syspath_prepend(str(PROGRAM.parent))
        import fetch_files  # type: ignore[import-not-found]
        import hub_source as source  # type: ignore[import-not-found]

        waited: list[float] = []
        monkeypatch.setattr(fetch_files.time, "sleep", waited.append)
        nowhere = source.Hub(f"http://127.0.0.1:{addresses.find_free_ports(1)[0]}", "a/b", COMMIT, "")
        with pytest.raises(fetch_files.Refused, match=r"does not answer: .* after 5 tries: .*Connection refused"):
            fetch_files.ask_patiently(nowhere.list_files)
        assert waited == [0, 1, 2, 3]

    def test_another_commit_replaces_the_first(self, hub: Hub, tmp_path: Path) -> None:
        (tmp_path / "of-another-model.safetensors").write_bytes(b"x")
        (tmp_path / ".decamp-model.begun").write_text("another")
        assert fetch(tmp_path, *hub_source(hub))[0] == 0
        assert read_tree(tmp_path) == MODEL


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[store_server.StoreServer]:
    directory = tmp_path_factory.mktemp("store")
    yield store_server.start(directory, "127.0.0.1", addresses.find_free_ports(1)[0], KEY, SECRET)
    store_server.destroy(directory)


@pytest.fixture(scope="module")
def client(store: store_server.StoreServer) -> S3Client:
    import boto3
    from boto3.s3.transfer import TransferConfig

    made: S3Client = boto3.client(
        "s3", endpoint_url=store.endpoint_url, aws_access_key_id=KEY, aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )  # fmt: skip
    made.create_bucket(Bucket="models")
    for number, (path, content) in enumerate(MODEL.items()):
        if path == SHARDS[0]:  # as aws s3 cp and others put large files there
            local = store.directory / "shard"
            local.write_bytes(content)
            parts = TransferConfig(multipart_threshold=5 << 20, multipart_chunksize=5 << 20)
            made.upload_file(str(local), "models", f"qwen/{path}", Config=parts)
        elif number % 2:
            made.put_object(Bucket="models", Key=f"qwen/{path}", Body=content)
        else:
            made.put_object(Bucket="models", Key=f"qwen/{path}", Body=content, ChecksumAlgorithm="SHA256")
    return made


@pytest.fixture
def relay(store: store_server.StoreServer, client: S3Client) -> Iterator[Relay]:
    assert client
    with relay_to(store.host, store.port) as running:
        yield running


def store_source(endpoint_url: str, url: str = "s3://models/qwen") -> list[str]:
    return ["store", f"--url={url}", f"--endpoint-url={endpoint_url}", "--region=us-east-1"]


class TestStore:
    def test_every_object_comes_once_and_is_not_fetched_again(self, relay: Relay, tmp_path: Path) -> None:
        total = sum(map(len, MODEL.values()))
        status, said = fetch(tmp_path, *store_source(relay.endpoint_url))
        assert status == 0, said
        assert read_tree(tmp_path) == MODEL
        assert "attests no digest" not in said
        assert total < relay.passed < total + 100_000
        (tmp_path / "config.json").unlink()
        assert fetch(tmp_path, *store_source(relay.endpoint_url))[0] == 0
        assert read_tree(tmp_path) == MODEL
        assert relay.passed < total + 200_000

    def test_a_lost_connection_is_continued_at_its_byte(self, relay: Relay, tmp_path: Path) -> None:
        relay.cut_after = 4_000_000
        status, said = fetch(tmp_path, *store_source(relay.endpoint_url))
        assert status == 0, said
        assert relay.cut_after is None
        assert read_tree(tmp_path) == MODEL
        # What was on its way when the connection was lost is not in the file.
        assert relay.passed < sum(map(len, MODEL.values())) + 2 * IN_FLIGHT

    def test_a_killed_fetch_is_continued_by_the_next(self, relay: Relay, tmp_path: Path) -> None:
        relay.hold_after = 7_000_000
        running = start_fetch(tmp_path, *store_source(relay.endpoint_url))
        kill_when(running, lambda: measure(tmp_path) > 4_000_000)
        relay.hold_after = None
        relay.released.set()
        begun = measure(tmp_path)
        assert 4_000_000 < begun < 8_000_000
        before = relay.passed
        status, said = fetch(tmp_path, *store_source(relay.endpoint_url))
        assert status == 0, said
        assert read_tree(tmp_path) == MODEL
        assert relay.passed - before < sum(map(len, MODEL.values())) - begun + 200_000

    @pytest.mark.parametrize(("path", "kind"), [(SHARDS[0], "ETag"), (SHARDS[1], "ETag"), (VOCABULARY, "SHA-256")])
    def test_what_changes_on_its_way_is_refused(self, relay: Relay, tmp_path: Path, path: str, kind: str) -> None:
        relay.flip = MODEL[path][-40:]
        status, said = fetch(tmp_path, *store_source(relay.endpoint_url))
        assert status == 1
        assert f"{path}: not what the source lists: expected {kind}" in said
        assert not (tmp_path / path).exists()

    def test_shards_that_are_cut_off_or_missing_in_the_store_are_refused(
        self, store: store_server.StoreServer, client: S3Client, tmp_path: Path
    ) -> None:
        for path in (INDEX, "config.json"):
            client.put_object(Bucket="models", Key=f"torn/{path}", Body=MODEL[path])
        client.put_object(Bucket="models", Key=f"torn/{SHARDS[0]}", Body=MODEL[SHARDS[0]][:1000])
        status, said = fetch(tmp_path, *store_source(store.endpoint_url, "s3://models/torn"))
        assert status == 1
        assert f"{SHARDS[0]}: not whole: expected {len(MODEL[SHARDS[0]])} bytes, found 1000" in said
        assert f"{SHARDS[1]}: missing: 1 tensors of {INDEX} are in it" in said

    def test_space_and_an_empty_place_are_told(
        self, store: store_server.StoreServer, client: S3Client, tmp_path: Path
    ) -> None:
        assert client
        status, said = fetch(tmp_path, *store_source(store.endpoint_url), free_after=1 << 60)
        assert (status, read_tree(tmp_path)) == (1, {})
        assert "too little space" in said
        status, said = fetch(tmp_path, *store_source(store.endpoint_url, "s3://models/nothing"))
        assert status == 1
        assert "s3://models/nothing: no model: expected objects, found none" in said
