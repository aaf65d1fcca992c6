"""The example job gives each prompt one completion, through kills; the stand-in fails as SGLang can."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from safetensors.numpy import load_file

from decamp.rehearsal import addresses

CHECKOUT = Path(__file__).resolve().parents[2]
STANDIN = CHECKOUT / "decamp/rehearsal/standin_server.py"
PROMPTS = 60


def ask(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:  # noqa: S310 - http to this machine
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code
    except OSError:
        return 0


def start_server(directory: Path, *options: str) -> tuple[subprocess.Popen[bytes], str]:
    port = addresses.find_free_ports(1)[0]
    command = [sys.executable, str(STANDIN), "serve", "--model-path", str(directory / "model"), "--port", str(port)]
    with (directory / "server.log").open("ab") as log:
        server = subprocess.Popen([*command, *options], stdout=log, stderr=log)
    return server, f"http://127.0.0.1:{port}"


def find_workers(url: str) -> list[int]:
    """Returns the processes with this server's port on their command line."""
    port = url.rsplit(":", 1)[1]
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if b"serve" in words and port.encode() in words:
            found.append(int(path.parent.name))
    return found


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    fortunes = tmp_path / "fortunes"
    fortunes.mkdir()
    entries = [
        f"The {n}th thing that I learned about the sea is that it is never the same sea twice." for n in range(90)
    ]
    (fortunes / "sea").write_text("\n%\n".join(entries))
    subprocess.run(
        [sys.executable, str(STANDIN), "build", "--prompts", str(fortunes), "--output", str(tmp_path / "model")],
        check=True,
        timeout=60,
    )
    return tmp_path


@pytest.fixture
def server_url(workspace: Path) -> Iterator[str]:
    server, url = start_server(workspace, "--tokens-per-second", "300", "--load-seconds", "0")
    yield url
    server.terminate()
    assert server.wait(20) == 0
    assert addresses.wait_for(lambda: not find_workers(url), lambda: True, 10)


def job_command(workspace: Path, url: str) -> list[str]:
    command = [sys.executable, str(CHECKOUT / "examples/completions/job.py"), "--workspace", str(workspace / "work")]
    command += ["--server", url, "--model", "m", "--fortunes", str(workspace / "fortunes"), "--limit", str(PROMPTS)]
    return [*command, "--shard-size", "20", "--concurrency", "4", "--max-tokens", "20", "--ready-limit-s", "30"]


def read_ids(workspace: Path) -> list[int]:
    shards = sorted((workspace / "work/data/completions").glob("shard_*.jsonl"))
    return [json.loads(line)["id"] for shard in shards for line in shard.read_text().splitlines()]


def test_a_killed_job_continues_exactly(workspace: Path, server_url: str) -> None:
    completions = workspace / "work/data/completions"
    for wanted in (10, 30):
        job = subprocess.Popen(job_command(workspace, server_url), stdout=subprocess.DEVNULL)
        assert addresses.wait_for(
            lambda wanted=wanted: sum(p.read_bytes().count(b"\n") for p in completions.glob("shard_*.jsonl")) >= wanted,
            lambda job=job: job.poll() is None,
            60,
        )
        job.send_signal(signal.SIGKILL)
        job.wait(10)
    with (completions / "shard_1.jsonl").open("ab") as torn:
        torn.write(b'{"id": 20, "prom')  # what a kill in the middle of a write leaves
    before = len(read_ids_whole(completions))
    done = subprocess.run(job_command(workspace, server_url), capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{before} done before" in done.stdout
    assert sorted(read_ids(workspace)) == list(range(PROMPTS))
    work = workspace / "work"
    for number in range(3):
        progress = json.loads((completions / f"progress_shard_{number}.json").read_text())
        assert (progress["done"], progress["total"], progress["complete"]) == (20, 20, True)
        with pa.memory_map(str(work / f"data/tokenized/shard_{number:05d}.arrow")) as source:
            table = pa.ipc.open_file(source).read_all()
        assert table.num_rows == 20
        assert all(0 < sum(mask) < len(mask) for mask in table["loss_mask"].to_pylist())
    tensors = load_file(work / "checkpoints/step_3/model.safetensors")
    assert abs(float(sum(2.718281828 ** tensors["unigram.log_probability"])) - 1) < 0.01
    assert (work / "data/hidden_states/layer_0/states.bin").exists()
    assert "| 2 | 20 | 20 |" in (work / "PROGRESS.md").read_text()


def read_ids_whole(completions: Path) -> set[int]:
    """The ids of whole lines, as a restarted job must see them."""
    whole = [line for path in completions.glob("shard_*.jsonl") for line in path.read_bytes().split(b"\n")[:-1]]
    return {json.loads(line)["id"] for line in whole}


def test_it_is_503_until_loaded_and_its_workers_outlive_a_killed_launcher(workspace: Path) -> None:
    server, url = start_server(workspace, "--load-seconds", "1.5", "--kv-cache-dtype", "fp8_e4m3")
    assert addresses.wait_for(lambda: ask(f"{url}/v1/models") == 200, lambda: server.poll() is None, 20)
    assert ask(f"{url}/health_generate") == 503
    assert addresses.wait_for(lambda: ask(f"{url}/health_generate") == 200, lambda: server.poll() is None, 20)
    server.kill()
    server.wait(10)
    assert ask(f"{url}/health_generate") == 200
    left = find_workers(url)
    assert left
    assert "not SGLang" in (workspace / "server.log").read_text()
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert addresses.wait_for(lambda: ask(f"{url}/v1/models") == 0, lambda: True, 10)


def test_a_server_that_never_becomes_ready_ends_the_job_with_what_it_said(workspace: Path) -> None:
    server, url = start_server(workspace, "--load-seconds", "60")
    time.sleep(0.5)
    command = job_command(workspace, url)
    command[command.index("--ready-limit-s") + 1] = "1"
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    server.terminate()
    server.wait(10)
    assert ended.returncode == 1
    assert "expected 200 within 1 s, found status 503" in ended.stdout
