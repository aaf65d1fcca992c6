"""One S3 request and its answer as the fault proxy sees them, with the operation named as S3's own API names it."""

from __future__ import annotations

import urllib.parse
from dataclasses import dataclass, field, replace

from tests.faults import seaweed, signing

Headers = list[tuple[str, str]]

WRITES = frozenset({"PutObject", "UploadPart", "CreateMultipartUpload", "CompleteMultipartUpload", "CopyObject"})
BODY_WRITES = frozenset({"PutObject", "UploadPart"})
LISTS = frozenset({"ListObjectsV2", "ListObjects"})
DELETES = frozenset({"DeleteObject", "DeleteObjects", "AbortMultipartUpload"})

_OBJECT_SUBRESOURCES = {"tagging": "ObjectTagging", "acl": "ObjectAcl", "attributes": "GetObjectAttributes"}
_BUCKET_SUBRESOURCES = {
    "location": "GetBucketLocation",
    "versioning": "BucketVersioning",
    "lifecycle": "BucketLifecycle",
    "encryption": "BucketEncryption",
    "policy": "BucketPolicy",
    "versions": "ListObjectVersions",
}


class ResetOnPurposeError(Exception):
    """The proxy answers by resetting the connection, after `sent` bytes of the raw answer."""

    def __init__(self, sent: bytes = b"") -> None:
        super().__init__("connection reset on purpose")
        self.sent = sent


def header(headers: Headers, name: str) -> str:
    """The first value of a header, or an empty text."""
    return next((value for known, value in headers if known.lower() == name.lower()), "")


def with_header(headers: Headers, name: str, value: str | None) -> Headers:
    """The headers with one replaced, added, or (None) left out."""
    kept = [(known, old) for known, old in headers if known.lower() != name.lower()]
    return kept if value is None else [*kept, (name, value)]


@dataclass(frozen=True)
class Request:
    """A request read whole. `ordinal` counts all requests of a schedule, `occurrence` those of the same identity.

    `announced` is a Content-Length larger than the body: the store is told of it and then hung up on.
    """

    method: str
    target: str
    headers: Headers
    body: bytes
    ordinal: int = 0
    occurrence: int = 0
    announced: int | None = None

    @property
    def bucket(self) -> str:
        return self.target.partition("?")[0].lstrip("/").partition("/")[0]

    @property
    def key(self) -> str:
        raw = self.target.partition("?")[0].lstrip("/").partition("/")[2]
        return urllib.parse.unquote(raw, errors="surrogateescape")

    @property
    def query(self) -> dict[str, str]:
        text = self.target.partition("?")[2]
        return dict(urllib.parse.parse_qsl(text, keep_blank_values=True, errors="surrogateescape"))

    @property
    def operation(self) -> str:
        query, method = self.query, self.method
        if not self.key:
            return self._bucket_operation(query, method)
        for name, operation in _OBJECT_SUBRESOURCES.items():
            if name in query:
                return operation
        if method == "PUT":
            if "partNumber" in query:
                return "UploadPartCopy" if header(self.headers, "x-amz-copy-source") else "UploadPart"
            return "CopyObject" if header(self.headers, "x-amz-copy-source") else "PutObject"
        if method == "POST":
            return "CreateMultipartUpload" if "uploads" in query else "CompleteMultipartUpload"
        if method == "DELETE":
            return "AbortMultipartUpload" if "uploadId" in query else "DeleteObject"
        if method == "GET":
            return "ListParts" if "uploadId" in query else "GetObject"
        return "HeadObject" if method == "HEAD" else method

    @staticmethod
    def _bucket_operation(query: dict[str, str], method: str) -> str:
        if method == "POST" and "delete" in query:
            return "DeleteObjects"
        if "uploads" in query:
            return "ListMultipartUploads"
        for name, operation in _BUCKET_SUBRESOURCES.items():
            if name in query:
                return operation
        if method == "GET":
            return "ListObjectsV2" if query.get("list-type") == "2" else "ListObjects"
        return {"HEAD": "HeadBucket", "PUT": "CreateBucket", "DELETE": "DeleteBucket"}.get(method, method)

    @property
    def identity(self) -> str:
        """What stays the same when the same thing is asked again: no dates, no upload numbers."""
        query = self.query
        return f"{self.operation} {self.key} {query.get('partNumber', '')} {query.get('prefix', '')}"

    def changed(
        self, *, body: bytes | None = None, target: str | None = None, headers: Headers | None = None
    ) -> Request:
        """The request changed and signed again, so that only what the fault is about is noticeable."""
        new_body = self.body if body is None else body
        new_target = self.target if target is None else target
        kept = with_header(self.headers if headers is None else headers, "Content-Length", None)
        kept = signing.sign(self.method, new_target, kept, seaweed.ACCESS_KEY, seaweed.SECRET_KEY, seaweed.REGION)
        return replace(self, body=new_body, target=new_target, headers=kept)


@dataclass(frozen=True)
class Response:
    """An answer read whole. `length` is the Content-Length to claim; None means the body's own."""

    status: int
    headers: Headers = field(default_factory=list)
    body: bytes = b""
    length: int | None = None

    def encode(self, head: bool) -> bytes:
        """The bytes to put on the wire; a HEAD has no body but keeps the length it was given."""
        lines = [f"HTTP/1.1 {self.status} Answer"]
        dropped = {"content-length", "transfer-encoding", "connection", "keep-alive"}
        claimed = header(self.headers, "Content-Length") if head else ""
        if not claimed:
            claimed = str(len(self.body) if self.length is None else self.length)
        lines += [f"{name}: {value}" for name, value in self.headers if name.lower() not in dropped]
        if self.status not in (204, 304):
            lines.append(f"Content-Length: {claimed}")
        text = "\r\n".join(lines) + "\r\n\r\n"
        return text.encode("latin-1") + (b"" if head else self.body)


def error(status: int, code: str, message: str = "injected") -> Response:
    """An S3 error document."""
    body = (
        f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{code}</Code><Message>{message}</Message>'
        "<RequestId>injected</RequestId></Error>"
    ).encode()
    return Response(status, [("Content-Type", "application/xml")], body)
