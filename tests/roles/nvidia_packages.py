"""A signed apt repository of NVIDIA's package names and versions whose packages hold stand-ins.

Names, versions and layout are those of NVIDIA's repository for Debian 12 (2026); the programs in them say what the real
ones say and read the machine from /var/lib/stand-in-gpu, which tests/roles/gpu_host.py puts there.
"""

from __future__ import annotations

import functools
import http.server
import shutil
import struct
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.roles.gpu_host import GpuHost

DRIVER, NEWER_DRIVER, OLD_DRIVER = "595.71.05", "610.43.02", "580.65.06"

SMI = """#!/bin/sh
# Stand-in for nvidia-smi {version}: refuses as the real one does when it does not fit the kernel's module.
loaded=$(sed -n 's/.*Module for x86_64 *\\([0-9.]*\\) .*/\\1/p' /proc/driver/nvidia/version 2>/dev/null)
if [ -z "$loaded" ]; then
    echo "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest \
NVIDIA driver is installed and running."
    exit 9
fi
if [ "$loaded" != "{version}" ]; then
    echo "Failed to initialize NVML: Driver/library version mismatch"
    echo "NVML library version: {version}"
    exit 18
fi
report=/var/lib/stand-in-gpu/nvidia-smi-q.txt
case "$*" in
-q) exec sed "s/@DRIVER@/{version}/" $report ;;
*fabric.state*)
    awk -F' : ' '/^GPU /{{split($0, g, " ")}} /^        State  /{{s=$2}}
        /^        Status  /{{print g[2] ", " s ", " $2}}' $report ;;
*) echo "stand-in nvidia-smi: cannot: $*" >&2; exit 2 ;;
esac
"""

FABRIC_MANAGER = """#!/bin/sh
# Stand-in for nv-fabricmanager {version}.
if [ "$1" = --version ]; then echo "Fabric Manager version is : {version}"; exit 0; fi
loaded=$(sed -n 's/.*Module for x86_64 *\\([0-9.]*\\) .*/\\1/p' /proc/driver/nvidia/version)
if [ "$loaded" != "{version}" ]; then
    echo "fabric manager NVIDIA GPU driver interface version {version} don't match with driver version $loaded. \
Please update with matching NVIDIA driver package."
    exit 1
fi
if [ ! -d /sys/module/ib_umad ]; then
    echo "request to query NVSwitch device information failed: NV_WARN_NOTHING_TO_DO"
    exit 1
fi
echo "Successfully configured all the available NVSwitches to route GPU NVLink traffic."
if [ ! -e /var/lib/stand-in-gpu/fabric-stuck ]; then
    sed -i -e '/^    Fabric$/,/^    FB/s/^\\(        State .* : \\).*/\\1Completed/' \
        -e '/^    Fabric$/,/^    FB/s/^\\(        Status .* : \\).*/\\1Success/' /var/lib/stand-in-gpu/nvidia-smi-q.txt
fi
exec sleep infinity
"""

DCGMI = """#!/bin/sh
if ! systemctl is-active --quiet nvidia-dcgm; then
    echo "Error: unable to establish a connection to the specified host: localhost"
    exit 255
fi
echo "$(grep -c '^GPU ' /var/lib/stand-in-gpu/nvidia-smi-q.txt) GPUs found."
"""

NVCC = """#!/bin/sh
echo "nvcc: NVIDIA (R) Cuda compiler driver"
echo "Cuda compilation tools, release 13.0, V13.0.88"
"""

UNIT = (
    "[Unit]\nDescription=Stand-in for {name}\n[Service]\nExecStart={command}\n[Install]\nWantedBy=multi-user.target\n"
)

PIN = "Package: *nvidia* libcuda* libnv*\nPin: version {version}*\nPin-Priority: 1001\n"

BUILD_MODULE = """#!/bin/sh
set -e
# What DKMS does when the package is configured, with the compiling done before.
kernel=$(uname -r)
install -D -m 644 /usr/src/nvidia-{version}/nvidia.ko /lib/modules/$kernel/updates/dkms/nvidia.ko
depmod "$kernel" 2>/dev/null
"""


@dataclass(frozen=True)
class Package:
    """One package: files by path (a value that starts with #! is made executable), and what it needs."""

    name: str
    version: str
    depends: str = ""
    replaces: str = ""
    files: dict[str, str | bytes] = field(default_factory=dict)
    postinst: str = ""


def build_module(version: str, licence: str = "Dual MIT/GPL") -> bytes:
    """Gives a kernel object that has a .modinfo section and nothing else, which is all that modinfo reads."""
    modinfo = f"version={version}\0license={licence}\0name=nvidia\0".encode()
    names = b"\0.modinfo\0.shstrtab\0"
    body = modinfo + names
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 1, 62, 1, 0, 0, 64 + len(body), 0, 64, 0, 0, 64, 3, 2
    )
    sections = b"".join(
        struct.pack("<IIQQQQIIQQ", name, kind, 0, 0, offset, size, 0, 0, 1, 0)
        for name, kind, offset, size in ((0, 0, 0, 0), (1, 1, 64, len(modinfo)), (10, 3, 64 + len(modinfo), len(names)))
    )
    return header + body + sections


def describe_driver(version: str, licence: str = "Dual MIT/GPL") -> list[Package]:
    """Lists the packages of one driver version, as NVIDIA's repository for Debian names them."""
    full = f"{version}-1"
    return [
        # The dependencies carry no version, so that the pin alone keeps a newer branch out.
        Package("nvidia-open", full, "nvidia-driver-cuda, nvidia-kernel-open-dkms"),
        Package(
            "nvidia-driver-cuda",
            full,
            "nvidia-persistenced",
            files={"/usr/bin/nvidia-smi": SMI.format(version=version)},
        ),
        Package(
            "nvidia-kernel-open-dkms",
            full,
            files={f"/usr/src/nvidia-{version}/nvidia.ko": build_module(version, licence)},
            postinst=BUILD_MODULE.format(version=version),
        ),
        Package(
            "nvidia-persistenced",
            full,
            files={
                "/usr/bin/nvidia-persistenced": "#!/bin/sh\nexec sleep infinity\n",
                "/lib/systemd/system/nvidia-persistenced.service": UNIT.format(
                    name="nvidia-persistenced", command="/usr/bin/nvidia-persistenced"
                ),
            },
        ),
        Package(
            f"nvidia-driver-pinning-{version}",
            full,
            replaces="nvidia-driver-pinning",
            # apt ignores a file here whose name ends in something like .05.
            files={"/etc/apt/preferences.d/nvidia-driver-pinning": PIN.format(version=version)},
        ),
        Package(
            "nvidia-fabricmanager",
            full,
            files={
                "/usr/bin/nv-fabricmanager": FABRIC_MANAGER.format(version=version),
                "/lib/systemd/system/nvidia-fabricmanager.service": UNIT.format(
                    name="Fabric Manager", command="/usr/bin/nv-fabricmanager"
                ),
            },
        ),
    ]


def describe_repository() -> list[Package]:
    kernel = subprocess.run(["uname", "-r"], capture_output=True, text=True, check=True).stdout.strip()
    return [
        *describe_driver(DRIVER),
        *describe_driver(NEWER_DRIVER),
        *describe_driver(OLD_DRIVER),
        Package(f"linux-headers-{kernel}", "1.0-1"),
        Package("nvlsm", "2025.10.11-1"),
        Package("libibumad3", "44.0-2"),
        Package("infiniband-diags", "44.0-2"),
        Package(
            "cuda-toolkit-13-0",
            "13.0.2-1",
            files={
                "/usr/local/cuda-13.0/bin/nvcc": NVCC,
                "/usr/local/cuda-13.0/version.json": '{"cuda": {"name": "CUDA SDK", "version": "13.0.2"}}\n',
            },
        ),
        Package(
            "datacenter-gpu-manager-4-core",
            "1:4.5.2-1",
            files={
                "/usr/bin/dcgmi": DCGMI,
                "/lib/systemd/system/nvidia-dcgm.service": UNIT.format(name="DCGM", command="/usr/bin/sleep infinity"),
            },
        ),
        Package("datacenter-gpu-manager-4-cuda13", "1:4.5.2-1", "datacenter-gpu-manager-4-core (= 1:4.5.2-1)"),
    ]


def build_package(package: Package, directory: Path) -> None:
    """Writes one .deb with dpkg-deb."""
    tree = directory / f".{package.name}"
    (tree / "DEBIAN").mkdir(parents=True)
    depends = f"Depends: {package.depends}\n" if package.depends else ""
    for name in ("Provides", "Conflicts", "Replaces") if package.replaces else ():
        depends += f"{name}: {package.replaces}\n"
    (tree / "DEBIAN/control").write_text(
        f"Package: {package.name}\nVersion: {package.version}\nArchitecture: amd64\n"
        "Maintainer: tests <tests@localhost>\n"
        f"{depends}Description: Stand-in for the package of this name\n"
    )
    for path, content in {**package.files, "/DEBIAN/postinst": package.postinst}.items():
        if not content:
            continue
        data = content.encode() if isinstance(content, str) else content
        target = tree / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
        target.chmod(0o755 if data.startswith(b"#!") else 0o644)
    subprocess.run(
        ["dpkg-deb", "--root-owner-group", "-Znone", "--build", str(tree), str(directory)],
        check=True, capture_output=True,
    )  # fmt: skip
    shutil.rmtree(tree)


@dataclass(frozen=True)
class Repository:
    """A served repository."""

    base_url: str
    fingerprint: str
    directory: Path

    @property
    def variables(self) -> dict[str, Any]:
        return {
            "nvidia_repository_base_url": self.base_url,
            "nvidia_repository_key_fingerprint": self.fingerprint,
        }


def sign(directory: Path, gpg_home: Path) -> str:
    """Writes the key, Release, Release.gpg and InRelease; returns the key's fingerprint."""
    gpg_home.mkdir(mode=0o700)
    gpg = [
        "gpg",
        "--homedir",
        str(gpg_home),
        "--batch",
        "--quiet",
        "--yes",
        "--pinentry-mode",
        "loopback",
        "--passphrase",
        "",
    ]
    subprocess.run(
        [*gpg, "--quick-generate-key", "stand-in <tests@localhost>", "ed25519", "sign", "1d"],
        check=True,
        capture_output=True,
    )
    shown = subprocess.run([*gpg, "--with-colons", "--list-keys"], check=True, capture_output=True, text=True).stdout
    key = subprocess.run([*gpg, "--armor", "--export"], check=True, capture_output=True).stdout
    (directory / "3bf863cc.pub").write_bytes(key)
    for flag, name in (("--clearsign", "InRelease"), ("--detach-sign", "Release.gpg")):
        subprocess.run(
            [*gpg, "--output", str(directory / name), flag, str(directory / "Release")], check=True, capture_output=True
        )
    # gpg leaves an agent behind that would outlive the test.
    subprocess.run(["gpgconf", "--homedir", str(gpg_home), "--kill", "all"], check=True, capture_output=True)
    return next(line.split(":")[9] for line in shown.splitlines() if line.startswith("fpr:"))


@contextmanager
def serve_repository(directory: Path) -> Iterator[Repository]:
    """Builds the repository under `directory` and serves it on a free port of loopback until left."""
    flat = directory / "repos/debian12/x86_64"
    flat.mkdir(parents=True)
    for package in describe_repository():
        build_package(package, flat)
    packages = subprocess.run(["apt-ftparchive", "packages", "."], cwd=flat, check=True, capture_output=True).stdout
    (flat / "Packages").write_bytes(packages)
    release = ["apt-ftparchive", "-o", "APT::FTPArchive::Release::Label=NVIDIA CUDA", "-o",
               "APT::FTPArchive::Release::Origin=NVIDIA", "release", "."]  # fmt: skip
    (flat / "Release").write_bytes(subprocess.run(release, cwd=flat, check=True, capture_output=True).stdout)
    fingerprint = sign(flat, directory / "gpg")

    handler = functools.partial(QuietHandler, directory=str(directory))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield Repository(f"http://127.0.0.1:{server.server_port}/repos", fingerprint, flat)
        finally:
            server.shutdown()
            thread.join(timeout=10)


def install_as_images_do(node: GpuHost, repository: Repository, version: str = DRIVER) -> None:
    """Gives the host a driver from a source of its image's own, loaded as after a boot."""
    # Debian's own lists are far away and have nothing that is needed here.
    node.run("rm -f /etc/apt/sources.list /etc/apt/sources.list.d/*")
    node.write("/etc/apt/sources.list.d/cuda.list", f"deb [trusted=yes] {repository.base_url}/debian12/x86_64/ /\n")
    node.run(
        f"apt-get update -qq && apt-get install -qq -y nvidia-driver-pinning-{version} && apt-get install -qq -y"
        " nvidia-open && systemctl enable -q --now nvidia-persistenced && systemctl restart stand-in-gpu"
        " && nvidia-smi -q >/dev/null"
    )


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_arguments: object) -> None:
        """Keeps the server's lines out of the test's output."""
