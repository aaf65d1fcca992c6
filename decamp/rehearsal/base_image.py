"""A Debian root directory with what a rented node has, built once, complete or absent.

The image holds no machine id and no SSH host keys: each host brings its own. It is cached under the hash of everything
that defines it, so a change of packages, apt sources or certificates makes another image and never alters one in use.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from dataclasses import asdict, dataclass
from pathlib import Path

from decamp.errors import DecampError
from decamp.rehearsal import prerequisites, process

FORMAT = 2  # raised when customise() changes what it makes
DEFAULT_SUITE = "bookworm"
PACKAGES = (
    "ca-certificates",
    "curl",
    "dbus",
    "fortunes",  # the example job's prompts
    "fortunes-min",
    "iproute2",
    "kmod",
    "openssh-server",
    "procps",
    "python3",
    "python3-apt",
    "sudo",
    "systemd",
    "systemd-sysv",
)
APT_CONFIG_KEYS = ("Acquire::http::", "Acquire::https::", "Acquire::Check-", "Acquire::Retries")
CA_BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
BUILD_TIMEOUT_S = 900


class BaseImageFailure(DecampError):
    """The base image could not be built."""


@dataclass(frozen=True)
class Definition:
    """Everything the content of an image depends on."""

    suite: str
    packages: tuple[str, ...]
    sources: tuple[str, ...]
    apt_config: tuple[str, ...]
    certificates_sha256: str
    format: int = FORMAT

    def hash(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()[:16]


def find_cache() -> Path:
    """Returns the directory that holds base images, outside any checkout."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "decamp" / "base-images"


def read_debian_sources() -> list[tuple[str, str, list[str]]]:
    """Returns (URI, suite, components) of each Debian archive this machine's apt knows; none on another system."""
    form = "$(ORIGIN)\t$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)"
    told = subprocess.run(
        ["apt-get", "indextargets", "--format", form, "Created-By: Packages"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    found: dict[tuple[str, str], list[str]] = {}
    for line in told.stdout.splitlines():
        origin, uri, suite, component = line.split("\t")
        if origin == "Debian" and suite.startswith(DEFAULT_SUITE):
            components = found.setdefault((uri, suite), [])
            if component not in components:
                components.append(component)
    return [(uri, suite, components) for (uri, suite), components in found.items()]


def read_apt_config() -> list[str]:
    """Returns the settings by which this machine's apt reaches its archives (proxies, certificates, date checks)."""
    told = subprocess.run(["apt-config", "dump"], capture_output=True, text=True, timeout=60, check=False)
    return [line for line in told.stdout.splitlines() if line.startswith(APT_CONFIG_KEYS) and not line.endswith('"";')]


def define() -> Definition:
    """Describes the image this machine would build now."""
    bundle = CA_BUNDLE.read_bytes() if CA_BUNDLE.exists() else b""
    sources = [f"deb {uri} {suite} {' '.join(components)}" for uri, suite, components in read_debian_sources()]
    return Definition(
        suite=DEFAULT_SUITE,
        packages=PACKAGES,
        sources=tuple(sources),
        apt_config=tuple(read_apt_config()),
        certificates_sha256=hashlib.sha256(bundle).hexdigest(),
    )


def run_isolated(command: list[str], log: Path) -> None:
    """Runs a command in mount and process namespaces that end with it, so that no mount or process of it can stay."""
    isolated = ["unshare", "--mount", "--propagation", "private", "--pid", "--fork", "--kill-child", "--", *command]
    with log.open("ab") as output:
        ended = subprocess.run(
            isolated, stdin=subprocess.DEVNULL, stdout=output, stderr=output, timeout=BUILD_TIMEOUT_S, check=False
        )
    if ended.returncode != 0:
        raise BaseImageFailure(
            command[0],
            f"ended with {ended.returncode}",
            found=process.read_tail(log, 8),
            run="apt-get update, then the same command again",
        )


def customise(root: Path, definition: Definition) -> None:
    """Gives the tree this machine's apt sources and certificates, and takes away what must differ between hosts."""
    if definition.sources:
        (root / "etc/apt/sources.list").write_text("\n".join(definition.sources) + "\n", encoding="utf-8")
    settings = ('APT::Install-Recommends "false";', 'Acquire::Languages "none";', *definition.apt_config)
    (root / "etc/apt/apt.conf.d/90rehearsal").write_text("\n".join(settings) + "\n", encoding="utf-8")
    if CA_BUNDLE.exists():
        bundle = root / CA_BUNDLE.relative_to("/")
        bundle.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(CA_BUNDLE, bundle)
    (root / "etc/default/locale").write_text("LANG=C.UTF-8\n", encoding="ascii")
    for own_key in (root / "etc/ssh").glob("ssh_host_*"):
        own_key.unlink()
    (root / "etc/machine-id").write_text("", encoding="ascii")
    (root / "etc/hostname").unlink(missing_ok=True)
    # The network is this machine's; a host must not try to configure it, nor wait for it.
    (root / "etc/systemd/system").mkdir(parents=True, exist_ok=True)
    (root / "etc/systemd/system/systemd-networkd-wait-online.service").symlink_to("/dev/null")
    for archive in (root / "var/cache/apt/archives").glob("*.deb"):
        archive.unlink()
    shutil.rmtree(root / "var/lib/apt/lists", ignore_errors=True)
    (root / "var/lib/apt/lists/partial").mkdir(parents=True)


def build(definition: Definition, image: Path) -> None:
    """Builds the image beside its place and moves it there whole."""
    partial = image.with_name(f".partial-{image.name}")
    log = image.with_name(f"{image.name}.log")
    for left_over in image.parent.glob(".partial-*"):
        shutil.rmtree(left_over)
    log.write_bytes(b"")
    mirror = [uri for uri, suite, _ in read_debian_sources() if suite == definition.suite][:1]
    include = f"--include={','.join(definition.packages)}"
    run_isolated(["debootstrap", "--variant=minbase", include, definition.suite, str(partial), *mirror], log)
    customise(partial, definition)
    partial.replace(image)


def ensure() -> Path:
    """Returns a complete base image for this machine, building it on first use (one to two minutes).

    Raises:
        prerequisites.MissingPrerequisite: this machine cannot build one.
        BaseImageFailure: debootstrap failed; its last lines are in the message.
    """
    prerequisites.check_machine()
    definition = define()
    image = find_cache() / definition.hash()
    if not image.is_dir():
        with process.lock(image.parent / ".lock"):
            if not image.is_dir():
                build(definition, image)
    return image
