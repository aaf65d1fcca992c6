"""The roles from workspace to job on a booted host: run twice, in check mode, and with what goes wrong on nodes."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.roles.gpu_host import CHECKOUT, GpuHost, Played, Step, booted
from tests.roles.gpu_machines import NO_GPU

PORT = 30000
UNLOCKED = CHECKOUT / "examples/completions/requirements.in"
STRANGE = '100% of $HOME, "quoted" and back\\slashed'
LIMITS = "LimitNOFILE LimitMEMLOCK LimitCORE KillMode Restart NoNewPrivileges"
STANDIN = "/usr/local/lib/decamp/sglang/standin_server.py"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuHost]:
    with booted(tmp_path_factory.mktemp("node"), NO_GPU) as started:
        yield started


def settings(node: GpuHost, **others: Any) -> dict[str, Any]:
    model = "/models/current"
    return {
        "sglang_implementation": "standin",
        "sglang_host": node.address,
        "sglang_ready_limit_s": 60,
        "sglang_stop_timeout_s": 5,
        "sglang_restart_s": 0,
        "model_source": "script",
        "model_script": str(CHECKOUT / "decamp/rehearsal/standin_server.py"),
        "model_script_arguments": ["build", "--prompts", "/usr/share/games/fortunes", "--output", model],
        "model_directory": model,
        "model_free_after_bytes": 0,
        "workspace_min_free_bytes": 1,
        "job_server_url": f"http://{node.address}:{PORT}",
        "job_environment": {"STRANGE_NOTE": STRANGE},
        "job_restart_s": 0,
        **others,
    }


def play(node: GpuHost, *roles: str, check: bool = False, tags: str = "", **others: Any) -> Played:
    roles = roles or ("workspace", "model", "sglang", "job")
    return node.play(*roles, check=check, tags=tags, **settings(node, **others))


def stop(node: GpuHost, *steps: tuple[str, str]) -> Played:
    """Runs (role, tasks_from) steps."""
    return node.play_steps({f"{role} {part}": Step(role, settings(node), part) for role, part in steps})


def listeners(node: GpuHost) -> str:
    return node.run(f"ss -Hltnp 'src {node.address} and sport = :{PORT}'").stdout.strip()


def test_check_mode_on_a_bare_host_changes_nothing(node: GpuHost) -> None:
    played = play(node, check=True)
    assert (played.status, played.failed) == (0, 0), played.output
    assert played.changed > 5
    assert node.run("ls -d /workspace /models /etc/decamp /opt/decamp; getent passwd decamp", check=False).stdout == ""


def test_a_bare_host_serves_and_works_and_a_second_run_changes_nothing(node: GpuHost) -> None:
    first = play(node)
    assert (first.status, first.failed) == (0, 0), first.output
    assert (
        "503" not in node.run(f"curl -s -o /dev/null -w '%{{http_code}}' {node.address}:{PORT}/health_generate").stdout
    )
    node.run("timeout 60 sh -c 'until [ -s /workspace/data/completions/shard_0.jsonl ]; do sleep 0.2; done'")
    owners = node.run("find /workspace -not -user decamp; stat -c %a /etc/decamp/*.env").stdout.split()
    assert owners == ["600", "600"]
    limits = node.run(f"systemctl show sglang {' '.join(f'-p {name}' for name in LIMITS.split())}").stdout.split()
    assert sorted(limits) == [
        "KillMode=control-group", "LimitCORE=0", "LimitMEMLOCK=infinity", "LimitNOFILE=1048576",
        "NoNewPrivileges=yes", "Restart=on-failure",
    ]  # fmt: skip
    assert "launcher" in node.run("journalctl -u sglang -o cat").stdout
    assert "launcher" in node.run("cat /workspace/logs/sglang.log").stdout
    job = node.ask("systemctl show job-completions -p MainPID --value")
    assert f"STRANGE_NOTE={STRANGE}" in node.ask(f"tr '\\0' '\\n' < /proc/{job}/environ").splitlines()
    node.run(f"kill -9 {job}")
    node.run(
        "timeout 20 sh -c 'until [ $(systemctl show job-completions -p NRestarts --value) = 1 ]; do sleep 0.2; done'"
    )
    second = play(node)
    assert (second.status, second.changed) == (0, 0), second.output


def test_a_killed_server_comes_back_by_itself(node: GpuHost) -> None:
    before = node.run("systemctl show sglang -p MainPID --value").stdout.strip()
    node.run(f"kill -9 {before}")
    node.run(f"timeout 60 sh -c 'until curl -sf {node.address}:{PORT}/health_generate; do sleep 0.3; done'")
    assert node.run("systemctl show sglang -p MainPID --value").stdout.strip() not in ("", before)


def test_stop_leaves_nothing_of_job_and_server(node: GpuHost) -> None:
    stopped = stop(node, ("job", "stop"), ("sglang", "stop"))
    assert stopped.status == 0, stopped.output
    assert listeners(node) == ""
    states = node.run("systemctl is-active sglang job-completions", check=False).stdout.split()
    assert states == ["inactive", "inactive"]
    assert "stopping" in node.run("tail -3 /workspace/logs/sglang.log").stdout
    assert node.run("pgrep -u decamp -a", check=False).stdout == ""
    assert node.run("cat /sys/fs/cgroup/system.slice/sglang.service/cgroup.procs", check=False).stdout == ""


@pytest.fixture
def orphaned_workers(node: GpuHost) -> None:
    """Workers outside any unit, whose launcher was killed: they keep the port and a log in the workspace open."""
    command = f"python3 {STANDIN} serve --model-path /models/current --host {node.address} --port {PORT}"
    node.run(f"setsid runuser -u decamp -- {command} >> /workspace/logs/by_hand.log 2>&1 < /dev/null & sleep 0.1")
    node.run(f"timeout 60 sh -c 'until curl -sf {node.address}:{PORT}/health_generate; do sleep 0.3; done'")
    launcher = node.run(
        "sed -n 's/.*launcher \\([0-9]*\\) .*/\\1/p' /workspace/logs/by_hand.log | tail -1"
    ).stdout.strip()
    node.run(f"kill -9 {launcher}")
    assert node.run(f"curl -s -o /dev/null -w '%{{http_code}}' {node.address}:{PORT}/health_generate").stdout == "200"


@pytest.mark.usefixtures("orphaned_workers")
def test_a_taken_port_is_named_before_anything_changes(node: GpuHost) -> None:
    refused = play(node, "sglang")
    assert refused.status != 0
    assert refused.changed == 0
    refused.says(f"{node.address}:{PORT}: port taken", "standin_server.py", f"listens on {node.address}:{PORT}")


def test_what_escaped_its_launcher_is_ended(node: GpuHost) -> None:
    writers = "for p in /proc/[0-9]*; do readlink $p/fd/* 2>/dev/null; done | grep -c ^/workspace/logs/by_hand.log"
    assert int(node.run(writers).stdout) > 0
    ended = stop(node, ("sglang", "stop"), ("evacuation", "stop"))
    assert ended.status == 0, ended.output
    assert listeners(node) == ""
    assert node.run(writers, check=False).stdout.strip() == "0"


def test_another_users_writer_is_named_and_left(node: GpuHost) -> None:
    node.run("setsid sleep 120 > /workspace/logs/roots.log 2>&1 < /dev/null & echo $! > /run/writer.pid; sleep 0.2")
    played = stop(node, ("evacuation", "stop"))
    assert played.status == 0, played.output
    played.says("still write to the workspace", "sleep 120", "writes /workspace/logs/roots.log")
    node.run("kill $(cat /run/writer.pid); rm /workspace/logs/roots.log")


def test_a_port_that_another_process_keeps_is_named(node: GpuHost) -> None:
    server = f"python3 -m http.server --bind {node.address} --directory /run {PORT}"
    node.run(f"nohup {server} > /dev/null 2>&1 < /dev/null & echo $! > /run/server.pid; sleep 1")
    steps = {
        "strict": Step("sglang", settings(node), "stop"),
        "tolerant": Step("sglang", {**settings(node), "service_stop_tolerant": True}, "stop"),
    }
    told = node.play_steps(steps, rescued=True)
    named = f"sglang.service: stopped, but {node.address}:{PORT} is not free: expected no listener, found process"
    assert named in told.tell("strict")
    assert "http.server" in told.tell("strict")
    assert told.tell("tolerant").startswith("not refused"), told.output
    node.run("kill $(cat /run/server.pid)")


def test_models_200_is_not_ready(node: GpuHost) -> None:
    loading: dict[str, Any] = {"sglang_standin_arguments": ["--load-seconds", "600"], "sglang_ready_limit_s": 3}
    slow = play(node, "sglang", tags="configure,verify", **loading)
    assert slow.status != 0
    slow.says("not ready after 3 s: expected 200, found 503", "/v1/models: 200", "loading /models/current")


def test_a_server_that_dies_is_told_with_its_last_words(node: GpuHost) -> None:
    node.run("mv /models/current/statistics.json /models/current/elsewhere.json")
    dead = play(node, "sglang", tags="configure,verify")
    assert dead.status != 0
    dead.says("cannot be loaded", "statistics.json", "journalctl -u sglang.service")
    stopped = stop(node, ("sglang", "stop"))
    assert stopped.status == 0, stopped.output
    assert listeners(node) == ""


BAD_INPUT: list[tuple[str, dict[str, Any], str]] = [
    ("workspace", {"workspace_root": "/etc"}, "workspace_root: not usable"),
    ("workspace", {"workspace_min_free_bytes": 1 << 60}, "too little space: expected 1048576.0 TiB"),
    ("workspace", {"workspace_mount_required": True}, "on the root filesystem"),
    ("workspace", {"workspace_uid": 0}, "workspace_user: taken"),
    ("model", {"model_source": "huggingface", "model_repository": "a/b"}, "model_revision: expected a commit"),
    ("model", {"model_size_bytes": 1 << 60}, "/models/current: too little space"),
    ("sglang", {"sglang_environment": {"HF_TOKEN": "x"}}, "HF_TOKEN: looks like a secret"),
    ("sglang", {"sglang_preset": "b300"}, "sglang_preset: unknown: expected one of qwen3.6-27b-fp8_b200x8"),
    ("job", {"job_script": "missing.py"}, "job_source: no job"),
    ("job", {"job_environment": {"API_KEY": "x"}}, "API_KEY: looks like a secret"),
    ("job", {"job_requirements": str(UNLOCKED)}, "not locked: expected name==version with --hash"),
]


def test_bad_input_is_one_clear_message_and_no_change(node: GpuHost) -> None:
    steps = {str(n): Step(role, {**settings(node), **others}) for n, (role, others, _) in enumerate(BAD_INPUT)}
    told = node.play_steps(steps, rescued=True)
    assert (told.status, told.changed) == (0, 0), told.output
    missing = [(role, words) for n, (role, _, words) in enumerate(BAD_INPUT) if words not in told.tell(str(n))]
    assert not missing, told.output
    assert all("run: " in told.tell(str(n)) for n in range(len(BAD_INPUT)))
