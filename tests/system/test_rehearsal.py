"""The whole rental as a person lives through it, interrupted once: the second run recovers by itself."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from decamp.errors import EXIT_INTERRUPTED
from decamp.rehearsal import addresses, host
from tests.system.pulumi_project import CHECKOUT, FOREIGN_VARIABLES

STEPS = 13
STEP_LINE = re.compile(r"^ *(\d+)  (\S.*?) +(\d+\.\d) s  (.+)$", re.MULTILINE)
NOT_COPIED = shutil.ignore_patterns(".git", ".venv", ".rehearsal", "out", "__pycache__", ".*_cache")


class Rehearsal:
    """The checkout's files in another place, with an address, a port and a directory of their own."""

    def __init__(self, checkout: Path) -> None:
        self.checkout, self.directory = checkout, checkout / ".rehearsal"
        shutil.copytree(CHECKOUT, checkout, ignore=NOT_COPIED, symlinks=True)
        (checkout / ".venv").symlink_to(CHECKOUT / ".venv")
        path = checkout / "Pulumi.rehearsal.yaml"
        stack = yaml.safe_load(path.read_text())
        stack["config"]["decamp:nodes"][0]["host"] = addresses.find_free_address()
        (stack["config"]["decamp:rehearsal"]["store_port"],) = addresses.find_free_ports(1)
        path.write_text(yaml.safe_dump(stack))
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(FOREIGN_VARIABLES)},
            "PYTHONPATH": str(checkout),
        }

    def command(self, *words: str) -> list[str]:
        return [str(self.checkout / ".venv" / "bin" / "python"), "-m", "decamp", "rehearsal", *words]

    def run(self, *words: str, timeout_s: float = 1200) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*words),
            cwd=self.checkout,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def interrupt(self, when: str) -> tuple[int, str]:
        """Starts a rehearsal and presses Ctrl-C once its log has the words; returns exit code and output."""
        log = self.directory / "logs" / "rehearsal.log"
        with subprocess.Popen(
            self.command("run"),
            cwd=self.checkout,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as running:
            deadline = time.monotonic() + 300
            while not (log.exists() and when in log.read_text()):
                assert running.poll() is None, running.communicate()[0]
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.2)
            os.killpg(running.pid, signal.SIGINT)
            output, _ = running.communicate(timeout=120)
        return running.returncode, output

    def processes(self) -> list[str]:
        """Command lines that name the checkout: what a rehearsal started and left."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                words = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(self.checkout) in words:
                found.append(words)
        return found


@pytest.fixture
def rehearsal(session_directory: Path) -> Iterator[Rehearsal]:
    rehearsal = Rehearsal(session_directory / "checkout")
    yield rehearsal
    for saved in (rehearsal.directory / "nodes").glob("*"):
        host.destroy(saved)
    rehearsal.run("clean", timeout_s=120)


@pytest.mark.timeout(1800)
def test_a_rental_is_interrupted_and_then_lived_through_to_its_end(rehearsal: Rehearsal) -> None:
    code, output = rehearsal.interrupt("site.yml: Set up the workspace")
    assert code == EXIT_INTERRUPTED, output
    assert "interrupted" in output
    assert "Traceback" not in output
    assert not [words for words in rehearsal.processes() if "ansible" in words]

    done = rehearsal.run("run")
    assert done.returncode == 0, done.stdout + done.stderr
    told = STEP_LINE.findall(done.stdout)
    assert [int(number) for number, *_ in told] == list(range(1, STEPS + 1)), done.stdout
    results = {f"{number} {what}": result for number, what, _, result in told}
    assert results["4 site.yml again"] == "changed=0"
    assert results["6 pulumi destroy without a receipt"].startswith("refused with exit code 1")
    assert " SAFE, " in results["7 evacuate.yml"]
    assert "continues from" in results["11 restore.yml"]
    assert f"{STEPS} steps in" in done.stdout
    assert rehearsal.processes() == []

    cleaned = rehearsal.run("clean")
    assert cleaned.returncode == 0, cleaned.stderr
    assert not rehearsal.directory.exists()
