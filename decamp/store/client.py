"""A bag's place in an S3 store: the few requests that the engine makes, each with its proof asked for."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from botocore.exceptions import BotoCoreError, ClientError

from decamp.errors import BadInput, StoreFailure
from decamp.store.failures import StoreRefusal, translate
from decamp.store.location import StoreLocation

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

SINGLE_PUT_LIMIT_BYTES = 5 << 30  # Amazon S3 User Guide, "Uploading objects" (2026): 5 GB in one PUT
_LIST_PAGE_LIMIT = 1_000_000


@dataclass(frozen=True)
class ListedObject:
    """One line of a listing: key relative to the location, size in bytes, entity tag without quotes."""

    key: str
    size_bytes: int
    etag: str


@dataclass(frozen=True)
class Acceptance:
    """The store's answer to an upload: entity tag, and the SHA-256 that it says it checked (None: it said nothing)."""

    etag: str
    sha256: str | None


@dataclass(frozen=True)
class StoredObject:
    """What a HEAD says of an object: size in bytes, entity tag, and the SHA-256 that the store attests.

    Attributes:
        sha256: base64 as S3 gives it; of a multipart upload the composite `...-N`; None where the store has none.
    """

    size_bytes: int
    etag: str
    sha256: str | None


def base64_digest(digest: bytes) -> str:
    """A digest in the form that S3's checksum headers have."""
    return base64.b64encode(digest).decode("ascii")


def composite_checksum(part_digests: list[bytes]) -> str:
    """The checksum of a multipart upload from its parts' SHA-256 digests.

    Source: Amazon S3 User Guide, "Checking object integrity", composite checksums (2026).
    """
    return f"{base64_digest(hashlib.sha256(b''.join(part_digests)).digest())}-{len(part_digests)}"


class Store:
    """Requests to one location of one S3 store. Safe to use from many threads.

    Args:
        location: bucket and prefix; keys given to the methods are relative to it.
        endpoint_url: of an S3-compatible store, reached with path-style addresses; None for Amazon's own.
        region: the bucket's region, or None for boto3's usual choice.
        connections: how many requests run at the same time at most.
        attempts: how often a request is tried before its failure is told.
    """

    def __init__(
        self,
        location: StoreLocation,
        endpoint_url: str | None = None,
        region: str | None = None,
        *,
        connections: int = 16,
        attempts: int = 6,
    ) -> None:
        self.location = location
        self.endpoint_url = endpoint_url
        self._region = region
        self._connections = connections
        self._attempts = attempts
        self._client: S3Client | None = None
        self._lock = threading.Lock()

    @property
    def client(self) -> S3Client:
        """The boto3 client, made when it is first needed: loading boto3 takes a third of a second."""
        with self._lock:
            if self._client is None:
                try:
                    with _translated(self.location.url):
                        self._client = self._connect()
                except ValueError as error:
                    raise BadInput(
                        self.endpoint_url or "AWS_ENDPOINT_URL",
                        "the store's address is wrong",
                        expected="a URL such as https://host:port",
                        found=str(error),
                    ) from error
            return self._client

    def _connect(self) -> S3Client:
        # boto3's own client, without the parts of boto3 that nothing here uses: they take longer to load than it.
        from botocore.config import Config
        from botocore.session import get_session

        endpoint_url = self.endpoint_url or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        session = get_session()
        region = self._region or session.get_config_variable("region") or "us-east-1"
        config = Config(
            signature_version="s3v4",
            connect_timeout=10,
            read_timeout=60,
            max_pool_connections=self._connections,
            tcp_keepalive=True,
            retries={"mode": "standard", "total_max_attempts": self._attempts},
            # Our own SHA-256 goes with every body, so neither botocore's CRC trailer (some stores keep it inside
            # the object) nor a second hash for the signature is wanted.
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"addressing_style": "path" if endpoint_url else "auto", "payload_signing_enabled": False},
        )
        client = session.create_client("s3", endpoint_url=endpoint_url, region_name=region, config=config)
        return cast("S3Client", client)

    def _where(self, key: str) -> str:
        return f"s3://{self.location.bucket}/{self.location.key(key)}"

    def elsewhere(self, url: str) -> tuple[Store, str]:
        """Returns the store of another `s3://bucket/key`, over the same connections, and the key in it."""
        bucket, _, key = url.removeprefix("s3://").partition("/")
        other = Store(
            StoreLocation(bucket, ""),
            self.endpoint_url,
            self._region,
            connections=self._connections,
            attempts=self._attempts,
        )
        other._client = self.client
        return other, key

    def put_bytes(self, key: str, body: bytes | bytearray, digest: bytes | None = None) -> Acceptance:
        """Stores an object with its SHA-256 for the store to check."""
        digest = digest if digest is not None else hashlib.sha256(body).digest()
        with _translated(self._where(key)):
            answer = self.client.put_object(
                Bucket=self.location.bucket,
                Key=self.location.key(key),
                Body=body,  # type: ignore[arg-type]  # the stubs lack bytearray
                ChecksumSHA256=base64_digest(digest),
            )
        return Acceptance(answer["ETag"].strip('"'), answer.get("ChecksumSHA256"))

    def get_bytes(self, key: str) -> bytes:
        """Returns an object's whole content; meant for small ones."""
        return b"".join(self.get_chunks(key))

    def get_chunks(
        self, key: str, chunk_bytes: int = 1 << 20, *, start: int | None = None, end: int | None = None
    ) -> Iterator[bytes]:
        """Yields an object's content, or the bytes from `start` up to and without `end`.

        Raises:
            StoreFailure: also when the body ends before the length that the store announced.
        """
        arguments: dict[str, Any] = {}
        if start is not None and end is not None:
            arguments["Range"] = f"bytes={start}-{end - 1}"
        where = self._where(key)
        with _translated(where):
            answer = self.client.get_object(Bucket=self.location.bucket, Key=self.location.key(key), **arguments)
            with contextlib.closing(answer["Body"]) as body:
                while chunk := body.read(chunk_bytes):
                    yield chunk

    def head(self, key: str) -> StoredObject | None:
        """Returns size, entity tag and attested SHA-256 of an object, or None where there is none."""
        try:
            with _translated(self._where(key)):
                answer = self.client.head_object(
                    Bucket=self.location.bucket, Key=self.location.key(key), ChecksumMode="ENABLED"
                )
        except StoreRefusal as refusal:
            if refusal.status == 404:
                return None
            raise
        return StoredObject(answer["ContentLength"], answer["ETag"].strip('"'), answer.get("ChecksumSHA256"))

    def exists(self, key: str) -> bool:
        return self.head(key) is not None

    def delete(self, key: str) -> None:
        with _translated(self._where(key)):
            self.client.delete_object(Bucket=self.location.bucket, Key=self.location.key(key))

    def list_objects(self, prefix: str = "", page_size: int = 1000) -> Iterator[ListedObject]:
        """Yields every object below a prefix, in the order that the store has: not every store's is that of the keys.

        Raises:
            StoreFailure: the store's pages do not follow each other (a missing continuation token, a token or a
                page that was there before): such a listing proves nothing.
        """
        own_prefix = self.location.prefix + "/" if self.location.prefix else ""
        full_prefix = own_prefix + prefix
        cut = len(own_prefix)
        token: str | None = None
        tokens: set[str] = set()
        first_keys: set[str] = set()
        for _ in range(_LIST_PAGE_LIMIT):
            arguments: dict[str, Any] = {"ContinuationToken": token} if token is not None else {}
            where = f"s3://{self.location.bucket}/{full_prefix}"
            with _translated(where):
                page = self.client.list_objects_v2(
                    Bucket=self.location.bucket, Prefix=full_prefix, MaxKeys=page_size, **arguments
                )
            contents = page.get("Contents", ())
            for item in contents:
                yield ListedObject(item["Key"][cut:], item["Size"], item["ETag"].strip('"'))
            if contents and contents[0]["Key"] in first_keys:
                raise StoreFailure(
                    where,
                    "the store's listing cannot be trusted",
                    expected="a page that was not there before",
                    found=f"{contents[0]['Key']} again",
                )
            first_keys.update(item["Key"] for item in contents[:1])
            if not page.get("IsTruncated"):
                return
            token = page.get("NextContinuationToken")
            if not token or token in tokens:
                raise StoreFailure(
                    where,
                    "the store's listing cannot be trusted",
                    expected="a new continuation token",
                    found=repr(token),
                )
            tokens.add(token)

    def create_upload(self, key: str) -> str:
        """Starts a multipart upload whose parts carry SHA-256; returns its id."""
        with _translated(self._where(key)):
            answer = self.client.create_multipart_upload(
                Bucket=self.location.bucket, Key=self.location.key(key), ChecksumAlgorithm="SHA256"
            )
        return answer["UploadId"]

    def put_part(
        self, key: str, upload_id: str, number: int, body: bytes | bytearray | memoryview, digest: bytes
    ) -> Acceptance:
        """Stores one part with its SHA-256 for the store to check."""
        with _translated(self._where(key)):
            answer = self.client.upload_part(
                Bucket=self.location.bucket,
                Key=self.location.key(key),
                Body=body,  # type: ignore[arg-type]  # the stubs lack bytearray
                UploadId=upload_id,
                PartNumber=number,
                ChecksumSHA256=base64_digest(digest),
            )
        return Acceptance(answer["ETag"].strip('"'), answer.get("ChecksumSHA256"))

    def complete_upload(self, key: str, upload_id: str, parts: list[tuple[str, bytes]]) -> Acceptance:
        """Joins the parts, given as entity tag and SHA-256 digest in their order.

        A retry after a lost answer finds the upload gone; then the object itself shows whether it was joined.
        """
        listed: list[Any] = [
            {"PartNumber": number, "ETag": etag, "ChecksumSHA256": base64_digest(digest)}
            for number, (etag, digest) in enumerate(parts, 1)
        ]
        try:
            with _translated(self._where(key)):
                answer = self.client.complete_multipart_upload(
                    Bucket=self.location.bucket,
                    Key=self.location.key(key),
                    UploadId=upload_id,
                    MultipartUpload={"Parts": listed},
                )
            return Acceptance(answer["ETag"].strip('"'), answer.get("ChecksumSHA256"))
        except StoreRefusal as refusal:
            if refusal.code != "NoSuchUpload":
                raise
            stored = self.head(key)
            if stored is None or stored.sha256 != composite_checksum([digest for _, digest in parts]):
                raise
            return Acceptance(stored.etag, stored.sha256)

    def list_uploads(self) -> list[tuple[str, str]]:
        """Returns relative key and id of every multipart upload that was started below the location and not ended."""
        prefix = self.location.prefix + "/" if self.location.prefix else ""
        found = []
        with _translated(self.location.url):
            for page in self.client.get_paginator("list_multipart_uploads").paginate(
                Bucket=self.location.bucket, Prefix=prefix
            ):
                for item in page.get("Uploads", ()):
                    if item["Key"].startswith(prefix):
                        found.append((item["Key"][len(prefix) :], item["UploadId"]))
        return found

    def list_parts(self, key: str, upload_id: str) -> dict[int, tuple[str, str | None, int]]:
        """Returns entity tag, attested SHA-256 (base64) and size of each part that an unfinished upload has."""
        parts = {}
        with _translated(self._where(key)):
            for page in self.client.get_paginator("list_parts").paginate(
                Bucket=self.location.bucket, Key=self.location.key(key), UploadId=upload_id
            ):
                for item in page.get("Parts", ()):
                    parts[item["PartNumber"]] = (item["ETag"].strip('"'), item.get("ChecksumSHA256"), item["Size"])
        return parts

    def abort_upload(self, key: str, upload_id: str) -> None:
        """Ends a multipart upload and frees its parts; one that is gone already is fine."""
        try:
            with _translated(self._where(key)):
                self.client.abort_multipart_upload(
                    Bucket=self.location.bucket, Key=self.location.key(key), UploadId=upload_id
                )
        except StoreRefusal as refusal:
            if refusal.status != 404:
                raise


@contextlib.contextmanager
def _translated(where: str) -> Iterator[None]:
    """Turns what botocore and urllib3 raise into StoreFailure."""
    from urllib3.exceptions import HTTPError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise translate(error, where) from error
    except (HTTPError, ConnectionError, TimeoutError) as error:
        raise StoreFailure(where, "the store's answer broke off", found=" ".join(str(error).split())[:200]) from error
