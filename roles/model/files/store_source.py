"""Lists and opens the objects below a URL of an S3-compatible store, and checks content by what the store attests."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import partial
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError
from fetch_files import CHUNK_BYTES, NoMore, Refused, Remote, Stream, Unsteady, digest_file, say

SETTINGS = Config(
    retries={"max_attempts": 5, "mode": "standard"},
    s3={"addressing_style": "path"},
    max_pool_connections=16,
    # Not every store knows the checksums that boto3 asks for by default.
    response_checksum_validation="when_required",
)


class ObjectStore:
    """The objects below `s3://bucket/prefix`, or the one that has this very name."""

    def __init__(self, url: str, endpoint_url: str, region: str) -> None:
        self._url = url
        self._bucket, _, prefix = url.removeprefix("s3://").partition("/")
        self._prefix = f"{prefix.rstrip('/')}/"
        self._client: Any = boto3.client(
            "s3", endpoint_url=endpoint_url or None, region_name=region or None, config=SETTINGS
        )

    def list_files(self) -> list[Remote]:
        """Returns every object as a file; raises Refused when there is none or the store does not say."""
        try:
            pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self._bucket, Prefix=self._prefix)
            objects = [item for page in pages for item in page.get("Contents", []) if not item["Key"].endswith("/")]
        except (BotoCoreError, ClientError) as error:
            raise Refused(f"{self._url}: the store does not list it: {error}") from None
        if not objects:
            raise Refused(f"{self._url}: no model: expected objects, found none; run: aws s3 ls {self._url}/")
        return [
            self._describe(item["Key"][len(self._prefix) :], item["Key"], item["Size"], item["ETag"])
            for item in objects
        ]

    def describe_object(self, path: str) -> Remote:
        """Returns the object of exactly this URL as a file that belongs at `path`; raises Refused without one."""
        key = self._prefix.rstrip("/")
        try:
            about = self._client.head_object(Bucket=self._bucket, Key=key)
        except (BotoCoreError, ClientError) as error:
            raise Refused(f"{self._url}: the store does not show it: {error}; run: aws s3 ls {self._url}") from None
        return self._describe(path, key, about["ContentLength"], about["ETag"])

    def _describe(self, path: str, key: str, size: int, etag: str) -> Remote:
        digest = etag.strip('"')
        return Remote(path, size, digest, partial(self._open, key, etag), partial(self._find_fault, key, digest))

    def _open(self, key: str, etag: str, offset: int) -> tuple[Stream, int]:
        try:
            answer = self._client.get_object(Bucket=self._bucket, Key=key, Range=f"bytes={offset}-", IfMatch=etag)
        except ClientError as error:
            status = error.response["ResponseMetadata"]["HTTPStatusCode"]
            if status == 416:
                raise NoMore from None
            if status in (403, 404, 412):
                raise Refused(f"s3://{self._bucket}/{key}: the store does not give it: {error}") from None
            raise Unsteady(str(error)) from None
        except BotoCoreError as error:
            raise Unsteady(str(error)) from None
        return Body(answer["Body"]), offset

    def _find_fault(self, key: str, etag: str, path: Path) -> str:
        """Compares with the SHA-256 or else the MD5 that the store has; says so where it has neither."""
        about = self._client.head_object(Bucket=self._bucket, Key=key, ChecksumMode="ENABLED")
        attested = about.get("ChecksumSHA256") or ""
        if attested and "-" not in attested:
            expected, found = base64.b64decode(attested).hex(), digest_file(path, "sha256")
            return "" if found == expected else f"expected SHA-256 {expected}, found {found}"
        # With a key of KMS an ETag is no digest (Amazon S3 API Reference, "Object", ETag, 2025).
        if not str(about.get("ServerSideEncryption", "")).startswith("aws:kms"):
            found = ""
            if re.fullmatch(r"[0-9a-f]{32}", etag):
                found = digest_file(path, "md5")
            elif re.fullmatch(r"[0-9a-f]{32}-\d+", etag):
                found = self._digest_parts(key, int(etag.split("-")[1]), path)
            if found:
                return "" if found == etag else f"expected ETag {etag}, found {found}"
        say(f"{path.name}: the store attests no digest: its size and safetensors header alone are checked")
        return ""

    def _digest_parts(self, key: str, parts: int, path: Path) -> str:
        """Returns the ETag that the file would have as an upload of such parts; empty where the store hides them."""
        digests = b""
        with path.open("rb") as stream:
            for number in range(1, parts + 1):
                about = self._client.head_object(Bucket=self._bucket, Key=key, PartNumber=number)
                if about.get("PartsCount") != parts:
                    return ""
                digest, left = hashlib.md5(usedforsecurity=False), int(about["ContentLength"])
                while left and (chunk := stream.read(min(CHUNK_BYTES, left))):
                    digest.update(chunk)
                    left -= len(chunk)
                digests += digest.digest()
        return f"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{parts}"


class Body:
    """An object's content as a stream whose breaks are ordinary errors."""

    def __init__(self, body: Any) -> None:
        self._body = body

    def __enter__(self) -> Body:
        return self

    def __exit__(self, *_reason: object) -> None:
        self._body.close()

    def read(self, size: int) -> bytes:
        try:
            return bytes(self._body.read(size))
        except (BotoCoreError, OSError) as error:
            raise Unsteady(f"{type(error).__name__}: {error}") from None
