"""Runs of the real engine as processes that can be killed at any moment."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

REPOSITORY = Path(__file__).resolve().parent.parent.parent
START_TIMEOUT_S = 60.0
HELPERS_END_S = 3.0


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `code` is negative for a signal; `hung` says that it was killed for taking too long."""

    code: int
    stdout: str
    stderr: str
    seconds: float
    hung: bool
    left_behind: bool

    @property
    def document(self) -> dict[str, Any]:
        """The document of --json; empty when there is none."""
        try:
            found = json.loads(self.stdout)
        except ValueError:
            return {}
        return found if isinstance(found, dict) else {}


class Engine:
    """Starts `decamp` commands, one at a time. Use as a context manager.

    Args:
        mutants: names of the defects (`tests.faults.mutants`) that the engine is to have.
    """

    def __init__(self, mutants: Sequence[str] = ()) -> None:
        self.mutants = list(mutants)
        self._lock = threading.Lock()
        self._pid = 0
        self._zygote: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def __enter__(self) -> Self:
        # -X dev off and a fixed hash seed: a case that fails has to fail again.
        environment = dict(os.environ) | {"PYTHONHASHSEED": "0", "PYTHONPATH": str(REPOSITORY)}
        command = ["setpriv", "--pdeathsig", "KILL", sys.executable, "-m", "tests.faults.zygote", *self.mutants]
        self._zygote = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, cwd=REPOSITORY, env=environment
        )
        self._answer(START_TIMEOUT_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.kill(signal.SIGKILL)
        if self._zygote is not None:
            assert self._zygote.stdin is not None and self._zygote.stdout is not None
            self._zygote.kill()
            self._zygote.wait(timeout=10)
            with contextlib.suppress(OSError):
                self._zygote.stdin.close()
            self._zygote.stdout.close()
            self._zygote = None

    def _answer(self, timeout_s: float) -> dict[str, Any] | None:
        """The zygote's next line; None when it did not come in time."""
        assert self._zygote is not None and self._zygote.stdout is not None
        limit = time.monotonic() + timeout_s
        descriptor = self._zygote.stdout.fileno()
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([descriptor], [], [], max(0.0, limit - time.monotonic()))
            if not ready:
                return None
            block = os.read(descriptor, 65536)
            if not block:
                raise RuntimeError("the process that holds the engine has ended")
            self._buffer += block
        line, _, self._buffer = self._buffer.partition(b"\n")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def start(
        self, arguments: Sequence[str], environment: dict[str, str], directory: Path, uid: int | None = None
    ) -> None:
        """Starts `decamp ARGUMENTS` in a directory, which also gets its output."""
        assert self._zygote is not None and self._zygote.stdin is not None
        self._stdout, self._stderr = directory / "stdout", directory / "stderr"
        job = {
            "arguments": list(arguments),
            "environment": environment,
            "directory": str(directory),
            "stdout": str(self._stdout),
            "stderr": str(self._stderr),
            "uid": uid,
        }
        self._started = time.monotonic()
        self._zygote.stdin.write(json.dumps(job).encode() + b"\n")
        self._zygote.stdin.flush()
        answer = self._answer(START_TIMEOUT_S)
        assert answer is not None
        with self._lock:
            self._pid = answer["pid"]

    def kill(self, number: int) -> None:
        """Sends a signal to the run's own process, if there is one, from whichever thread."""
        with self._lock:
            if self._pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(self._pid, number)

    def wait(self, timeout_s: float) -> Outcome:
        """Waits for the end of the run and clears away whatever processes it left."""
        answer = self._answer(timeout_s)
        hung = answer is None
        if answer is None:
            self.kill(signal.SIGABRT if os.environ.get("FAULTS_ABORT") else signal.SIGKILL)
            answer = self._answer(30)
            assert answer is not None
        seconds = time.monotonic() - self._started
        with self._lock:
            pid, self._pid = self._pid, 0
        left_behind = self._clear_away(pid)
        return Outcome(
            os.waitstatus_to_exitcode(answer["status"]),
            self._stdout.read_text(errors="surrogateescape"),
            self._stderr.read_text(errors="surrogateescape"),
            seconds,
            hung,
            left_behind,
        )

    @staticmethod
    def _clear_away(group: int) -> bool:
        """Ends what is left of a run; says whether anything did not end by itself, as helpers of a killed one do."""
        limit = time.monotonic() + HELPERS_END_S
        try:
            while time.monotonic() < limit:
                os.killpg(group, 0)
                time.sleep(0.005)
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def run(
        self,
        arguments: Sequence[str],
        environment: dict[str, str],
        directory: Path,
        uid: int | None = None,
        timeout_s: float = 60.0,
    ) -> Outcome:
        """Starts a command and waits for it."""
        self.start(arguments, environment, directory, uid)
        return self.wait(timeout_s)
