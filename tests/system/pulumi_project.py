"""A Pulumi project of a test's own: it runs the checkout's program with a state below one directory."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CHECKOUT = Path(__file__).resolve().parents[2]
PULUMI = CHECKOUT / ".venv" / "bin" / "pulumi"
COMMAND_TIMEOUT_S = 300
# What the machine's own environment says of clouds and stacks is no test's.
FOREIGN_VARIABLES = ("AWS_", "PULUMI_", "DECAMP_")


@dataclass(frozen=True)
class Outcome:
    """How a command ended and what it said."""

    exit_code: int
    output: str


class PulumiProject:
    """A project beside the checkout, with its own state and environment.

    Args:
        directory: everything lies below it.
        stack: the stack's name.
        variables: environment of every command, beside the machine's.
    """

    def __init__(self, directory: Path, stack: str, variables: Mapping[str, str]) -> None:
        self.directory, self.stack, self.project = directory, stack, directory / "project"
        self.project.mkdir(parents=True)
        (directory / "state").mkdir()
        (self.project / "infra").symlink_to(CHECKOUT / "infra")
        self.use_program("infra")
        self.environment = {
            **{key: value for key, value in os.environ.items() if not key.startswith(FOREIGN_VARIABLES)},
            "PULUMI_BACKEND_URL": f"file://{directory / 'state'}",
            "PULUMI_CONFIG_PASSPHRASE": "of a test",
            "PULUMI_HOME": str(directory / "pulumi"),
            "AWS_EC2_METADATA_DISABLED": "true",
            "NO_COLOR": "1",
            **variables,
        }

    def init(self) -> None:
        """Makes the stack, once its configuration is written."""
        created = self.pulumi("stack", "init", self.stack, credentials=False)
        assert created.exit_code == 0, created.output

    def use_program(self, directory: str) -> None:
        """Makes the engine run the program in this directory of the project."""
        project = {"name": "decamp", "runtime": "python", "main": f"{directory}/"}
        (self.project / "Pulumi.yaml").write_text(yaml.safe_dump(project))

    def write_config(self, values: Mapping[str, Any]) -> None:
        """Writes exactly these settings; the engine's own (the passphrase's salt) stay."""
        path = self.project / f"Pulumi.{self.stack}.yaml"
        held = yaml.safe_load(path.read_text()) if path.exists() else {}
        held["config"] = {f"decamp:{key}": value for key, value in values.items()}
        path.write_text(yaml.safe_dump(held))

    def credentials(self) -> dict[str, str]:
        """The store's keys as an operator has them in the environment, where the stack makes them itself."""
        return {}

    def pulumi(self, *arguments: str, credentials: bool = True, **variables: str) -> Outcome:
        """Runs the engine; with the store's keys in its environment unless told otherwise."""
        return self._run_with([str(PULUMI), *arguments, "--non-interactive"], "", credentials, variables)

    def up(self, *arguments: str) -> Outcome:
        return self.pulumi("up", "--yes", "--skip-preview", *arguments)

    def preview(self, credentials: bool = True, **variables: str) -> Outcome:
        return self._run_with([str(PULUMI), "preview", "--non-interactive"], "", credentials, variables)

    def destroy(self, *arguments: str, credentials: bool = True) -> Outcome:
        return self.pulumi("destroy", "--yes", "--skip-preview", *arguments, credentials=credentials)

    def decamp(self, *arguments: str, stdin: str = "", **variables: str) -> Outcome:
        """Runs the command line as an operator does, in the project's directory."""
        return self._run_with([str(CHECKOUT / ".venv" / "bin" / "decamp"), *arguments], stdin, True, variables)

    def _run_with(self, command: Sequence[str], stdin: str, credentials: bool, variables: Mapping[str, str]) -> Outcome:
        keys = self.credentials() if credentials else {}
        return self.run(command, {**self.environment, **keys, **variables}, stdin)

    def run(
        self, command: Sequence[str], environment: Mapping[str, str], stdin: str = "", directory: Path | None = None
    ) -> Outcome:
        ended = subprocess.run(
            command,
            cwd=directory or self.project,
            env=dict(environment),
            input=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        return Outcome(ended.returncode, ended.stdout)

    def state_text(self) -> str:
        """The state as it lies on the disk, secrets encrypted."""
        return (self.directory / f"state/.pulumi/stacks/decamp/{self.stack}.json").read_text()

    def held(self) -> list[dict[str, Any]]:
        """Every resource in the state."""
        return json.loads(self.state_text())["checkpoint"]["latest"].get("resources") or []
