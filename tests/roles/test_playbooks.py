"""Playbooks on a booted host and a real store: pinned keys, the stack's inventory, secrets, verdict, restore."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from decamp.playbook import PlaybookResult, run_playbook
from decamp.rehearsal import addresses, host, store_server
from tests.roles.gpu_host import GpuHost, booted
from tests.roles.gpu_machines import NO_GPU

KEY, SECRET = "AKIA" + secrets.token_hex(8), secrets.token_hex(20)


def connect(endpoint_url: str) -> Any:
    import boto3

    return boto3.client(
        "s3", endpoint_url=endpoint_url, aws_access_key_id=KEY, aws_secret_access_key=SECRET, region_name="us-east-1"
    )


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The endpoint of a real S3 server with an empty bucket `decamp`."""
    directory = tmp_path_factory.mktemp("store")
    server = store_server.start(directory, "127.0.0.1", addresses.find_free_ports(1)[0], KEY, SECRET)
    connect(server.endpoint_url).create_bucket(Bucket="decamp")
    yield server.endpoint_url
    store_server.destroy(directory)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GpuHost]:
    with booted(tmp_path_factory.mktemp("node"), NO_GPU) as started:
        yield started


def write_inventory(
    node: GpuHost, store: str, *, known_hosts: Path | None = None, extra_host: str = "", nodes: tuple[str, ...] = ()
) -> Path:
    """An inventory as the stack's plugin makes it, for one node of the target rehearsal; `nodes` are the stack's."""
    pinned = known_hosts or node.directory / "known_hosts"
    hosts: dict[str, Any] = {"node-1": {"ansible_host": node.address, "stack_node": {"name": "node-1", "deadline": ""}}}
    if extra_host:
        hosts[extra_host] = {"ansible_host": node.address}
    document = {
        "all": {
            "vars": {
                "stack_name": "test",
                "stack_target": "rehearsal",
                "stack_nodes": list(nodes or ["node-1"]),
                "stack_store": {"url": "s3://decamp/archive", "endpoint": store, "region": "us-east-1"},
                "ansible_user": "root",
                "ansible_ssh_private_key_file": str(node.private_key),
                "ansible_ssh_common_args": f"-o UserKnownHostsFile={pinned} -o GlobalKnownHostsFile=/dev/null "
                "-o StrictHostKeyChecking=yes -o IdentitiesOnly=yes",
                "ansible_control_path": f"{node.directory}/{secrets.token_hex(4)}",
            },
            "children": {"rehearsal": {"hosts": hosts}},
        }
    }
    path = node.directory / f"inventory-{secrets.token_hex(4)}.yml"
    path.write_text(json.dumps(document))
    return path


def play(name: str, inventory: Path, **options: Any) -> tuple[PlaybookResult, str]:
    lines: list[str] = []
    environment = {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_EC2_METADATA_DISABLED": "true"}
    result = run_playbook(name, tell=lines.append, inventory=str(inventory), environment=environment, **options)
    return result, "\n".join(lines)


def test_a_stack_that_cannot_be_read_is_an_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "backend").mkdir()
    monkeypatch.setenv("PULUMI_BACKEND_URL", f"file://{tmp_path}/backend")
    monkeypatch.setenv("PULUMI_CONFIG_PASSPHRASE", "x")
    result = run_playbook("status.yml", tell=lambda _line: None, stack="never-made")
    assert result.exit_status != 0
    assert "never-made" in result.failures[0].message
    assert "run: pulumi stack ls" in result.failures[0].message


def test_another_host_key_is_refused(node: GpuHost, store: str, tmp_path: Path) -> None:
    other = host.read_public_key(host.generate_key_pair(tmp_path / "other"))
    (tmp_path / "known_hosts").write_text(f"{node.address} {other}\n")
    result, told = play("evacuate.yml", write_inventory(node, store, known_hosts=tmp_path / "known_hosts"))
    assert result.exit_status != 0
    assert "Host key verification failed" in told
    assert "node-1: NOT SAFE" in told
    assert "the node does not answer" in told


def test_a_foreign_host_and_a_missing_one_stop_everything(node: GpuHost, store: str) -> None:
    result, told = play("evacuate.yml", write_inventory(node, store, extra_host="stranger"))
    assert result.exit_status != 0
    assert "foreign: stranger" in told
    assert not any(result.changed.values())
    inventory = write_inventory(node, store, nodes=("node-1", "node-2"))
    result, told = play("evacuate.yml", inventory)
    assert result.exit_status != 0
    assert "missing: node-2" in told
    assert not any(result.changed.values())
    # A part of the stack counts only when that was asked for, whatever a `false` on a command line is made of.
    limited, told = play("evacuate.yml", inventory, limit="node-1", extra_vars={"allow_partial": "false"})
    assert limited.exit_status != 0
    assert "missing: node-2" in told
    assert "run: without --limit and other inventories, or with -e allow_partial=true for these nodes alone" in told
    assert not any(limited.changed.values())


SMI = """#!/bin/sh
case "$*" in
*--query-gpu=index,name,utilization.gpu*--format=csv,noheader*)
    echo "0, NVIDIA B200, 97 %, 151234 MiB, 183359 MiB, 61, 812.40 W" ;;
*) echo "stand-in nvidia-smi: cannot: $*" >&2; exit 2 ;;
esac
"""
METRICS = """# TYPE sglang:gen_throughput gauge
sglang:gen_throughput{engine_type="unified",model_name="m",tp_rank="0"} 4321.5
sglang:num_running_reqs{engine_type="unified",model_name="m",tp_rank="0"} 12.0
"""


def serve_figures(node: GpuHost) -> None:
    """Puts a server in SGLang's place that gives figures as it does, and a GPU that is busy."""
    node.write("/usr/local/bin/nvidia-smi", SMI, "0755")
    node.write("/srv/figures/health", "")
    node.write("/srv/figures/metrics", METRICS)
    command = f"/usr/bin/python3 -m http.server --bind {node.address} --directory /srv/figures 30000"
    node.write("/etc/systemd/system/sglang.service", f"[Service]\nExecStart={command}\n")
    node.run("systemctl daemon-reload; systemctl start sglang")


def look(inventory: Path) -> list[str]:
    """Gives what status.yml shows of the node, which is a screen at most and changes nothing."""
    result, told = play("status.yml", inventory)
    assert result.exit_status == 0, told
    assert not any(result.changed.values())
    (lines,) = [lines for host, task, lines in result.messages if task == "Show the node"]
    assert len(lines) <= 24
    return lines


def test_the_status_of_a_node_with_nothing_on_it(node: GpuHost, store: str) -> None:
    lines = look(write_inventory(node, store))
    assert lines[0] == "node-1: no deadline"
    assert "sglang.service: not installed" in lines
    assert "job-completions.service: not installed" in lines
    assert any(line.startswith(f"server http://{node.address}:30000: no answer (") for line in lines)
    assert "GPU: none" in lines
    assert "/workspace: not there" in lines
    assert lines[-1].startswith("last evacuation: none that counts (s3://decamp/archive/node-1: there is no receipt")


def test_a_rental_ends_safe_with_no_secret_left_and_starts_again(node: GpuHost, store: str) -> None:
    inventory = write_inventory(node, store)
    # The whole of site.yml is the rehearsal's matter; what an evacuation needs is a workspace with content.
    node.run("useradd -r -u 8642 -M decamp; mkdir -p /workspace/data/hidden_states /workspace/logs")
    node.run(
        "seq 100000 > /workspace/data/numbers.txt; echo old > /workspace/data/hidden_states/x; mkdir /workspace/empty"
    )
    node.run("chown -R decamp:decamp /workspace")
    checked, told = play("evacuate.yml", inventory, check=True)
    assert checked.exit_status == 0, told
    assert "there is no verdict" in told
    assert node.run("ls -d /etc/decamp /opt/decamp", check=False).stdout == ""
    assert node.play("node_facts").status == 0
    record = node.ask("cat /etc/decamp/node-facts.json")
    safe, told = play("evacuate.yml", inventory)
    assert safe.exit_status == 0, told
    assert "node-1: SAFE in s3://decamp/archive/node-1" in told
    assert "irreplaceable" in told
    kept = connect(store).get_object(Bucket="decamp", Key="archive/node-1/decamp/system/node-facts.json")
    assert kept["Body"].read().decode().rstrip("\n") == record
    found = node.run(
        f"grep -rlsF -e {SECRET} -e {KEY} /etc /home /opt/decamp /root /run /srv /tmp /usr/local /var /workspace; "
        f"journalctl --no-pager | grep -cF -e {SECRET} -e {KEY}",
        check=False,
    ).stdout.split()
    assert found == ["0"]
    assert SECRET not in told

    serve_figures(node)
    node.write("/workspace/logs/job.log", "10 of 90 done, 3.2 a second, 25 s left\n")
    node.run("chown decamp:decamp /workspace/logs/job.log")
    node.run("rm -r /var/lib/decamp")  # what is in the store is enough to say how it stands
    lines = look(inventory)
    assert any(line.startswith("sglang.service: active (running) since ") for line in lines)
    assert f"server http://{node.address}:30000: healthy; gen_throughput 4321.5, num_running_reqs 12" in lines
    assert "GPU 0, NVIDIA B200, 97 %, 151234 MiB, 183359 MiB, 61, 812.40 W" in lines
    assert any(line.startswith("disk of /workspace: ") and line.endswith(" GiB free") for line in lines)
    assert "job.log: 10 of 90 done, 3.2 a second, 25 s left" in lines
    assert any(line.startswith("1 files, 0.0 MiB changed since ") and line.endswith("job.log") for line in lines)
    assert lines[-1].startswith("last evacuation: SAFE at ") and lines[-1].endswith(", the workspace changed since")
    node.run("mv /usr/local/bin/decamp /usr/local/bin/decamp.away")
    assert "unknown whether the workspace changed since (" in look(inventory)[-1]
    node.run("mv /usr/local/bin/decamp.away /usr/local/bin/decamp")

    node.run("setsid sh -c 'exec sleep 300 >> /workspace/data/numbers.txt' < /dev/null 2> /dev/null & sleep 0.2")
    unsafe, told = play("evacuate.yml", inventory)
    assert unsafe.exit_status != 0
    assert "node-1: NOT SAFE" in told
    assert "/workspace/data/numbers.txt" in told
    node.run("kill $(pgrep -f '^sleep 300')")
    # The rest of the stack may be gone or silent: what is here is evacuated when that is asked for.
    half = write_inventory(node, store, nodes=("node-1", "node-2"))
    partial, told = play("evacuate.yml", half, limit="node-1", extra_vars={"allow_partial": "true"})
    assert partial.exit_status == 0, told
    assert "node-1: SAFE in s3://decamp/archive/node-1" in told
    assert "node-2" not in told
    assert look(inventory)[-1].endswith(", nothing changed since")
    before = node.run(
        "cd /workspace && find . -path ./data/hidden_states -prune -o -printf '%p %y %m %U %T@\\n' | sort"
    ).stdout
    node.run("rm -rf /workspace")
    back, told = play("restore.yml", inventory, tags=["workspace", "evacuation", "restore"])
    assert back.exit_status == 0, told
    after = node.run(
        "cd /workspace && find . -path ./data/hidden_states -prune -o -printf '%p %y %m %U %T@\\n' | sort"
    ).stdout
    kept = [line for line in before.splitlines() if line.split()[1] != "d"]
    assert [line for line in after.splitlines() if line in kept] == kept
    assert node.run("find /workspace -not -user decamp").stdout == ""


STUCK_UNIT = "[Service]\nExecStart=/bin/sleep infinity\nExecStop=/bin/sleep 60\nTimeoutStopSec=90\n"
DEAD_GPU = """#!/bin/sh
echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
exit 9
"""


def test_neither_a_dead_gpu_nor_a_stuck_service_keeps_data_from_being_copied(node: GpuHost, store: str) -> None:
    inventory = write_inventory(node, store)
    serve_figures(node)
    node.write("/usr/local/bin/nvidia-smi", DEAD_GPU, "0755")
    node.run("echo 1 > /workspace/data/first.txt")
    safe, told = play("evacuate.yml", inventory, extra_vars={"sglang_implementation": "sglang"})
    assert safe.exit_status == 0, told
    assert "sglang.service: stopped, but GPU memory cannot be seen" in " ".join(told.split())
    assert "node-1: SAFE" in told

    node.write("/etc/systemd/system/sglang.service", STUCK_UNIT)
    node.run("systemctl daemon-reload; systemctl start sglang; echo 2 > /workspace/data/second.txt")
    stuck, told = play("evacuate.yml", inventory, extra_vars={"service_stop_timeout_s": 1})
    assert stuck.exit_status != 0
    assert "node-1: NOT SAFE" in told
    assert "sglang.service: not stopped: expected nothing of it left, found systemctl stop ended with 124" in told
    back = f"AWS_ACCESS_KEY_ID={KEY} AWS_SECRET_ACCESS_KEY={SECRET} decamp restore s3://decamp/archive/node-1 /tmp/back"
    back += f" --endpoint-url {store} --region us-east-1 --include /workspace/data/second.txt"
    assert "receipt" in node.run(back, check=False).stderr
    node.run(f"{back} --incomplete")
    assert node.ask("cat /tmp/back/workspace/data/second.txt") == "2"
    node.run("rm -r /tmp/back /etc/systemd/system/sglang.service; systemctl daemon-reload; systemctl reset-failed")


def test_a_store_that_is_down_is_not_safe(node: GpuHost, store: str) -> None:
    nowhere = f"http://127.0.0.1:{addresses.find_free_ports(1)[0]}"
    result, told = play("evacuate.yml", write_inventory(node, nowhere))
    assert result.exit_status != 0
    assert "node-1: NOT SAFE" in told
    assert nowhere.removeprefix("http://") in told
    assert store != nowhere
