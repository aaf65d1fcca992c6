"""Where a bag is: bucket and prefix."""

from __future__ import annotations

import re
from dataclasses import dataclass

from decamp.errors import BadInput

_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")


@dataclass(frozen=True)
class StoreLocation:
    """A bucket and a prefix without a slash at either end.

    Attributes:
        bucket: 3 to 63 characters (Amazon S3 User Guide, "Bucket naming rules", 2026).
        prefix: key prefix; empty for the whole bucket.
    """

    bucket: str
    prefix: str

    @classmethod
    def parse(cls, url: str) -> StoreLocation:
        """Returns the location that `s3://bucket/prefix` names; raises BadInput for anything else."""
        wanted = "s3://bucket/prefix/node"
        if not url.startswith("s3://"):
            raise BadInput(url, "is no place in a store", expected=wanted)
        bucket, _, prefix = url[5:].partition("/")
        if not _BUCKET.fullmatch(bucket):
            raise BadInput(
                url,
                "the bucket's name is wrong",
                expected="3 to 63 lower-case letters, digits, dots and hyphens",
                found=bucket or "nothing",
            )
        prefix = prefix.strip("/")
        if any(part in ("", ".", "..") for part in prefix.split("/")) and prefix:
            raise BadInput(url, "the prefix has an empty or dotted part", expected=wanted)
        return cls(bucket, prefix)

    @property
    def url(self) -> str:
        return f"s3://{self.bucket}/{self.prefix}" if self.prefix else f"s3://{self.bucket}"

    @property
    def node(self) -> str:
        """The last part of the prefix: the node's name."""
        return self.prefix.rsplit("/", 1)[-1]

    def key(self, relative: str) -> str:
        """The object key of a path inside the bag."""
        return f"{self.prefix}/{relative}" if self.prefix else relative
