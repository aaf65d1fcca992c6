"""Signs an S3 request anew (Signature Version 4) after a fault has changed what the client had signed.

Source of the method: AWS, "Authenticating Requests: Using the Authorization Header (AWS Signature Version 4)".
"""

from __future__ import annotations

import datetime
import hashlib
import hmac
import urllib.parse

UNSIGNED = "UNSIGNED-PAYLOAD"
SAFE_IN_PATH = "/-_.~"
SAFE_IN_QUERY = "-_.~"
CHECKSUM_HEADERS = ("x-amz-checksum-", "x-amz-sdk-checksum-algorithm", "content-md5", "x-amz-trailer")

Headers = list[tuple[str, str]]


def without_checksums(headers: Headers) -> Headers:
    """The headers less every one by which a store could notice that the body is another one."""
    return [(name, value) for name, value in headers if not name.lower().startswith(CHECKSUM_HEADERS)]


def _digest(key: bytes, text: str) -> bytes:
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


def sign(
    method: str, target: str, headers: Headers, access_key: str, secret_key: str, region: str = "us-east-1"
) -> Headers:
    """The same headers with a fresh Authorization over an unsigned payload; a store that checks it accepts it."""
    now = datetime.datetime.now(datetime.UTC)
    stamp, day = now.strftime("%Y%m%dT%H%M%SZ"), now.strftime("%Y%m%d")
    replaced = {"authorization", "x-amz-date", "x-amz-content-sha256", "date", "x-amz-decoded-content-length"}
    kept = [(name, value) for name, value in headers if name.lower() not in replaced]
    kept += [("x-amz-date", stamp), ("x-amz-content-sha256", UNSIGNED)]
    covered = sorted(
        (name.lower(), " ".join(value.split()))
        for name, value in kept
        if name.lower() == "host" or name.lower().startswith("x-amz-")
    )
    path, _, query = target.partition("?")
    pairs = sorted(
        (urllib.parse.quote(name, safe=SAFE_IN_QUERY), urllib.parse.quote(value, safe=SAFE_IN_QUERY))
        for name, value in urllib.parse.parse_qsl(query, keep_blank_values=True, errors="surrogateescape")
    )
    canonical_path = urllib.parse.quote(urllib.parse.unquote_to_bytes(path), safe=SAFE_IN_PATH)
    names = ";".join(name for name, _ in covered)
    canonical = "\n".join(
        [
            method,
            canonical_path,
            "&".join(f"{name}={value}" for name, value in pairs),
            "".join(f"{name}:{value}\n" for name, value in covered),
            names,
            UNSIGNED,
        ]
    )
    scope = f"{day}/{region}/s3/aws4_request"
    to_sign = "\n".join(["AWS4-HMAC-SHA256", stamp, scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = _digest(_digest(_digest(_digest(f"AWS4{secret_key}".encode(), day), region), "s3"), "aws4_request")
    signature = hmac.new(key, to_sign.encode(), hashlib.sha256).hexdigest()
    authorization = f"AWS4-HMAC-SHA256 Credential={access_key}/{scope}, SignedHeaders={names}, Signature={signature}"
    return [*kept, ("Authorization", authorization)]
