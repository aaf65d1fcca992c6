"""Unpacks a bundle into a directory that is complete or absent; it runs on a bare host, inside the bundle's zip.

Needs Python 3.10 and its standard library. Each file's SHA-256 is checked before it is used.
"""

from __future__ import annotations

import configparser
import hashlib
import io
import json
import os
import shutil
import sys
import zipfile
from pathlib import Path
from typing import Any

# Where a host says which bundle something runs from: units and their environment files, and links to commands.
NAMED_IN = ("/etc/systemd/system/*.service", "/etc/decamp/*.env")
LINKED_FROM = "/usr/local/bin/*"
KEPT_BEFORE = 1

WRAPPER = """#!/usr/bin/python3
import os
import sys

here = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path[:0] = [os.path.join(here, "lib")] + [os.path.join(here, "..", name, "lib") for name in {uses}]
from {module} import {function}

sys.exit({function}())
"""


def place_member(name: str) -> str:
    """Returns where a wheel's member belongs: packages under lib/, scripts and binaries under bin/."""
    parts = name.split("/")
    if parts[0].endswith(".data") and len(parts) > 2:
        kind, rest = parts[1], "/".join(parts[2:])
        return {"purelib": "lib/", "platlib": "lib/", "scripts": "bin/"}.get(kind, f"{kind}/") + rest
    return f"lib/{name}"


def unpack_wheel(content: bytes, target: Path, uses: list[str]) -> None:
    with zipfile.ZipFile(io.BytesIO(content)) as wheel:
        for item in wheel.infolist():
            if item.is_dir():
                continue
            path = target / place_member(item.filename)
            if target.resolve() not in path.resolve().parents:
                raise SystemExit(f"{item.filename}: leaves the directory it is unpacked into")
            path.parent.mkdir(parents=True, exist_ok=True)
            with wheel.open(item) as source, path.open("wb") as output:
                shutil.copyfileobj(source, output, 1 << 20)
            mode = (item.external_attr >> 16) & 0o755
            path.chmod(mode | 0o644 | (0o111 if path.parent.name == "bin" else 0))
            if item.filename.endswith(".dist-info/entry_points.txt"):
                write_wrappers(path.read_text(encoding="utf-8"), target / "bin", uses)


def write_wrappers(entry_points: str, directory: Path, uses: list[str]) -> None:
    parser = configparser.ConfigParser(delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(entry_points)
    for name, value in parser.items("console_scripts") if parser.has_section("console_scripts") else []:
        module, function = (part.strip() for part in value.split("[")[0].split(":"))
        directory.mkdir(exist_ok=True)
        script = directory / name
        script.write_text(WRAPPER.format(module=module, function=function, uses=uses))
        script.chmod(0o755)


def install(archive: zipfile.ZipFile, target: Path) -> str:
    """Returns "installed" or "already there"; raises SystemExit with what is wrong."""
    description = json.loads(archive.read("bundle.json"))
    marker = target / ".complete"
    if marker.exists() and json.loads(marker.read_text())["digest"] == description["digest"]:
        return "already there"
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    if here != description["python"]:
        raise SystemExit(f"{target}: the bundle is for another Python: expected {description['python']}, found {here}")
    partial = target.with_name(f".{target.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    partial.chmod(0o755)
    for name, digest in sorted(description["files"].items()):
        content = archive.read(name)
        found = hashlib.sha256(content).hexdigest()
        if found != digest:
            raise SystemExit(f"{name}: damaged on its way: expected SHA-256 {digest}, found {found}")
        if name.startswith("wheels/"):
            unpack_wheel(content, partial, description["uses"])
        else:
            path = partial / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
    (partial / ".complete").write_text(json.dumps(description))
    shutil.rmtree(target, ignore_errors=True)
    partial.rename(target)
    return "installed"


def read_description(directory: Path) -> dict[str, Any]:
    """Returns what a complete bundle says of itself; empty for anything else."""
    try:
        found = json.loads((directory / ".complete").read_text())
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def find_named(root: Path, host: Path = Path("/")) -> set[str]:
    """Returns the names of directories below `root` that a unit, an environment file or a link still names."""
    texts = [path.read_text(errors="replace") for place in NAMED_IN for path in host.glob(place[1:]) if path.is_file()]
    texts += [os.readlink(path) for path in host.glob(LINKED_FROM[1:]) if path.is_symlink()]
    return {
        directory.name for directory in root.iterdir() if any(f"{root}/{directory.name}/" in text for text in texts)
    }


def prune(target: Path, host: Path = Path("/")) -> list[str]:
    """Removes older bundles of the target's name; returns theirs.

    The target, the one before it, what the host still names and what a kept bundle imports from stay.
    """
    found = {path.name: read_description(path) for path in target.parent.glob("[!.]*") if not path.is_symlink()}
    same = [name for name, about in found.items() if about.get("name") == found[target.name]["name"]]
    newest_first = sorted(same, key=lambda name: (target.parent / name / ".complete").stat().st_mtime_ns, reverse=True)
    kept = {target.name, *find_named(target.parent, host)}
    kept |= set([name for name in newest_first if name != target.name][:KEPT_BEFORE])
    for name, about in found.items():
        if name in kept or name not in same:
            kept |= set(about.get("uses", ()))
    old = [name for name in newest_first if name not in kept]
    for name in old:
        (target.parent / name / ".complete").unlink()  # first: half a bundle must not look whole
        shutil.rmtree(target.parent / name)
    return old


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python3 BUNDLE.pyz DIRECTORY")
    os.umask(0o022)
    with zipfile.ZipFile(sys.argv[0]) as bundle:
        place = Path(sys.argv[1]).absolute()
        print(install(bundle, place))
        prune(place)
