"""A spot node is asked whether EC2 takes it back: two minutes are told, no answer is told as such, nothing fails."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from decamp.playbook import run_playbook
from decamp.rehearsal import addresses
from tests.roles.metadata_service import NOTICE, REBALANCE, MetadataService

ASK = Path(__file__).resolve().parents[2] / "roles" / "spot_notice" / "files" / "ask.py"


@pytest.fixture(scope="module")
def running() -> Iterator[MetadataService]:
    service = MetadataService()
    yield service
    service.stop()


@pytest.fixture
def service(running: MetadataService) -> MetadataService:
    running.reset()
    return running


def ask(url: str, timeout_s: float = 5.0, **environment: str) -> dict[str, Any]:
    """Asks as the role has it asked; whatever happens, the question itself ends with 0."""
    options = json.dumps({"url": url, "timeout_s": timeout_s})
    ended = subprocess.run(
        [sys.executable, str(ASK), options], capture_output=True, text=True, timeout=30, check=True, env=environment
    )
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


def test_no_notice_is_only_what_the_service_has_said(service: MetadataService) -> None:
    assert ask(service.url) == {"state": "none"}
    assert service.asked == [NOTICE, REBALANCE]


def test_notice_says_what_happens_and_when(service: MetadataService) -> None:
    service.answers[NOTICE] = '{"action": "terminate", "time": "2026-06-01T12:02:00Z"}'
    service.answers[REBALANCE] = '{"noticeTime": "2026-06-01T11:50:00Z"}'
    assert ask(service.url) == {"state": "notice", "action": "terminate", "time": "2026-06-01T12:02:00Z"}


def test_recommendation_to_leave_is_told_before_a_notice(service: MetadataService) -> None:
    service.answers[REBALANCE] = '{"noticeTime": "2026-06-01T11:50:00Z"}'
    assert ask(service.url) == {"state": "rebalance", "since": "2026-06-01T11:50:00Z"}


@pytest.mark.parametrize("body", ["", "terminate", "[]", "\x00\x01"])
def test_notice_that_cannot_be_read_is_not_taken_for_none(service: MetadataService, body: str) -> None:
    service.answers[NOTICE] = body
    answer = ask(service.url)
    assert answer["state"] == "unknown" and "expected a JSON object" in answer["why"]


def test_refused_token_is_unknown(service: MetadataService) -> None:
    service.token_status = 403  # as with http_endpoint disabled
    assert ask(service.url) == {"state": "unknown", "why": f"{service.url}/latest/api/token: status 403"}


def test_nobody_there_is_unknown_and_no_proxy_is_asked(service: MetadataService) -> None:
    nowhere = f"http://127.0.0.1:{addresses.find_free_ports(1)[0]}"
    answer = ask(nowhere, http_proxy=service.url)
    assert answer["state"] == "unknown" and "Connection refused" in answer["why"] and service.asked == []


def test_service_that_never_answers_is_unknown_within_the_limit(service: MetadataService) -> None:
    service.silent = threading.Event()
    began = time.monotonic()
    answer = ask(service.url, timeout_s=0.5)
    assert answer == {"state": "unknown", "why": f"no answer from {service.url} within 0.5 s"}
    assert time.monotonic() - began < 5


def show_status(directory: Path, purchase: str, url: str, **more: str) -> list[str]:
    """Plays status.yml on this machine as if it were a node of the target aws; returns its screen."""
    node = {"name": "gpu-1", "deadline": "2099-01-01T00:00:00Z", "purchase": purchase}
    host = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "stack_node": node}
    inventory = directory / f"{purchase}.yml"
    inventory.write_text(json.dumps({"all": {"children": {"aws": {"hosts": {"gpu-1": host}}}}}))
    variables = {"spot_notice_url": url, "spot_notice_timeout_s": 2, "node_status_workspace": str(directory), **more}
    result = run_playbook("status.yml", tell=lambda _line: None, inventory=str(inventory), extra_vars=variables)
    assert result.exit_status == 0, result.failures
    (screen,) = [lines for _, task, lines in result.messages if task.endswith("Show the node")]
    return screen


def test_status_shows_the_deadline_and_what_a_spot_node_is_told(service: MetadataService, tmp_path: Path) -> None:
    soon = (datetime.now(timezone.utc) + timedelta(seconds=100)).strftime("%Y-%m-%dT%H:%M:%SZ")
    service.answers[NOTICE] = json.dumps({"action": "terminate", "time": soon})
    screen = show_status(tmp_path, "spot", service.url)
    assert screen[0].endswith("left until 2099-01-01T00:00:00Z")
    assert screen[1].startswith("SPOT: EC2 is taking it back (terminate): ") and screen[1].endswith(f"until {soon}")
    service.silent = threading.Event()
    assert show_status(tmp_path, "spot", service.url)[1] == (
        f"spot: unknown whether EC2 is taking it back (no answer from {service.url} within 2 s)"
    )


def test_node_that_cannot_ask_is_unknown_and_fails_nothing(service: MetadataService, tmp_path: Path) -> None:
    screen = show_status(tmp_path, "spot", service.url, _spot_notice_options="{{ 'x' | no_such_filter }}")
    assert screen[1].startswith("spot: unknown whether EC2 is taking it back (the node could not ask: ")
    assert "no_such_filter" in screen[1] and service.asked == []


def test_node_that_is_no_spot_is_not_asked(service: MetadataService, tmp_path: Path) -> None:
    screen = show_status(tmp_path, "on_demand", service.url)
    assert service.asked == [] and not [line for line in screen if line.lower().startswith("spot")]
