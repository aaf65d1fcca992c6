"""The role job on a booted host and a real store: inputs, prompts, what is refused, and jobs that do not run."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from decamp.rehearsal import addresses, store_server
from tests.roles.gpu_host import GpuHost, Played, Step, booted
from tests.roles.gpu_machines import NO_GPU

KEY, SECRET = "AKIA" + secrets.token_hex(8), secrets.token_hex(20)
PROMPTS = "".join(json.dumps({"prompt": f"Say {n}."}) + "\n" for n in range(30))


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuHost]:
    with booted(tmp_path_factory.mktemp("node"), NO_GPU) as started:
        yield started


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a real store that holds prompts."""
    import boto3

    directory = tmp_path_factory.mktemp("store")
    server = store_server.start(directory, "127.0.0.1", addresses.find_free_ports(1)[0], KEY, SECRET)
    client = boto3.client(
        "s3", endpoint_url=server.endpoint_url, aws_access_key_id=KEY, aws_secret_access_key=SECRET,
        region_name="us-east-1",
    )  # fmt: skip
    client.create_bucket(Bucket="data")
    client.put_object(Bucket="data", Key="mine/prompts.jsonl", Body=PROMPTS.encode())
    yield server.endpoint_url
    store_server.destroy(directory)


@pytest.fixture(autouse=True)
def operator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The operator's keys are in the environment of ansible-playbook."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)


def settings(node: GpuHost, store: str, **others: Any) -> dict[str, Any]:
    return {
        "workspace_min_free_bytes": 1, "job_store_endpoint": store, "job_store_region": "us-east-1",
        "job_settle_s": 2, "job_stop_timeout_s": 5, "sglang_host": node.address, "sglang_port": 30007, **others,
    }  # fmt: skip


def play(node: GpuHost, store: str, *roles: str, check: bool = False, **others: Any) -> Played:
    return node.play(*(roles or ("job",)), check=check, **settings(node, store, **others))


def make_job(directory: Path, text: str) -> dict[str, Any]:
    """A job of one file that needs no packages."""
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "work.py").write_text(text)
    return {"job_name": "own", "job_source": str(directory), "job_script": "work.py", "job_requirements": ""}


def test_without_a_workspace_it_says_what_it_misses(node: GpuHost, store: str) -> None:
    told = play(node, store)
    assert (told.status, told.changed) == (2, 0), told.output
    told.says("no workspace: expected the user decamp and what logs, found no such user; run: the role workspace")


def test_prompts_come_from_the_store_once_and_leave_no_key(node: GpuHost, store: str) -> None:
    wanted = {"job_prompts": "s3://data/mine/prompts.jsonl"}
    checked = play(node, store, "workspace", "job", check=True, **wanted)
    assert checked.status == 0, checked.output
    assert node.run("ls -d /workspace", check=False).stdout == ""
    first = play(node, store, "workspace", "job", **wanted)
    assert first.status == 0, first.output
    assert node.ask("cat /workspace/data/inputs/prompts.jsonl") == PROMPTS.rstrip("\n")
    assert node.ask("find /workspace -not -user decamp") == ""
    node.run("timeout 30 sh -c 'until [ -s /workspace/data/prompts.jsonl ]; do sleep 0.2; done'")
    assert json.loads(node.ask("head -1 /workspace/data/prompts.jsonl")) == {"id": 0, "prompt": "Say 0."}
    # The server that site.yml would have made is asked where its own variables put it.
    unit = node.ask("cat /etc/systemd/system/job-completions.service")
    assert f'"--server" "http://{node.address}:30007" "--model" "model"' in unit
    places = "/etc /home /opt/decamp /root /run /srv /tmp /usr/local /var /workspace"
    assert node.run(f"journalctl --sync; grep -rlsF -e {SECRET} -e {KEY} {places}", check=False).stdout == ""
    assert SECRET not in first.output
    second = play(node, store, "workspace", "job", **wanted)
    assert (second.status, second.changed) == (0, 0), second.output


def test_what_it_cannot_work_with_is_refused_before_anything_changes(node: GpuHost, store: str) -> None:
    cases: dict[str, tuple[dict[str, Any], str]] = {
        "object": ({"job_prompts": "s3://data/none.jsonl"}, "s3://data/none.jsonl: the store does not show it"),
        "prefix": ({"job_prompts": "s3://data/mine/"}, "job_inputs: expected s3://bucket/key for each url"),
        "relative": ({"job_prompts": "mine.jsonl"}, "absolute path for job_prompts, found mine.jsonl"),
        "outside": (
            {"job_inputs": [{"url": "s3://data/k", "path": "/etc/k"}]},
            "a path in the workspace for each path",
        ),
    }
    steps = {name: Step("job", settings(node, store, **others)) for name, (others, _) in cases.items()}
    told = node.play_steps(steps, rescued=True)
    assert (told.status, told.changed) == (0, 0), told.output
    missing = {name: told.tell(name) for name, (_, words) in cases.items() if words not in told.tell(name)}
    assert not missing
    assert all("run: " in told.tell(name) for name in cases)


def test_a_job_that_fails_after_a_moment_does_not_count_as_running(node: GpuHost, store: str, tmp_path: Path) -> None:
    fails = make_job(tmp_path, "import sys, time\ntime.sleep(0.7)\nsys.exit('no more')\n")
    told = play(node, store, **fails)
    assert told.status != 0
    told.says("job-own.service: the job does not run: expected it active for 2 s, found ActiveState=", "no more")

    wrong = make_job(tmp_path, "import sys\nprint('what is --this?')\nsys.exit(2)\n")
    told = play(node, store, **wrong)
    assert told.status != 0
    told.says("what is --this?")
    shown = node.ask("systemctl show job-own -p ActiveState -p NRestarts")
    assert sorted(shown.split()) == ["ActiveState=failed", "NRestarts=0"]

    ends = make_job(tmp_path, "print('done')\n")
    well = play(node, store, **ends)
    assert well.status == 0, well.output
