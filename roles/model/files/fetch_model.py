#!/usr/bin/env python3
"""Puts a model's files into a directory, continues where an earlier try ended, marks it when all is whole.

Sources: a Hugging Face repository at a commit, objects below a URL of an S3-compatible store, a directory, or a command
that makes the model. Tokens and keys are read from the environment. Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from verify_model import BEGUN, MARKER, find_problems

FAILED = 1


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def list_files(directory: Path) -> Iterator[Path]:
    """Yields the model's files: not our own marks, not a hub client's records, nothing that is only half there."""
    for path in sorted(directory.rglob("*")):
        own = path.name in (MARKER, BEGUN) or path.name.endswith(".partial")
        if path.is_file() and not own and ".cache" not in path.relative_to(directory).parts:
            yield path


def fetch_remote(options: argparse.Namespace) -> None:
    """Fetches from the hub or the store; what went wrong is said, a line each, before this ends with status 1."""
    from fetch_files import Refused, ask_patiently, fetch

    try:
        if options.source == "huggingface":
            from hub_source import Hub

            token = os.environ.get("HF_TOKEN", "")
            list_files_there = Hub(options.endpoint, options.repository, options.revision, token).list_files
        else:
            from store_source import ObjectStore

            list_files_there = ObjectStore(options.url, options.endpoint_url, options.region).list_files
        fetch(ask_patiently(list_files_there), options.target, options.free_after)
    except Refused as refused:
        say(str(refused))
        raise SystemExit(FAILED) from None


def copy_directory(source: Path, target: Path) -> None:
    """Copies what is missing or of another size or time; each file is whole or absent."""
    files = list(list_files(source))
    if not files:
        raise SystemExit(f"{source}: no model: expected its files, found none")
    for path in files:
        output = target / path.relative_to(source)
        state = path.stat()
        if output.exists() and (output.stat().st_size, output.stat().st_mtime_ns) == (state.st_size, state.st_mtime_ns):
            continue
        output.parent.mkdir(parents=True, exist_ok=True)
        partial = output.with_name(f".{output.name}.partial")
        shutil.copy2(path, partial)
        partial.replace(output)


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--target", type=Path, required=True)
    parser.add_argument(
        "--identity", required=True, help="what the marker will say; another identity empties the target"
    )
    parser.add_argument("--free-after", type=int, default=0, help="bytes that must be left on the disk")
    sources = parser.add_subparsers(dest="source", required=True)
    hub = sources.add_parser("huggingface")
    hub.add_argument("--endpoint", required=True)
    hub.add_argument("--repository", required=True)
    hub.add_argument("--revision", required=True)
    store = sources.add_parser("store")
    store.add_argument("--url", required=True)
    store.add_argument("--endpoint-url", default="")
    store.add_argument("--region", default="")
    directory = sources.add_parser("directory")
    directory.add_argument("--path", type=Path, required=True)
    command = sources.add_parser("script")
    command.add_argument("argv", nargs="+")
    return parser.parse_args()


def empty_if_another(target: Path, identity: str) -> None:
    """Removes another model's files: mixed with this one's they would be loaded."""
    begun = target / BEGUN
    was = begun.read_text(encoding="utf-8") if begun.exists() else None
    if was != identity:
        for path in target.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        begun.write_text(identity, encoding="utf-8")


def write_marker(target: Path, identity: str) -> int:
    """Writes what was fetched with sizes and times, so that a later look notices a change; returns the bytes."""
    files = {path.relative_to(target).as_posix(): path.stat() for path in list_files(target)}
    record = {name: [state.st_size, state.st_mtime_ns] for name, state in files.items()}
    (target / MARKER).write_text(json.dumps({"identity": identity, "files": record}, indent=1))
    return sum(state.st_size for state in files.values())


def main() -> int:
    options = parse_arguments()
    os.umask(0o022)
    target: Path = options.target
    target.mkdir(parents=True, exist_ok=True)
    (target / MARKER).unlink(missing_ok=True)
    empty_if_another(target, options.identity)
    if options.source in ("huggingface", "store"):
        fetch_remote(options)
    elif options.source == "directory":
        copy_directory(options.path, target)
    else:
        subprocess.run(options.argv, check=True)
    problems = find_problems(target)
    if problems:
        say("\n".join(problems))
        return FAILED
    say(f"whole: {write_marker(target, options.identity) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
