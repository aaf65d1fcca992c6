"""What tests do with a bag in the store without the engine: put, tamper, list, delete, download and validate."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import shutil
import urllib.parse
from pathlib import Path
from typing import Any

import bagit

from tests.faults.store_faults import CorruptedGet, flip


class Altered(CorruptedGet):
    """An object changed through a side door: its content is another one, its ETag, size and checksum are not."""


def put(client: Any, bucket: str, key: str, body: bytes) -> None:
    """Stores an object with its SHA-256, as anyone with write access can."""
    digest = base64.b64encode(hashlib.sha256(body).digest()).decode()
    client.put_object(Bucket=bucket, Key=key, Body=body, ChecksumSHA256=digest)


def keys(client: Any, bucket: str, prefix: str) -> list[str]:
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [entry["Key"] for page in pages for entry in page.get("Contents", [])]


def get(client: Any, bucket: str, key: str) -> bytes:
    body: bytes = client.get_object(Bucket=bucket, Key=key)["Body"].read()
    return body


def delete_all(client: Any, bucket: str, prefix: str) -> None:
    found = keys(client, bucket, prefix)
    for start in range(0, len(found), 1000):
        listed = [{"Key": key} for key in found[start : start + 1000]]
        client.delete_objects(Bucket=bucket, Delete={"Objects": listed, "Quiet": True})


def choose(client: Any, bucket: str, prefix: str, rng: random.Random) -> str:
    """A random object of the bag that has content; payload half of the time. Empty when there is none."""
    pages = client.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=f"{prefix}/")
    found = sorted(entry["Key"] for page in pages for entry in page.get("Contents", []) if entry["Size"])
    payload = [key for key in found if key.startswith(f"{prefix}/data/")]
    tags = [key for key in found if key not in payload]
    pools = [pool for pool in (payload, tags) if pool]
    return rng.choice(rng.choice(pools)) if pools else ""


def tamper(client: Any, bucket: str, prefix: str, rng: random.Random, kind: str = "") -> str:
    """Does one thing to the bag that its owner did not; says what, or nothing when the bag is empty."""
    kind = kind or rng.choice(["flip", "shorten", "delete", "swap", "add"])
    key = choose(client, bucket, prefix, rng)
    if not key:
        return ""
    if kind == "add":
        key = f"{prefix}/data/added-by-somebody"
        put(client, bucket, key, b"not in the manifest")
    elif kind == "delete":
        client.delete_object(Bucket=bucket, Key=key)
    elif kind == "swap":
        other, bodies = choose(client, bucket, prefix, rng), {}
        for name in (key, other):
            bodies[name] = get(client, bucket, name)
        if bodies[key] == bodies[other]:
            return tamper(client, bucket, prefix, rng, "flip")
        put(client, bucket, key, bodies[other])
        return f"swap: {key} now has the content of {other}"
    else:
        body = get(client, bucket, key)
        put(client, bucket, key, flip(body) if kind == "flip" else body[:-1])
    return f"{kind}: {key}"


def download(client: Any, bucket: str, prefix: str, directory: Path) -> None:
    """What `aws s3 cp --recursive` does, and then what fetch.txt names."""
    for key in keys(client, bucket, f"{prefix}/"):
        path = directory / key[len(prefix) + 1 :]
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(get(client, bucket, key))
    fetch = directory / "fetch.txt"
    for line in fetch.read_text().splitlines() if fetch.exists() else ():
        url, _, name = line.split(" ", 2)
        place = urllib.parse.urlsplit(url)
        path = directory / urllib.parse.unquote(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(get(client, place.netloc, urllib.parse.unquote(place.path.lstrip("/"))))


def validate(client: Any, bucket: str, prefix: str, directory: Path) -> str:
    """Downloads the bag and asks bagit-python; returns what is wrong, or nothing."""
    shutil.rmtree(directory, ignore_errors=True)
    directory.mkdir(parents=True)
    before = os.getcwd()
    try:
        download(client, bucket, prefix, directory)
        bagit.Bag(str(directory)).validate()
    except (bagit.BagError, bagit.BagValidationError) as error:
        return str(error)
    finally:
        os.chdir(before)
    shutil.rmtree(directory)
    return ""
