#!/usr/bin/env python3
"""Puts a model's files into a directory, continues where an earlier try ended, marks it when all is whole.

Sources: a Hugging Face repository at a commit, objects below a URL of an S3-compatible store, a directory, or a command
that makes the model. Tokens and keys are read from the environment. Progress goes to standard error.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verify_model import MARKER, find_problems

CHUNK_BYTES = 8 << 20
TRIES = 5


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def list_files(directory: Path) -> Iterator[Path]:
    for path in sorted(directory.rglob("*")):
        hidden = any(part.startswith(".cache") for part in path.relative_to(directory).parts)
        if path.is_file() and not hidden and path.name != MARKER and not path.name.endswith(".partial"):
            yield path


def fetch_huggingface(options: argparse.Namespace) -> None:
    """The hub's own client resumes, checks sizes and renames into place."""
    from huggingface_hub import snapshot_download

    snapshot_download(options.repository, revision=options.revision, local_dir=options.target, max_workers=8)


def fetch_store(options: argparse.Namespace) -> None:
    """Gets each object below the URL by ranges; a file that is there with the object's size is not got again."""
    import boto3
    from botocore.config import Config

    bucket, _, prefix = options.url.removeprefix("s3://").partition("/")
    prefix = f"{prefix.rstrip('/')}/"
    settings = Config(retries={"max_attempts": TRIES, "mode": "standard"}, s3={"addressing_style": "path"})
    client = boto3.client(
        "s3", endpoint_url=options.endpoint_url or None, region_name=options.region or None, config=settings
    )
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    objects = [item for page in pages for item in page.get("Contents", []) if not item["Key"].endswith("/")]
    if not objects:
        raise SystemExit(f"{options.url}: no model: expected objects, found none")
    for number, item in enumerate(objects, start=1):
        path = options.target / item["Key"][len(prefix) :]
        if options.target.resolve() not in path.resolve().parents:
            raise SystemExit(f"{item['Key']}: leaves the model's directory")
        if path.exists() and path.stat().st_size == item["Size"]:
            continue
        say(f"{number} of {len(objects)}: {path.name}, {item['Size'] / 1e6:.1f} MB")
        get_object(client, bucket, item, path)


def get_object(client: Any, bucket: str, item: dict[str, Any], path: Path) -> None:
    """Continues a part that was got from the same version of the object (its ETag is in the part's name)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{item['ETag'].strip(chr(34))[:32]}.partial")
    for attempt in range(TRIES):
        have = partial.stat().st_size if partial.exists() else 0
        if have >= item["Size"]:
            break
        with contextlib.suppress(OSError):
            body = client.get_object(Bucket=bucket, Key=item["Key"], Range=f"bytes={have}-", IfMatch=item["ETag"])[
                "Body"
            ]
            with partial.open("ab") as output:
                for chunk in body.iter_chunks(CHUNK_BYTES):
                    output.write(chunk)
        time.sleep(attempt)
    found = partial.stat().st_size if partial.exists() else 0
    if found != item["Size"]:
        raise SystemExit(f"s3://{bucket}/{item['Key']}: not got: expected {item['Size']} bytes, found {found}")
    partial.replace(path)


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
    sources = parser.add_subparsers(dest="source", required=True)
    hub = sources.add_parser("huggingface")
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
    begun = target / ".decamp-model.begun"
    was = begun.read_text(encoding="utf-8") if begun.exists() else None
    if was != identity:
        for path in target.iterdir():
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()
        begun.write_text(identity, encoding="utf-8")


def main() -> int:
    options = parse_arguments()
    os.umask(0o022)
    target: Path = options.target
    target.mkdir(parents=True, exist_ok=True)
    (target / MARKER).unlink(missing_ok=True)
    empty_if_another(target, options.identity)
    if options.source == "huggingface":
        fetch_huggingface(options)
    elif options.source == "store":
        fetch_store(options)
    elif options.source == "directory":
        copy_directory(options.path, target)
    else:
        subprocess.run(options.argv, check=True)
    problems = find_problems(target)
    if problems:
        say("\n".join(problems))
        return 1
    files = {path.relative_to(target).as_posix(): path.stat().st_size for path in list_files(target)}
    files.pop(".decamp-model.begun", None)
    (target / MARKER).write_text(json.dumps({"identity": options.identity, "files": files}, indent=1))
    say(f"{len(files)} files, {sum(files.values()) / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
