#!/usr/bin/python
"""Starts a command that outlives the connection, with secrets in its environment alone, and one at a time by its name.

The action plugin of the same name calls this module, shows the command's progress while it runs and returns its result.
The arguments come on standard input (pipelining), never as a file or on a command line.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import time
from pathlib import Path

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: node_run
short_description: Run a long command on the node, show its progress, keep its secrets in its environment
description:
  - The command goes on when the connection breaks; a second run with the same name ends the first one in order
    (SIGTERM, which Decamp takes as "keep what is done") and starts anew.
  - Its standard output is returned as RV(stdout), the last lines of its standard error as RV(stderr_tail).
  - In check mode nothing is run.
author: Decamp
options:
  name:
    description: Name of the run; its files are below /run/decamp, which is memory.
    type: str
    required: true
  argv:
    description: The command.
    type: list
    elements: str
    required: true
  environment:
    description: Added to the command's environment; never logged.
    type: dict
    default: {}
  timeout_s:
    description: Seconds after which the command is ended.
    type: int
    default: 86400
  poll_s:
    description: Seconds between looks at its progress.
    type: int
    default: 2
"""

RETURN = r"""
rc:
  description: Exit status of the command.
  returned: always
  type: int
stdout:
  description: All it wrote to standard output.
  returned: always
  type: str
stderr_tail:
  description: The last lines of its standard error.
  returned: always
  type: list
  elements: str
"""

DIRECTORY = Path("/run/decamp")
STOP_GRACE_S = 60


def read_running(directory: Path) -> int | None:
    """Returns the pid of the supervisor of a run that is still going, None when there is none."""
    try:
        saved = json.loads((directory / "pid").read_text())
        found = Path(f"/proc/{saved['pid']}/stat").read_text().rsplit(")", 1)[1].split()
    except (OSError, ValueError, KeyError, IndexError):
        return None
    return int(saved["pid"]) if found[19] == saved["started"] and found[0] != "Z" else None


def end_running(directory: Path) -> bool:
    """Ends an earlier run in order, then by force; says whether there was one."""
    pid = read_running(directory)
    if pid is None:
        return False
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            # The supervisor leads a session; the command is in its group.
            os.killpg(pid, number)
        deadline = time.monotonic() + STOP_GRACE_S
        while read_running(directory) is not None and time.monotonic() < deadline:
            time.sleep(0.1)
        if read_running(directory) is None:
            return True
    return True


def supervise(directory: Path, argv: list[str], environment: dict[str, str], timeout_s: int) -> None:
    """Runs the command to its end and writes its exit status last; runs in a process of its own."""
    os.setsid()
    signal.signal(signal.SIGTERM, lambda _number, _frame: None)  # the command gets it too; its end is waited for
    started = Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19]
    null = os.open(os.devnull, os.O_RDWR)
    for descriptor in range(3):
        os.dup2(null, descriptor)
    (directory / "pid").write_text(json.dumps({"pid": os.getpid(), "started": started}))
    status = 127
    try:
        with (directory / "stdout").open("wb") as out, (directory / "stderr").open("wb") as err:
            command = subprocess.Popen(
                argv, stdin=subprocess.DEVNULL, stdout=out, stderr=err, env={**os.environ, **environment}, cwd="/"
            )
            try:
                status = command.wait(timeout_s)
            except subprocess.TimeoutExpired:
                err.write(f"\nended: not done within {timeout_s} s\n".encode())
                command.terminate()
                try:
                    command.wait(STOP_GRACE_S)
                except subprocess.TimeoutExpired:
                    command.kill()
                    command.wait()
                status = 124
    except OSError as error:
        (directory / "stderr").write_text(f"{argv[0]}: cannot be run: {error.strerror}\n")
    partial = directory / "rc.partial"
    partial.write_text(str(status if status >= 0 else 128 - status))
    partial.replace(directory / "rc")


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "argv": {"type": "list", "elements": "str", "required": True},
            "environment": {"type": "dict", "default": {}, "no_log": True},
            "timeout_s": {"type": "int", "default": 86400},
            "poll_s": {"type": "int", "default": 2},
        },
        supports_check_mode=True,
    )
    given = module.params
    if module.check_mode:
        module.exit_json(changed=True, skipped_in_check_mode=True)
    directory = DIRECTORY / given["name"]
    directory.mkdir(parents=True, exist_ok=True)
    directory.chmod(0o700)
    replaced = end_running(directory)
    for name in ("rc", "stdout", "stderr", "pid"):
        (directory / name).unlink(missing_ok=True)
    environment = {key: str(value) for key, value in given["environment"].items() if value not in (None, "")}
    child = os.fork()
    if child == 0:
        if os.fork() == 0:
            supervise(directory, given["argv"], environment, given["timeout_s"])
        os._exit(0)
    os.waitpid(child, 0)
    module.exit_json(changed=True, directory=str(directory), replaced=replaced)


if __name__ == "__main__":
    main()
