"""A check that the user wrote: a command whose exit status 0 says that the data is good."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import threading
from typing import Any

from decamp.checks.result import CheckResult

_DEFAULT_TIMEOUT_S = 600.0
_OUTPUT_WAIT_S = 1.0
_TAIL_BYTES = 2000
_SECRET_NAMES = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_ACCESS_KEY_ID")


def run_command_check(path: bytes, parameters: dict[str, Any]) -> CheckResult:
    """Runs the command with `{path}` replaced, or the path appended, and returns whether it succeeded.

    No shell takes part, so a strange file name stays one word; the store's credentials are taken out of the
    command's environment; the whole process group is ended when its time is over.
    """
    run = parameters["run"]
    words = [os.fsencode(word) for word in (shlex.split(run) if isinstance(run, str) else run)]
    command = [word.replace(b"{path}", path) for word in words]
    if command == words:
        command.append(path)
    environment = {name: value for name, value in os.environ.items() if name not in _SECRET_NAMES}
    timeout_s = float(parameters.get("timeout_s", _DEFAULT_TIMEOUT_S))
    shown = run if isinstance(run, str) else shlex.join(run)
    try:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        return CheckResult("command", False, f"`{shown}` to run", str(error))
    tail = bytearray()
    reader = threading.Thread(target=_keep_tail, args=(process, tail), daemon=True)
    reader.start()
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return CheckResult("command", False, f"`{shown}` to end within {timeout_s:g} s", "it did not end")
    reader.join(_OUTPUT_WAIT_S)  # a process that it left behind may hold the pipe for as long as it likes
    words_said = " ".join(bytes(tail).decode("utf-8", "replace").split())[-400:]
    if process.returncode == 0:
        return CheckResult("command", True, found=words_said)
    return CheckResult(
        "command",
        False,
        f"exit status 0 from `{shown}`",
        f"exit status {process.returncode}: {words_said}".rstrip(": "),
    )


def _keep_tail(process: subprocess.Popen[bytes], tail: bytearray) -> None:
    assert process.stdout is not None
    with process.stdout as stream:
        while piece := stream.read1(1 << 16):  # type: ignore[attr-defined]  # a buffered reader
            tail += piece
            del tail[:-_TAIL_BYTES]
