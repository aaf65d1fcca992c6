"""A bundle is one file with which a bare host gets locked Python packages: it needs python3 there and nothing else.

The file is a zip that python3 runs (`python3 NAME.pyz DEST`). It holds the wheels that a lock with hashes names for
the host's Python and machine, and, when asked, the wheel of this checkout's decamp. It is built on the operator's
machine with pip and kept in a cache by the hash of all that goes in, so that a second build costs no download.
"""

from __future__ import annotations

import argparse
import base64
import fcntl
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from decamp import __version__
from decamp.errors import BadInput, DecampError

PACKAGE = Path(__file__).resolve().parent
INSTALLER = PACKAGE / "bundle_installer.py"
FORMAT = 1
# Newest first. A wheel may ask for glibc 2.34: Ubuntu 22.04 has 2.35, Debian 12 has 2.36.
GLIBC_TAGS = ["manylinux_2_34", "manylinux_2_28", "manylinux_2_17", "manylinux2014"]
LOCK = "uv pip compile --generate-hashes"
MACHINES = ("x86_64", "aarch64")
_TIMESTAMP = (1980, 1, 1, 0, 0, 0)  # a zip's earliest: the same input must give the same bytes


class BundleFailure(DecampError):
    """A bundle cannot be built: a package cannot be had, or the lock does not fit the host."""


@dataclass(frozen=True)
class Bundle:
    """A built bundle: where it lies, the digest of its content's description, and whether the cache had it."""

    name: str
    path: Path
    digest: str
    cached: bool

    def as_document(self) -> dict[str, object]:
        return {"name": self.name, "path": str(self.path), "digest": self.digest, "cached": self.cached}


def default_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decamp" / "bundles"


def select_requirements(lock: str, python: str, machine: str) -> str:
    """Returns the lines of a lock whose markers hold on the host, without the markers.

    pip evaluates markers for the Python it runs on, whatever --python-version says, so they are decided here.
    """
    from packaging.markers import default_environment
    from packaging.requirements import InvalidRequirement, Requirement

    environment: dict[str, str | AbstractSet[str]] = {"extra": ""}
    environment.update({key: str(value) for key, value in default_environment().items()})
    environment["python_version"] = python
    environment["python_full_version"] = f"{python}.0"
    environment["implementation_version"] = f"{python}.0"
    environment["platform_machine"] = machine
    environment["platform_system"], environment["sys_platform"], environment["os_name"] = "Linux", "linux", "posix"
    selected = []
    text = re.sub(r"\\\n", " ", lock)
    for line in text.splitlines():
        content = line.split(" #")[0].strip()
        if not content or content.startswith("#"):
            continue
        specification, *hashes = re.split(r"\s+--hash=", content)
        try:
            requirement = Requirement(specification.strip())
        except InvalidRequirement as error:
            raise BadInput(
                specification.strip(), "not a locked requirement", expected="name==version", found=str(error), run=LOCK
            ) from None
        if not hashes or not any(str(item).startswith("==") for item in requirement.specifier):
            raise BadInput(
                specification.strip(), "not locked", expected="name==version with --hash", found=content[:80], run=LOCK
            )
        if requirement.marker is None or requirement.marker.evaluate(environment):
            extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
            pins = " ".join(f"--hash={digest.strip()}" for digest in hashes)
            selected.append(f"{requirement.name}{extras}{requirement.specifier} {pins}")
    return "\n".join(sorted(selected)) + "\n"


def read_tree(directory: Path, name: str) -> Iterator[tuple[str, bytes]]:
    """Yields (name/path, content) of every file below a directory, in a fixed order, without what Python left there."""
    for path in sorted(directory.rglob("*")):
        relative = path.relative_to(directory)
        if path.is_file() and not any(part == "__pycache__" or part.startswith(".") for part in relative.parts):
            yield f"{name}/{relative.as_posix()}", path.read_bytes()


def write_own_wheel(directory: Path) -> Path:
    """Writes the pure wheel of this checkout's decamp; no build tool runs, so nothing has to be installed for it."""
    info = f"decamp-{__version__}.dist-info"
    files = list(read_tree(PACKAGE, "decamp"))
    wheel = "Wheel-Version: 1.0\nGenerator: decamp.bundle\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    files.append((f"{info}/METADATA", f"Metadata-Version: 2.1\nName: decamp\nVersion: {__version__}\n".encode()))
    files.append((f"{info}/WHEEL", wheel.encode()))
    files.append((f"{info}/entry_points.txt", b"[console_scripts]\ndecamp = decamp.cli:main\n"))
    record = []
    for name, content in files:
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        record.append(f"{name},sha256={digest},{len(content)}\n")
    files.append((f"{info}/RECORD", "".join([*record, f"{info}/RECORD,,\n"]).encode()))
    target = directory / f"decamp-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files:
            archive.writestr(zipfile.ZipInfo(name, _TIMESTAMP), content, zipfile.ZIP_DEFLATED)
    return target


def download_wheels(requirements: str, python: str, machine: str, directory: Path) -> None:
    """Puts the wheels of a selected lock into a directory; raises BundleFailure with pip's own last words."""
    if not requirements.strip():
        return
    listing = directory / "requirements.txt"
    listing.write_text(requirements)
    tag = f"cp{python.replace('.', '')}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command += ["--require-hashes", "--only-binary=:all:", "--dest", str(directory), "--requirement", str(listing)]
    command += ["--implementation", "cp", "--python-version", python, "--abi", tag, "--abi", "abi3", "--abi", "none"]
    for platform in GLIBC_TAGS:
        command += ["--platform", f"{platform}_{machine}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800)
    listing.unlink()
    if done.returncode != 0:
        words = [line for line in done.stderr.splitlines() if line.strip()][-3:]
        raise BundleFailure(
            f"Python {python} on {machine}",
            "packages cannot be had",
            expected="a wheel for each locked requirement",
            found=" | ".join(words),
        )


@contextmanager
def _only_one(cache: Path) -> Iterator[None]:
    """Lets one process build at a time: playbooks ask for the same bundle for many hosts at once."""
    cache.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def build_bundle(
    name: str,
    lock: Path | None,
    python: str,
    machine: str,
    *,
    with_decamp: bool = False,
    source: Path | None = None,
    uses: Sequence[str] = (),
    cache: Path | None = None,
) -> Bundle:
    """Returns a bundle of what the lock names for a host, from the cache where that has it.

    Args:
        name: short name; it is part of the file's name.
        lock: requirements file with hashes; markers are decided for the host. None for no packages.
        python: the host's Python, "3.11".
        machine: the host's machine as `uname -m` says it.
        with_decamp: adds the wheel of this checkout's decamp.
        source: directory whose files go along, below src/.
        uses: digests of bundles that lie beside this one on the host and whose packages its commands import.

    Raises:
        BadInput: the lock or the host's description is wrong. BundleFailure: a package cannot be had.
    """
    if not re.fullmatch(r"[a-z0-9][a-z0-9-]*", name):
        raise BadInput(name, "not a bundle's name", expected="small letters, digits, hyphens", found=name)
    if not re.fullmatch(r"3\.\d+", python):
        raise BadInput(name, "not a Python version", expected="3.N", found=python)
    if machine not in MACHINES:
        raise BadInput(name, "no bundles for this machine", expected=" or ".join(MACHINES), found=machine)
    try:
        requirements = select_requirements(lock.read_text(encoding="utf-8"), python, machine) if lock else ""
    except OSError as error:
        raise BadInput(str(lock), "the lock file cannot be read", found=str(error.strerror)) from None
    digest = hashlib.sha256(f"{FORMAT}\0{name}\0{python}\0{machine}\0{requirements}".encode())
    digest.update(json.dumps(sorted(uses)).encode() + INSTALLER.read_bytes())
    sources = list(read_tree(source, "src")) if source else []
    if source and not sources:
        raise BadInput(str(source), "nothing to send", expected="a directory with files", found="none")
    for path, content in [*(read_tree(PACKAGE, "decamp") if with_decamp else ()), *sources]:
        digest.update(f"{path}\0{len(content)}\0".encode() + content)
    key = digest.hexdigest()[:32]
    cache = cache or default_cache()
    target = cache / f"{name}-{key}.pyz"
    with _only_one(cache):
        if target.exists():
            return Bundle(name, target, key, cached=True)
        with tempfile.TemporaryDirectory(dir=cache, prefix=".building-") as place:
            wheels = Path(place) / "wheels"
            wheels.mkdir()
            download_wheels(requirements, python, machine, wheels)
            if with_decamp:
                write_own_wheel(wheels)
            partial = Path(place) / target.name
            description: dict[str, object] = {"name": name, "digest": key, "python": python, "uses": sorted(uses)}
            write_archive(partial, sorted(wheels.iterdir()), sources, description)
            partial.replace(target)
    return Bundle(name, target, key, cached=False)


def write_archive(
    target: Path, wheels: list[Path], sources: list[tuple[str, bytes]], description: dict[str, object]
) -> None:
    digests = {f"wheels/{wheel.name}": hashlib.sha256(wheel.read_bytes()).hexdigest() for wheel in wheels}
    digests.update({path: hashlib.sha256(content).hexdigest() for path, content in sources})
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr(zipfile.ZipInfo("__main__.py", _TIMESTAMP), INSTALLER.read_bytes())
        document = json.dumps({**description, "files": digests}, indent=1)
        archive.writestr(zipfile.ZipInfo("bundle.json", _TIMESTAMP), document)
        for wheel in wheels:
            archive.write(wheel, f"wheels/{wheel.name}")
        for path, content in sources:
            archive.writestr(zipfile.ZipInfo(path, _TIMESTAMP), content)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", required=True, help="short name of the bundle")
    parser.add_argument("--requirements", type=Path, help="lock file with hashes")
    parser.add_argument("--source", type=Path, help="directory whose files go along, below src/")
    parser.add_argument("--python", required=True, help="the host's Python, for example 3.11")
    parser.add_argument("--machine", required=True, help="the host's machine, as uname -m says")
    parser.add_argument("--uses", action="append", default=[], help="digest of a bundle beside this one; may repeat")
    parser.add_argument("--with-decamp", action="store_true", help="add the wheel of this checkout's decamp")


def run(options: argparse.Namespace) -> int:
    bundle = build_bundle(
        options.name,
        options.requirements,
        options.python,
        options.machine,
        with_decamp=options.with_decamp,
        source=options.source,
        uses=options.uses,
    )
    print(json.dumps(bundle.as_document()))
    return 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m decamp.bundle", description=(__doc__ or "").splitlines()[0])
    add_arguments(parser)
    try:
        return run(parser.parse_args(arguments))
    except DecampError as error:
        print(error, file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
