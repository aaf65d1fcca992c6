"""A node may do what an evacuation and a restore need, in its own prefix of the bucket, and nothing else anywhere."""

from __future__ import annotations

import json
from typing import Any

from decamp.store.location import StoreLocation

# The engine writes, reads, lists and replaces objects, aborts its own uploads, and reads what was stored with them.
_OBJECT_ACTIONS = (
    "s3:GetObject",
    "s3:GetObjectVersion",
    "s3:PutObject",
    "s3:DeleteObject",
    "s3:AbortMultipartUpload",
    "s3:ListMultipartUploadParts",
)
_READ_ACTIONS = ("s3:GetObject", "s3:GetObjectVersion")

ASSUME_BY_EC2 = json.dumps(
    {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"},
        ],
    }
)


def make_node_policy(store_url: str, node: str, kms_key_arn: str = "") -> str:
    """Returns the policy of a node's role.

    Args:
        store_url: `s3://bucket/prefix`.
        node: the node's name; it may write below `<prefix>/<node>/` alone.
        kms_key_arn: key that the bucket encrypts with; empty for S3's own.
    """
    own = StoreLocation.parse(f"{store_url}/{node}")
    bucket, prefix = f"arn:aws:s3:::{own.bucket}", own.prefix.strip("/")
    shared = StoreLocation.parse(store_url).prefix.strip("/")
    around = f"{shared}/*" if shared else "*"
    statements: list[dict[str, Any]] = [
        {
            "Sid": "WriteOwnPrefix",
            "Effect": "Allow",
            "Action": list(_OBJECT_ACTIONS),
            "Resource": f"{bucket}/{prefix}/*",
        },
        # What other nodes have stored is named instead of sent again, and a restore may come from their archives.
        {"Sid": "ReadTheStore", "Effect": "Allow", "Action": list(_READ_ACTIONS), "Resource": f"{bucket}/{around}"},
        {
            "Sid": "ListTheStore",
            "Effect": "Allow",
            "Action": ["s3:ListBucket", "s3:ListBucketVersions"],
            "Resource": bucket,
            "Condition": {"StringLike": {"s3:prefix": [around, *([shared] if shared else [""])]}},
        },
        {
            "Sid": "LookAtTheBucket",
            "Effect": "Allow",
            "Action": ["s3:GetBucketLocation", "s3:GetBucketVersioning", "s3:ListBucketMultipartUploads"],
            "Resource": bucket,
        },
    ]
    if kms_key_arn:
        statements.append(
            {
                "Sid": "UseTheBucketsKey",
                "Effect": "Allow",
                "Action": ["kms:GenerateDataKey", "kms:Decrypt"],
                "Resource": kms_key_arn,
            }
        )
    return json.dumps({"Version": "2012-10-17", "Statement": statements})


def make_bucket_policy(bucket: str) -> str:
    """Returns a policy that refuses every request without TLS, and every TLS older than 1.2."""
    resources = [f"arn:aws:s3:::{bucket}", f"arn:aws:s3:::{bucket}/*"]
    refuse: dict[str, Any] = {"Effect": "Deny", "Principal": "*", "Action": "s3:*", "Resource": resources}
    return json.dumps(
        {
            "Version": "2012-10-17",
            "Statement": [
                {**refuse, "Sid": "RefusePlainHttp", "Condition": {"Bool": {"aws:SecureTransport": "false"}}},
                {**refuse, "Sid": "RefuseOldTls", "Condition": {"NumericLessThan": {"s3:TlsVersion": "1.2"}}},
            ],
        }
    )
