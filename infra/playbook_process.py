"""A playbook runs in a process of its own, because one that serves gRPC, as a provider of Pulumi does, cannot fork.

ansible-runner forks. Forked while other threads call into gRPC, the child ends with SIGSEGV about every second time
(tried with grpcio 1.85.3), and ansible-playbook never starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict

from decamp.playbook import PlaybookResult, TaskFailure, run_playbook
from infra.config import CHECKOUT

_RESULT = "result of the playbook: "
_PROGRAM = "import sys; sys.path.insert(0, sys.argv[1]); from infra.playbook_process import main; main(sys.argv[2])"


def run_apart(name: str, tell: Callable[[str], None], environment: Mapping[str, str]) -> PlaybookResult:
    """Runs playbooks/NAME on the stack's nodes and returns how it ended.

    Args:
        name: file in playbooks/.
        tell: is called with each progress line.
        environment: added to this process's; the playbook finds its nodes by it.
    """
    result = PlaybookResult(name)
    # subprocess starts it without running anything of this process in the child.
    with subprocess.Popen(
        [sys.executable, "-c", _PROGRAM, str(CHECKOUT), name],
        env={**os.environ, **environment},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    ) as running:
        assert running.stdout is not None
        ended = ""
        for line in running.stdout:
            if line.startswith(_RESULT):
                ended = line.removeprefix(_RESULT)
            else:
                tell(line.rstrip("\n"))
    if not ended:
        what = f"its process ended with {running.returncode} before it had a result"
        result.failures = [TaskFailure("this machine", name, what)]
        return result
    document = json.loads(ended)
    result.exit_status = document["exit_status"]
    result.failures = [TaskFailure(**failure) for failure in document["failures"]]
    return result


def main(name: str) -> None:
    """Runs the playbook; prints its progress and at last the result, which is JSON behind a mark."""
    result = run_playbook(name, tell=lambda line: print(line, flush=True))
    failures = [asdict(failure) for failure in result.failures]
    print(f"{_RESULT}{json.dumps({'exit_status': result.exit_status, 'failures': failures})}", flush=True)
