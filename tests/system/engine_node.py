"""A node for the engine's tests: a workspace, a state directory, a bag in a real store, and runs that can be killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults.comparison import compare, take_picture
from tests.faults.engine_process import Engine, Outcome
from tests.system.machines import StoreAccess

REPOSITORY = Path(__file__).resolve().parents[2]
RUN_TIMEOUT_S = 120.0
NOBODY = 65534


@dataclass(frozen=True)
class Listed:
    """An object of the bag as a listing shows it."""

    size_bytes: int
    etag: str
    modified: str


@dataclass
class EngineNode:
    """Runs `decamp` against one bag; every run is held to what holds for all of them."""

    directory: Path
    access: StoreAccess
    engine: Engine
    rules: list[dict[str, Any]] = field(default_factory=list)
    more_spec: dict[str, Any] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    prefix: str = "nodes/node-1"
    uid: int | None = None

    @property
    def root(self) -> Path:
        return self.directory / "w"

    @property
    def state(self) -> Path:
        return self.directory / "state"

    @property
    def url(self) -> str:
        return f"{self.access.url}/{self.prefix}"

    def fill(self, files: dict[str, bytes | str]) -> None:
        """Writes files below the root; their directories are made."""
        for name, content in files.items():
            path = self.root / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content.encode() if isinstance(content, str) else content)

    def write_spec(self) -> Path:
        path = self.directory / "spec.yml"
        path.write_text(json.dumps({"root": str(self.root), "rules": self.rules, **self.more_spec}))
        return path

    def all_environment(self) -> dict[str, str]:
        return {
            "PATH": os.environ["PATH"],
            "HOME": str(self.directory),
            "AWS_EC2_METADATA_DISABLED": "true",
            "DECAMP_STATE_DIR": str(self.state),
            **self.access.environment,
            **self.environment,
        }

    def run(self, *words: str, timeout_s: float = RUN_TIMEOUT_S) -> Outcome:
        """Runs a command; it must end in time, without a traceback, and leave no process behind."""
        outcome = self.engine.run(words, self.all_environment(), self.directory, self.uid, timeout_s)
        return judge(outcome)

    def start(self, *words: str) -> None:
        self.engine.start(words, self.all_environment(), self.directory, self.uid)

    def evacuate(self, *options: str) -> Outcome:
        return self.run(*self.evacuate_words(*options))

    def evacuate_words(self, *options: str) -> list[str]:
        return ["evacuate", str(self.write_spec()), "--store", self.url, "--json", "--quiet", *options]

    def evacuate_safely(self, *options: str) -> dict[str, Any]:
        """An evacuation that has to be SAFE; returns its document."""
        outcome = self.evacuate(*options)
        assert (outcome.code, outcome.document.get("verdict")) == (0, "SAFE"), outcome
        return outcome.document

    def refuse(self, *options: str) -> list[dict[str, str]]:
        """An evacuation that has to be NOT SAFE; returns its reasons, of which there is one at least."""
        outcome = self.evacuate(*options)
        assert (outcome.code, outcome.document.get("verdict")) == (3, "NOT SAFE"), outcome
        reasons: list[dict[str, str]] = outcome.document["reasons"]
        assert reasons
        return reasons

    def verify(self, *options: str) -> Outcome:
        return self.run("verify", self.url, "--json", "--quiet", *options)

    def restore(self, destination: Path, *options: str) -> Outcome:
        return self.run("restore", self.url, str(destination), "--json", "--quiet", *options)

    def restores_to_the_same(self, name: str = "back", leaves: frozenset[bytes] = frozenset()) -> None:
        """A restore into a new directory gives back everything, but for paths of `leaves` below the root."""
        destination = self.directory / name
        outcome = self.restore(destination)
        assert outcome.code == 0, outcome
        source = {path: node for path, node in take_picture(bytes(self.root)).items() if path not in leaves}
        assert compare(source, take_picture(bytes(destination) + bytes(self.root))) == []
        shutil.rmtree(destination)

    def entries(self) -> dict[str, dict[str, Any]]:
        """What `decamp ls --json` says, by path below the root."""
        outcome = self.run("ls", self.url, "--json")
        assert outcome.code == 0, outcome
        return {
            os.path.relpath(entry["path"], self.root): entry for entry in outcome.document["entries"] if "path" in entry
        }

    def listing(self, below: str = "") -> dict[str, Listed]:
        """Every object of the bag, by key relative to it."""
        pages = self.access.connect().get_paginator("list_objects_v2")
        found = {}
        for page in pages.paginate(Bucket=self.access.bucket, Prefix=f"{self.prefix}/{below}"):
            for item in page.get("Contents", []):
                key = item["Key"][len(self.prefix) + 1 :]
                found[key] = Listed(item["Size"], item["ETag"], str(item["LastModified"]))
        return found

    def uploads(self) -> list[str]:
        """Keys of multipart uploads that nobody ended."""
        answer = self.access.connect().list_multipart_uploads(Bucket=self.access.bucket)
        return [item["Key"] for item in answer.get("Uploads", [])]

    def get(self, key: str) -> bytes:
        client = self.access.connect()
        return client.get_object(Bucket=self.access.bucket, Key=f"{self.prefix}/{key}")["Body"].read()

    def put(self, key: str, body: bytes) -> None:
        self.access.connect().put_object(Bucket=self.access.bucket, Key=f"{self.prefix}/{key}", Body=body)

    def delete(self, key: str) -> None:
        self.access.connect().delete_object(Bucket=self.access.bucket, Key=f"{self.prefix}/{key}")

    def run_in_mounts(self, script: str, *words: str) -> subprocess.CompletedProcess[str]:
        """Runs `decamp` in a mount namespace of its own, after a shell script that mounts things there."""
        shell = f'{script}\nexec "{sys.executable}" -m decamp "$@"'
        done = subprocess.run(
            ["unshare", "--mount", "--propagation", "private", "sh", "-ec", shell, "sh", *words],
            env={**self.all_environment(), "PYTHONPATH": str(REPOSITORY)},
            cwd=self.directory,
            capture_output=True,
            text=True,
            timeout=RUN_TIMEOUT_S,
            check=False,
        )
        assert "Traceback" not in done.stderr, done.stderr
        assert "a defect" not in done.stderr, done.stderr
        return done


def judge(outcome: Outcome) -> Outcome:
    """Holds a run to what no run may do."""
    assert not outcome.hung, outcome
    assert not outcome.left_behind, outcome
    assert "Traceback" not in outcome.stdout + outcome.stderr, outcome
    assert "a defect" not in outcome.stdout + outcome.stderr, outcome
    return outcome
