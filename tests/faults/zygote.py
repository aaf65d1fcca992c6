"""A process with the engine loaded that forks a child for each run: as killable as a new interpreter, and much sooner.

Speaks one JSON document a line on its standard input and output; `tests.faults.engine_process` is the other end.
What differs from a run of its own: modules are loaded already, botocore's description of S3 is shared, and
botocore's waits between two tries are shortened. Arguments are names of mutants to be.
"""

from __future__ import annotations

import functools
import gc
import importlib
import json
import os
import pkgutil
import sys
import time
import types
from pathlib import Path
from typing import Any

# A retry after 20 s proves no more than one after 0.1 s, and hundreds of cases wait for it.
WAIT_FACTOR = 0.01
NOT_ENGINE = {"rehearsal", "stack", "abandon", "abandonment", "teardown", "provider", "playbook", "bundle", "ssh"}


def preload() -> None:
    """Loads every module of the engine and makes botocore's slow first steps once for all children."""
    import boto3
    import botocore.endpoint
    import botocore.session

    import decamp

    for module in pkgutil.walk_packages(decamp.__path__, "decamp."):
        part = module.name.split(".")[1]
        if part not in NOT_ENGINE and not part.startswith(("__", "bundle")):
            importlib.import_module(module.name)
    # What a run as another user would import when it needs it may lie where only root can read.
    for codec in ("ascii", "idna", "latin_1", "raw_unicode_escape", "unicode_escape", "utf_8_sig", "hex_codec"):
        importlib.import_module(f"encodings.{codec}")
    setattr(botocore.session, "create_loader", functools.cache(botocore.session.create_loader))  # noqa: B010
    boto3.session.Session().client("s3", region_name="us-east-1", aws_access_key_id="x", aws_secret_access_key="x")
    shortened = types.SimpleNamespace(sleep=lambda wait_s: time.sleep(wait_s * WAIT_FACTOR), time=time.time)
    setattr(botocore.endpoint, "time", shortened)  # noqa: B010 - the module's own name for it is not public
    gc.freeze()


def _become(job: dict[str, Any]) -> None:
    """Makes the forked child what a command started by a user is: own session, files, environment, user."""
    os.setsid()
    os.chdir(job["directory"])
    for number, (path, flags) in enumerate(
        ((os.devnull, os.O_RDONLY), (job["stdout"], os.O_WRONLY), (job["stderr"], os.O_WRONLY))
    ):
        descriptor = os.open(path, flags | os.O_CREAT | (os.O_TRUNC if number else 0), 0o666)
        os.dup2(descriptor, number)
        os.close(descriptor)
    sys.stdin = Path(os.devnull).open()  # noqa: SIM115 - it stays open as long as the process
    os.environ.clear()
    os.environ.update(job["environment"])
    os.umask(0o022)
    if job.get("uid") is not None:
        os.setgroups([])
        os.setgid(job["uid"])
        os.setuid(job["uid"])


def main() -> int:
    if sys.argv[1:]:
        from tests.faults import mutants

        mutants.install(sys.argv[1:])
    else:
        from decamp import gathering

        gathering.WORTH_HELP_FILES = 50  # small trees take the path of large ones; a helper knows no mutants
    preload()
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    answers.write(json.dumps({"ready": True}) + "\n")
    while line := sys.stdin.buffer.readline():
        job = json.loads(line)
        child = os.fork()
        if child == 0:
            answers.close()
            _become(job)
            from decamp.cli import main as decamp_main

            return int(decamp_main(job["arguments"]))
        answers.write(json.dumps({"pid": child}) + "\n")
        _, status = os.waitpid(child, 0)
        answers.write(json.dumps({"status": status}) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
