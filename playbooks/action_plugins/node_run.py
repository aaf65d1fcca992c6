"""Starts a long command on a node by the module node_run and follows it: progress lines now, its result at the end.

A broken connection is waited out: the command does not depend on it.
"""

from __future__ import annotations

import base64
import time
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.module_utils.common.text.converters import to_text
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()
LOST_CONNECTION_TRIES = 30
TAIL_LINES = 20
# Prints what standard error has from an offset on, then whether the run is over: `end STATUS`, `gone` or `going`.
# As base64, since sudo may want a terminal, and a terminal changes line ends.
LOOK = (
    "cd {directory} 2>/dev/null || {{ echo; echo gone; exit 0; }}; "
    "state=going; "
    'if [ -f rc ]; then state="end $(cat rc)"; '
    "elif ! [ -d /proc/$(sed 's/[^0-9]*\\([0-9]*\\).*/\\1/' pid 2>/dev/null || echo none) ]; then state=gone; fi; "
    "tail -c +{offset} stderr 2>/dev/null | base64 -w 0; echo; echo $state"
)


class ActionModule(ActionBase):
    """Runs `node_run`; every secret travels on the standard input of the connection."""

    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        arguments = dict(self._task.args)
        if arguments.get("environment") and not self._is_pipelining_enabled("new"):
            return {
                **result,
                "failed": True,
                "msg": "ansible.cfg: pipelining is off, so secrets would be written to the node's disk: "
                "expected pipelining = True; run: ANSIBLE_CONFIG=<checkout>/ansible.cfg ansible-playbook ...",
            }
        begun = self._execute_module(
            module_name="ansible.legacy.node_run", module_args=arguments, task_vars=task_vars, wrap_async=False
        )
        begun.pop("invocation", None)
        if begun.get("failed") or begun.get("skipped_in_check_mode") or "directory" not in begun:
            return {**result, **begun, "rc": begun.get("rc", 0), "stdout": "", "stderr_tail": []}
        host = (task_vars or {}).get("inventory_hostname", "")
        followed = self._follow(str(begun["directory"]), float(arguments.get("poll_s", 2)), host)
        return {**result, **followed, "changed": True, "replaced": begun.get("replaced", False)}

    def _follow(self, directory: str, poll_s: float, host: str) -> dict[str, Any]:
        offset, lost, gone, pause_s = 1, 0, 0, 0.2
        partial, tail = b"", list[str]()
        while True:
            time.sleep(pause_s)
            pause_s = min(poll_s, pause_s * 1.5)
            try:
                answer = self._low_level_execute_command(LOOK.format(directory=directory, offset=offset), sudoable=True)
                lost = 0
            except AnsibleConnectionFailure as error:
                lost += 1
                if lost >= LOST_CONNECTION_TRIES:
                    raise
                display.display(
                    f"  {host} | no connection ({lost} of {LOST_CONNECTION_TRIES} tries): {to_text(error)[:80]}"
                )
                self._connection.reset()
                continue
            shown, _, state = to_text(answer.get("stdout", "")).strip("\r\n").rpartition("\n")
            new = base64.b64decode(shown.strip())
            offset += len(new)
            *lines, partial = (partial + new).split(b"\n")
            for line in lines:
                text = line.decode(errors="replace").split("\r")[-1].rstrip()
                if text:
                    display.display(f"  {host} | {text}")
                    tail = [*tail, text][-TAIL_LINES:]
            if state.startswith("end "):
                if partial.strip():
                    tail = [*tail, partial.decode(errors="replace").split("\r")[-1]][-TAIL_LINES:]
                written = self._low_level_execute_command(f"base64 -w 0 {directory}/stdout", sudoable=True)
                stdout = base64.b64decode(to_text(written.get("stdout", "")).strip()).decode(errors="replace")
                return {"rc": int(state.split()[1]), "stdout": stdout, "stderr_tail": tail}
            gone = gone + 1 if state == "gone" else 0
            if gone >= 5:
                return {
                    "rc": 137,
                    "stdout": "",
                    "stderr_tail": [*tail, "the run vanished: the node restarted or killed it"],
                }
