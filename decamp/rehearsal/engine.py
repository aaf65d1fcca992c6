"""The Pulumi engine as the rehearsal runs it: bounded in time, ended with its caller, its words kept in a log."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from decamp.errors import DecampError
from decamp.stack import CHECKOUT, find_pulumi

TIMEOUT_S = 1800.0
CANCEL_TIMEOUT_S = 30.0


class EngineFailure(DecampError):
    """The engine ended otherwise than it should have."""


@dataclass(frozen=True)
class Outcome:
    """How a run of the engine ended and all it said."""

    command: str
    exit_code: int
    output: str
    log: Path

    def last_words(self, lines: int = 12) -> str:
        kept = [line for line in self.output.splitlines() if line.strip()]
        return "\n".join(kept[-lines:])

    def check(self) -> Outcome:
        """Raises EngineFailure unless the engine ended well."""
        if self.exit_code != 0:
            raise EngineFailure(
                self.command,
                f"ended with exit code {self.exit_code}",
                expected="0",
                found=self.last_words(),
                run=f"less {self.log}",
            )
        return self


def run_engine(arguments: list[str], environment: Mapping[str, str], log: Path) -> Outcome:
    """Runs pulumi in the checkout and returns how it ended; an interrupt is passed on, and waited for, once.

    Args:
        arguments: pulumi's arguments.
        environment: added to this process's environment.
        log: file that gets everything it says.
    """
    # The kernel tells the engine to stop when this process dies, so no run of it is left behind.
    command = ["setpriv", "--pdeathsig", "TERM", "--", find_pulumi(), *arguments, "--non-interactive", "--color=never"]
    log.parent.mkdir(parents=True, exist_ok=True)
    with (
        log.open("wb") as output,
        subprocess.Popen(
            command,
            cwd=CHECKOUT,
            env={**os.environ, **environment},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # a Ctrl-C reaches it from here, once: a second one would leave pending work
        ) as running,
    ):
        try:
            running.wait(TIMEOUT_S)
        except BaseException:
            running.send_signal(signal.SIGINT)
            try:
                running.wait(CANCEL_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                running.kill()
            raise
    said = log.read_text(encoding="utf-8", errors="replace")
    return Outcome(f"pulumi {' '.join(arguments)}", running.returncode, said, log)
