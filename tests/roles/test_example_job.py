"""The example job gives each prompt one completion, through kills; the stand-in fails as SGLang can."""

from __future__ import annotations

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

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


def write_lines(path: Path, *rows: object, end: str = "\n") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(json.dumps(row) for row in rows) + end)
    return path


def run_job(workspace: Path, url: str, *options: str) -> subprocess.CompletedProcess[str]:
    command = job_command(workspace, url)
    del command[command.index("--limit") : command.index("--limit") + 2]
    return subprocess.run([*command, *options], capture_output=True, text=True, timeout=120, check=False)


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


def test_prompts_of_a_file_are_all_completed_with_its_numbers_or_by_place(workspace: Path, server_url: str) -> None:
    texts = [f"What is the {n}th thing about the sea?" for n in range(25)]
    mine = write_lines(workspace / "mine.jsonl", *({"prompt": text, "topic": "sea"} for text in texts), end="")
    done = run_job(workspace, server_url, "--prompts", str(mine))
    assert done.returncode == 0, done.stdout + done.stderr
    assert mine.read_text().count("\n") == 24  # the user's file is left as it is
    shards = sorted((workspace / "work/data/completions").glob("shard_*.jsonl"))
    rows = {row["id"]: row for shard in shards for row in map(json.loads, shard.read_text().splitlines())}
    assert [(rows[n]["prompt"], rows[n]["topic"]) for n in range(25)] == [(text, "sea") for text in texts]

    changed = write_lines(mine, *({"prompt": text} for text in texts[:-1]))
    refused = run_job(workspace, server_url, "--prompts", str(changed))
    assert refused.returncode == 2
    assert "mine.jsonl: other prompts than the job was begun with" in refused.stdout
    mine.unlink()
    assert "25 done before" in run_job(workspace, server_url, "--prompts", str(mine)).stdout
    kept = workspace / "work/data/prompts.jsonl"
    kept.write_text(kept.read_text().replace("3th", "third"))
    refused = run_job(workspace, server_url, "--prompts", str(mine))
    assert refused.returncode == 2
    assert "results would not fit together: they are of prompts_sha256" in refused.stdout


def test_prompts_may_lie_where_the_job_keeps_them(workspace: Path, server_url: str) -> None:
    rows = [{"id": 1000 - n, "prompt": f"Say {n}."} for n in range(5)]
    kept = write_lines(workspace / "work/data/prompts.jsonl", *rows, end="")
    done = run_job(workspace, server_url, "--prompts", str(kept))
    assert done.returncode == 0, done.stdout + done.stderr
    assert sorted(read_ids(workspace)) == [996, 997, 998, 999, 1000]


BAD_PROMPTS: list[tuple[list[object], str]] = [
    ([], "no prompts: expected a line for each, found none"),
    ([{"prompt": "a"}, {"text": "b"}], 'line 2: expected an object with a text "prompt", found {"text": "b"}'),
    ([{"prompt": "a", "id": 1}, {"prompt": "b"}], 'prompt 2: expected an integer "id" of its own, found null'),
    ([{"prompt": "a", "id": 1}, {"prompt": "b", "id": 1}], 'an integer "id" of its own, found 1 again'),
    ([{"prompt": "a", "id": True}], 'an integer "id" of its own, found true'),
]


@pytest.mark.parametrize(("rows", "words"), BAD_PROMPTS)
def test_bad_prompts_are_one_message(workspace: Path, rows: list[object], words: str) -> None:
    bad = write_lines(workspace / "bad.jsonl", *rows)
    ended = run_job(workspace, "http://127.0.0.1:9", "--prompts", str(bad))
    assert (ended.returncode, ended.stderr) == (2, "")
    assert f"{bad}: " in ended.stdout and words in ended.stdout
    assert not (workspace / "work/data/completions").exists()


def test_a_prompts_file_that_is_missing_or_torn_is_one_message(workspace: Path) -> None:
    ended = run_job(workspace, "http://127.0.0.1:9", "--prompts", str(workspace / "nowhere"))
    assert (ended.returncode, ended.stderr) == (2, "")
    assert "nowhere: no prompts: expected a JSONL file, found" in ended.stdout
    (workspace / "torn").write_text('{"prompt": "a"}\n{"prom')
    ended = run_job(workspace, "http://127.0.0.1:9", "--prompts", str(workspace / "torn"))
    assert (ended.returncode, ended.stderr) == (2, "")
    assert "torn: line 2: not JSON" in ended.stdout


class BusyServer(http.server.BaseHTTPRequestHandler):
    """Answers each prompt with 503 twice before it completes it, and counts how many it is asked at once."""

    protocol_version = "HTTP/1.1"
    lock = threading.Lock()
    asked: ClassVar[Counter[str]] = Counter()
    now = most = 0

    def do_GET(self) -> None:
        self.answer(200, {})

    def do_POST(self) -> None:
        kind = type(self)
        prompt = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["prompt"]
        with kind.lock:
            kind.asked[prompt] += 1
            kind.now += 1
            kind.most = max(kind.most, kind.now)
            is_busy = kind.asked[prompt] <= 2 or prompt == "Never."
        time.sleep(0.1)
        with kind.lock:
            kind.now -= 1
        choice = {"text": "Well, yes.", "finish_reason": "stop"}
        self.answer(503 if is_busy else 200, {"choices": [choice], "usage": {"completion_tokens": 3}})

    def answer(self, status: int, document: object) -> None:
        content = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_words: object) -> None:
        pass


def test_a_busy_server_is_asked_again_by_a_bounded_number_at_once_and_the_log_tells_the_time_left(
    workspace: Path,
) -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), BusyServer)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    mine = write_lines(workspace / "mine.jsonl", *({"prompt": f"Say {n}."} for n in range(60)), {"prompt": "Never."})
    done = run_job(workspace, f"http://127.0.0.1:{server.server_port}", "--prompts", str(mine))
    server.shutdown()
    server.server_close()
    assert done.returncode == 1, done.stdout + done.stderr
    assert "no completion after 6 tries, found status 503" in done.stdout
    assert "1 prompts have no completion; start the job again to try them" in done.stdout
    assert {BusyServer.asked[f"Say {n}."] for n in range(60)} == {3}
    assert BusyServer.asked["Never."] == 6
    assert BusyServer.most == 4
    assert re.search(r" \d+/61 completions, [\d.]+/s, \d+ tokens/s, [1-9]\d* s left", done.stdout)
    assert sorted(read_ids(workspace)) == list(range(60))
