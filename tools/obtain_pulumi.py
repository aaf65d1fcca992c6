"""After this ran, .venv/bin/pulumi is a Pulumi engine of a good version, or one error says how to get one.

The ways, in this order: a good `pulumi` on PATH; one obtained earlier; the official installer; a build with Go's own
tools from the two modules beside this file. What is obtained is kept outside the checkout, by version, and is there
whole or not at all. Standard library only; run by `make setup` with the environment's Python:

    .venv/bin/python tools/obtain_pulumi.py
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ENGINE_VERSION = (3, 274, 1)
OLDEST_GOOD = (
    3,
    272,
    0,
)  # the Python SDK of requirements/dev.txt: an engine is not older than the SDK that talks to it
TOO_NEW = (4, 0, 0)
GO_NEEDED = (1, 25, 11)  # the `go` line of the two modules
ENGINE_PACKAGE = "github.com/pulumi/pulumi/pkg/v3/cmd/pulumi"
LANGUAGE_PACKAGE = "github.com/pulumi/pulumi/sdk/v3/python/cmd/pulumi-language-python"
SDK_MODULE = f"github.com/pulumi/pulumi/sdk/v3@v{'.'.join(map(str, ENGINE_VERSION))}"
SDK_SCRIPTS = ("python/cmd/pulumi-language-python-exec", "python/dist/pulumi-resource-pulumi-python")
PROGRAMS = ("pulumi", "pulumi-language-python", "pulumi-language-python-exec", "pulumi-resource-pulumi-python")
INSTALL_TIMEOUT_S = 300
BUILD_TIMEOUT_S = 3600
TOOLS = Path(__file__).resolve().parent
ENVIRONMENT_BIN = Path(sys.prefix) / "bin"
INSTALL = """
import sys
from pulumi.automation import PulumiCommand
from semver import VersionInfo
PulumiCommand.install(root=sys.argv[1], version=VersionInfo.parse(sys.argv[2]))
"""
WRAPPER = """#!/bin/sh
# Runs the Pulumi engine with this environment's Python. Made by tools/obtain_pulumi.py.
PATH={bin}:$PATH
PULUMI_PYTHON_CMD={bin}/python
PULUMI_SKIP_UPDATE_CHECK=${{PULUMI_SKIP_UPDATE_CHECK-1}}
export PATH PULUMI_PYTHON_CMD PULUMI_SKIP_UPDATE_CHECK
exec {engine} "$@"
"""


class NotThisWay(Exception):
    """One way of obtaining the engine does not work here; the message says why."""


def say(text: str) -> None:
    print(f"pulumi: {text}", flush=True)


def show(version: tuple[int, ...]) -> str:
    return ".".join(map(str, version))


def parse_version(text: str) -> tuple[int, ...] | None:
    found = re.search(r"(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part or 0) for part in found.groups()) if found else None


def ask_version(program: Path) -> tuple[int, ...] | None:
    """Returns the version a pulumi program tells, None when it does not run."""
    environment = {**os.environ, "PULUMI_SKIP_UPDATE_CHECK": "1"}
    try:
        told = subprocess.run(
            [str(program), "version"], env=environment, capture_output=True, text=True, timeout=60, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return parse_version(told.stdout) if told.returncode == 0 else None


def is_good(version: tuple[int, ...] | None) -> bool:
    return version is not None and OLDEST_GOOD <= version < TOO_NEW


def find_on_path() -> Path:
    """Returns a good engine on PATH that has a Python language host; raises NotThisWay."""
    refused = []
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        program = Path(folder or ".").absolute() / "pulumi"
        if not os.access(program, os.X_OK) or program.parent.resolve() == ENVIRONMENT_BIN.resolve():
            continue
        version = ask_version(program)
        if not is_good(version):
            found = show(version) if version else "nothing that runs"
            refused.append(f"{program}: expected {show(OLDEST_GOOD)} or newer, found {found}")
        elif not (program.resolve().with_name(PROGRAMS[1]).exists() or shutil.which(PROGRAMS[1])):
            refused.append(f"{program}: has no {PROGRAMS[1]} beside it")
        else:
            return program
    raise NotThisWay("; ".join(refused) or "none there")


def find_cache() -> Path:
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decamp" / "pulumi"
    base.mkdir(parents=True, exist_ok=True)
    return base


def install(target: Path) -> None:
    """Fills `target` through the official installer; raises NotThisWay."""
    root = target / "installed"
    try:
        ended = subprocess.run(
            [sys.executable, "-c", INSTALL, str(root), show(ENGINE_VERSION)],
            capture_output=True,
            text=True,
            timeout=INSTALL_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired as late:
        raise NotThisWay(f"no result within {INSTALL_TIMEOUT_S} s") from late
    if ended.returncode != 0:
        raise NotThisWay((ended.stderr.strip().splitlines() or ["it failed without a word"])[-1])
    for program in (root / "bin").iterdir():
        program.rename(target / program.name)
    shutil.rmtree(root)


def check_go() -> None:
    """Raises NotThisWay unless a Go that can build the engine is here."""
    if shutil.which("go") is None:
        raise NotThisWay(f"Go is not on PATH: expected Go {show(GO_NEEDED)} or newer")
    told = subprocess.run(
        ["go", "env", "GOVERSION"],
        cwd=TOOLS / "pulumi-engine",
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    version = parse_version(told.stdout)
    if told.returncode != 0 or version is None or version < GO_NEEDED:
        found = told.stdout.strip() or told.stderr.strip()
        raise NotThisWay(f"Go is too old: expected {show(GO_NEEDED)} or newer, found {found}")


def run_go(arguments: list[str], module: str) -> str:
    """Runs the go command in one of our modules and returns its output, with a sign of life every half minute."""
    environment = {**os.environ, "CGO_ENABLED": "0"}
    begun = time.monotonic()
    with subprocess.Popen(
        ["go", *arguments],
        cwd=TOOLS / module,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as running:
        while True:
            try:
                output, errors = running.communicate(timeout=30)
                break
            except subprocess.TimeoutExpired:
                say(f"go {arguments[0]} in tools/{module}: {time.monotonic() - begun:.0f} s so far")
                if time.monotonic() - begun > BUILD_TIMEOUT_S:
                    running.kill()
            except BaseException:
                running.kill()
                raise
    if running.returncode != 0:
        raise NotThisWay(f"go {' '.join(arguments)}: {(errors.strip().splitlines() or ['failed'])[-1]}")
    return output


def build(target: Path) -> None:
    """Fills `target` with an engine and a Python language host built here; raises NotThisWay."""
    check_go()
    say("building the engine with Go: about 7 minutes on 2 cores, once per version and machine")
    # The engine takes its version from here; without it plugins and the SDK take it for a development build.
    version = f"-X github.com/pulumi/pulumi/sdk/v3/go/common/version.Version=v{show(ENGINE_VERSION)}"
    flags = ["build", "-mod=readonly", "-buildvcs=false", "-trimpath"]
    run_go([*flags, f"-ldflags=-s -w {version}", "-o", str(target / PROGRAMS[0]), ENGINE_PACKAGE], "pulumi-engine")
    run_go([*flags, "-ldflags=-s -w", "-o", str(target / PROGRAMS[1]), LANGUAGE_PACKAGE], "pulumi-language-python")
    sdk = Path(json.loads(run_go(["mod", "download", "-json", SDK_MODULE], "pulumi-engine"))["Dir"])
    for script in SDK_SCRIPTS:
        # Copied, as files in Go's module cache are not executable and may be cleaned away.
        shutil.copyfile(sdk / script, target / Path(script).name)
        (target / Path(script).name).chmod(0o755)


def obtain() -> tuple[Path, str]:
    """Returns a good engine and how it was obtained; raises SystemExit with the one error that names all ways."""
    refusals = {}
    try:
        return find_on_path(), "found on PATH"
    except NotThisWay as reason:
        refusals["a pulumi on PATH"] = str(reason)
    cache = find_cache()
    kept = cache / show(ENGINE_VERSION)
    with (cache / ".lock").open("a") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        for left_over in cache.glob(".partial-*"):
            shutil.rmtree(left_over)
        if all((kept / program).exists() for program in PROGRAMS):
            return kept / "pulumi", f"obtained earlier ({(kept / 'origin').read_text(encoding='utf-8').strip()})"
        for way, fill in (("the official installer", install), ("a build with Go", build)):
            partial = cache / f".partial-{show(ENGINE_VERSION)}"
            partial.mkdir()
            try:
                fill(partial)
                if ask_version(partial / "pulumi") != ENGINE_VERSION:
                    raise NotThisWay("what it brought does not run")
            except NotThisWay as reason:
                shutil.rmtree(partial)
                refusals[way] = str(reason)
                continue
            (partial / "origin").write_text(way + "\n", encoding="utf-8")
            shutil.rmtree(kept, ignore_errors=True)
            partial.rename(kept)
            return kept / "pulumi", way
    reasons = "".join(f"\n  {way}: {reason}" for way, reason in refusals.items())
    raise SystemExit(
        f"pulumi: no engine: expected {show(OLDEST_GOOD)} or newer in one of three ways, each refused:{reasons}\n"
        "run: install Pulumi (https://www.pulumi.com/docs/install/) or Go, put it on PATH, then make setup again"
    )


def write_wrapper(engine: Path) -> Path:
    """Writes .venv/bin/pulumi, whole or not at all, and returns it."""
    wrapper = ENVIRONMENT_BIN / "pulumi"
    partial = wrapper.with_name(".pulumi.partial")
    partial.write_text(WRAPPER.format(bin=ENVIRONMENT_BIN, engine=engine), encoding="utf-8")
    partial.chmod(0o755)
    partial.replace(wrapper)
    return wrapper


def main() -> None:
    engine, how = obtain()
    wrapper = write_wrapper(engine)
    version = ask_version(wrapper)
    if version is None:
        raise SystemExit(f"{wrapper}: does not run: expected a version, found none; run: {engine} version")
    say(f"{show(version)}, {how}: {wrapper} runs {engine}")


if __name__ == "__main__":
    main()
