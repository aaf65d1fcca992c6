"""Runs a playbook through ansible-runner and tells its progress a line at a time; no secret is written anywhere.

ansible-runner writes the environment it is given into its artifacts. So secrets are not in that environment: a launcher
reads them from a FIFO, which is memory of the kernel, and becomes ansible-playbook. Its private directory is removed.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from decamp.errors import EXIT_INTERRUPTED, BadInput, DecampError

CHECKOUT = Path(__file__).resolve().parent.parent
SECRET_NAME = re.compile(r"TOKEN|SECRET|PASSW|PASSPHRASE|ACCESS_KEY|CREDENTIAL|PRIVATE_KEY|API_KEY")
COLOUR = re.compile(r"\x1b\[[0-9;]*m")
LAUNCHER = (
    "import json, os, sys\n"
    "with open(sys.argv[1]) as pipe:\n"
    "    os.environ.update(json.load(pipe))\n"
    "os.execvp(sys.argv[2], sys.argv[2:])\n"
)
_FIFO_LIMIT_S = 60.0


class PlaybookFailure(DecampError):
    """A playbook ended without having done what it should."""


@dataclass(frozen=True)
class TaskFailure:
    """One task that failed on one host, and was not rescued."""

    host: str
    task: str
    message: str


@dataclass
class PlaybookResult:
    """How a playbook ended.

    Attributes:
        playbook: its file's name.
        exit_status: ansible-playbook's.
        seconds: how long it took.
        changed: {host: number of tasks that changed something}.
        failures: each task that failed or host that did not answer.
        messages: what `debug` tasks said on each host, in order: (host, task, text lines).
    """

    playbook: str
    exit_status: int = 1
    seconds: float = 0.0
    changed: dict[str, int] = field(default_factory=dict)
    failures: list[TaskFailure] = field(default_factory=list)
    messages: list[tuple[str, str, list[str]]] = field(default_factory=list)

    def raise_for_failure(self) -> None:
        """Raises PlaybookFailure with every failure's own words unless the playbook ended well."""
        if self.exit_status == 0:
            return
        told = "; ".join(f"{failure.host}: {failure.task}: {failure.message}" for failure in self.failures[:10])
        raise PlaybookFailure(
            self.playbook,
            f"ended with exit status {self.exit_status}",
            found=told or "no task that failed",
            run=f"ansible-playbook playbooks/{self.playbook}",
        )


class _Listener:
    """Turns ansible-runner's events into the result and into lines for a person."""

    def __init__(self, result: PlaybookResult, tell: Callable[[str], None]) -> None:
        self.result = result
        self.tell = tell
        self.pending: dict[tuple[str, str], TaskFailure] = {}
        self.words: list[str] = []

    def take(self, event: Mapping[str, Any]) -> bool:
        kind, data = str(event.get("event")), event.get("event_data") or {}
        host, task = str(data.get("host") or ""), str(data.get("task") or data.get("name") or "")
        said = data.get("res")
        outcome: dict[str, Any] = said if isinstance(said, dict) else {}
        if kind == "playbook_on_play_start":
            self.tell(f"{self.result.playbook}: {data.get('name')}")
        elif kind == "runner_on_ok":
            lines = read_debug_lines(outcome) if data.get("resolved_action", "").endswith(".debug") else []
            if lines:
                self.result.messages.append((host, task, lines))
                for line in lines:
                    self.tell(f"  {host} | {line}")
            elif outcome.get("changed"):
                self.tell(f"  {host} changed | {task}")
        elif kind in ("runner_on_failed", "runner_on_unreachable") and not data.get("ignore_errors"):
            failure = TaskFailure(host, task, str(outcome.get("msg") or outcome.get("stderr") or "no message").strip())
            if not (kind == "runner_on_unreachable" and outcome.get("ignore_unreachable")):
                self.pending[(host, task)] = failure
            self.tell(f"  {host} FAILED | {task}: {failure.message}")
        elif kind in ("verbose", "warning", "error") and str(event.get("stdout") or "").strip():
            # What action plugins show while a long command runs, and what Ansible says before the first play.
            line = COLOUR.sub("", str(event["stdout"])).rstrip()
            self.words = [*self.words, line.strip()][-20:]
            self.tell(line)
        elif kind == "playbook_on_stats":
            self.result.changed = {str(name): int(count) for name, count in (data.get("changed") or {}).items()}
            lost = set(data.get("failures") or {}) | set(data.get("dark") or {})
            self.result.failures = [failure for failure in self.pending.values() if failure.host in lost]
        return False  # the event's file is not written


def read_debug_lines(outcome: Mapping[str, Any]) -> list[str]:
    """Returns what a debug task said as lines of text."""
    message = outcome.get("msg")
    if isinstance(message, str):
        return message.splitlines()
    if isinstance(message, list):
        return [str(line) for line in message]
    return json.dumps(message, indent=1).splitlines() if message else []


@contextmanager
def _secrets_by_fifo(directory: Path, secrets: Mapping[str, str]) -> Iterator[Path]:
    """Yields a FIFO that gives the secrets to one reader; nobody waits for a reader that never comes."""
    fifo = directory / "secrets"
    os.mkfifo(fifo, 0o600)
    done = threading.Event()

    def serve() -> None:
        deadline = time.monotonic() + _FIFO_LIMIT_S
        while not done.is_set() and time.monotonic() < deadline:
            try:
                descriptor = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
            except OSError:
                time.sleep(0.02)
                continue
            os.set_blocking(descriptor, True)
            with os.fdopen(descriptor, "w") as pipe:
                pipe.write(json.dumps(dict(secrets)))
            return

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield fifo
    finally:
        done.set()
        thread.join(1)


def split_environment(environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Returns (what may be written, what may not) by the variables' names."""
    secret = {name: value for name, value in environment.items() if SECRET_NAME.search(name.upper())}
    return {name: value for name, value in environment.items() if name not in secret}, secret


def run_playbook(
    name: str,
    *,
    tell: Callable[[str], None],
    stack: str = "",
    inventory: str = "",
    limit: str = "",
    tags: Sequence[str] = (),
    extra_vars: Mapping[str, Any] | None = None,
    check: bool = False,
    environment: Mapping[str, str] | None = None,
) -> PlaybookResult:
    """Runs playbooks/NAME and returns how it ended; failing is not an exception here (`raise_for_failure`).

    Args:
        name: file in playbooks/, such as "site.yml".
        tell: is called with each progress line.
        stack: stack whose nodes are meant; empty for the selected one.
        inventory: another inventory than the stack's outputs.
        limit, tags, check: as ansible-playbook's options.
        extra_vars: variables; they are written to a file that is removed, so secrets do not belong here.
        environment: added to this process's environment; secrets in it are recognised by name and never written.

    Raises:
        BadInput: there is no such playbook, or ansible-runner is missing.
    """
    playbook = CHECKOUT / "playbooks" / name
    if not playbook.is_file():
        raise BadInput(str(playbook), "no such playbook", run="ls playbooks")
    try:
        from ansible_runner import Runner
        from ansible_runner.config.runner import RunnerConfig
    except ImportError:
        raise BadInput("ansible-runner", "not installed", run="make setup") from None
    settings = {**(environment or {}), "ANSIBLE_CONFIG": str(CHECKOUT / "ansible.cfg")}
    settings["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"
    if stack:
        settings["DECAMP_STACK"] = stack
    public, _ = split_environment(settings)
    _, secrets = split_environment({**os.environ, **settings})
    result = PlaybookResult(name)
    listener = _Listener(result, tell)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="decamp-run-") as place, _secrets_by_fifo(Path(place), secrets) as fifo:
        command_line = [f"--tags={','.join(tags)}"] * bool(tags) + ["--check"] * check
        config = RunnerConfig(
            private_data_dir=place,
            playbook=str(playbook),
            inventory=inventory or str(CHECKOUT / "inventories" / "stack.decamp"),
            limit=limit or None,
            extravars=dict(extra_vars or {}),
            envvars=public,
            cmdline=" ".join(command_line) or None,
            project_dir=str(CHECKOUT),
            quiet=True,
            suppress_env_files=True,
            settings={"suppress_output_file": True},
        )
        config.prepare()
        config.env = {key: value for key, value in config.env.items() if key not in secrets}
        # ansible-runner turns the check off unless told; it would win over ansible.cfg and the inventory.
        config.env["ANSIBLE_HOST_KEY_CHECKING"] = "True"
        config.command = [sys.executable, "-c", LAUNCHER, str(fifo), *config.command]
        runner = Runner(config, event_handler=listener.take, remove_partials=True)
        with _ended_by_signal(runner):
            _, code = runner.run()
            result.exit_status = 1 if code is None else code  # None: ended by a signal
    result.seconds = time.monotonic() - started
    if runner.status == "canceled":
        result.exit_status = EXIT_INTERRUPTED
    if result.exit_status and not result.failures:
        result.failures = list(listener.pending.values())
    if result.exit_status and not result.failures:
        # Nothing ran: the inventory or the playbook could not be read, and the words went to the output.
        result.failures = [
            TaskFailure("inventory", "read", " ".join(listener.words) or "ansible-playbook said nothing")
        ]
    return result


@contextmanager
def _ended_by_signal(runner: Any) -> Iterator[None]:
    """A SIGINT or SIGTERM ends ansible-playbook in order; a second run continues what was begun."""
    wanted = threading.Event()
    runner.cancel_callback = wanted.is_set
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    for number in before:
        signal.signal(number, lambda _number, _frame: wanted.set())
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
