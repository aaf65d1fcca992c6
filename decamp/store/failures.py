"""What an S3 error means for a user, and what to do about it."""

from __future__ import annotations

from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    EndpointConnectionError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
    ProfileNotFound,
)
from botocore.exceptions import (
    ConnectionError as BotoConnectionError,
)

from decamp.errors import StoreFailure

_ADVICE = {
    "NoSuchBucket": ("the bucket does not exist", "create it, or correct --store"),
    "AccessDenied": ("access is denied", "give these credentials list, get, put and multipart rights on the prefix"),
    "403": ("access is denied", "give these credentials list, get, put and multipart rights on the prefix"),
    "InvalidAccessKeyId": ("the access key is unknown to the store", "check AWS_ACCESS_KEY_ID and --endpoint-url"),
    "SignatureDoesNotMatch": ("the store refuses the signature", "check AWS_SECRET_ACCESS_KEY and --region"),
    "RequestTimeTooSkewed": (
        "this machine's clock differs from the store's",
        "timedatectl set-ntp true, then the same command again",
    ),
    "ExpiredToken": ("the session token has expired", "get new credentials"),
    "PermanentRedirect": ("the bucket is in another region", "pass its region with --region"),
    "AuthorizationHeaderMalformed": ("the bucket is in another region", "pass its region with --region"),
    "InsufficientStorage": ("the store is full", "make room in the store and run again"),
    "XMinioStorageFull": ("the store is full", "make room in the store and run again"),
    "QuotaExceeded": ("the store's quota is used up", "raise the quota and run again"),
}


_DIGEST_CODES = frozenset(
    (
        "BadDigest",
        "XAmzContentSHA256Mismatch",
        "InvalidDigest",
        "XAmzContentChecksumMismatch",
        "InvalidRequest",
        "IncompleteBody",
        "RequestTimeout",
    )
)


class StoreRefusal(StoreFailure):
    """The store answered a request with an error; `code` is S3's name for it and `status` the HTTP status."""

    def __init__(self, where: str, what: str, code: str, status: int, *, found: str = "", run: str = "") -> None:
        self.code = code
        self.status = status
        super().__init__(where, what, found=found, run=run)

    @property
    def is_damaged_body(self) -> bool:
        """Whether the body was damaged on its way, so that sending it again can help."""
        return self.code in _DIGEST_CODES


class StoreUnreachable(StoreFailure):
    """No answer came from the store."""


def translate(error: BotoCoreError | ClientError, where: str) -> StoreFailure:
    """Returns the typed failure for an error that botocore raised after its own retries."""
    if isinstance(error, ClientError):
        details = error.response.get("Error", {})
        code = str(details.get("Code", "unknown"))
        status = int(error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0) or 0)
        what, run = _ADVICE.get(code, ("the store refused the request", ""))
        if status == 507:
            what, run = _ADVICE["InsufficientStorage"]
        message = " ".join(str(details.get("Message", "")).split())[:200]
        return StoreRefusal(where, what, code, status, found=f"{code} {message}".strip(), run=run)
    text = " ".join(str(error).split())[:300]
    if isinstance(error, (NoCredentialsError, PartialCredentialsError, ProfileNotFound)):
        return StoreFailure(
            where,
            "no credentials for the store",
            found=text,
            run="export AWS_ACCESS_KEY_ID=... AWS_SECRET_ACCESS_KEY=...",
        )
    if isinstance(error, NoRegionError):
        return StoreFailure(where, "no region is known", run="pass --region, or set AWS_DEFAULT_REGION")
    if isinstance(error, (EndpointConnectionError, BotoConnectionError)):
        return StoreUnreachable(
            where,
            "the store cannot be reached",
            found=text,
            run="check --endpoint-url and the network, then run the same command again",
        )
    return StoreUnreachable(where, "the request to the store failed", found=text)
