"""The policies in docs/ name actions that there are, and allow every call that Decamp and its provider make.

Which calls those are is read from the code: what the stand-in provider calls is what the real one does for the same
resources, as far as the tests know.
"""

from __future__ import annotations

import ast
import fnmatch
import json
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import botocore.session
import pytest
from botocore import xform_name

from infra.aws.permissions import make_node_policy

CHECKOUT = Path(__file__).resolve().parents[2]
OPERATOR, PURCHASE = (CHECKOUT / "docs" / f"aws-{name}-policy.json" for name in ("operator", "purchase"))
# boto3's names of services, and what IAM calls them.
PREFIXES = {"ec2": "ec2", "iam": "iam", "pricing": "pricing", "s3": "s3", "service-quotas": "servicequotas"}
PREFIXES |= {"ssm": "ssm", "sts": "sts"}
OPERATOR_CODE = (
    *(CHECKOUT / "decamp" / "aws").glob("*.py"),
    *(CHECKOUT / "infra" / "aws").glob("*.py"),
    *(CHECKOUT / "decamp" / f"{name}.py" for name in ("capacity", "sweep")),
    *(CHECKOUT / "tests" / "aws_provider").glob("*_kinds.py"),
)
# What the stand-in alone does: it changes no volumes and looks for none of its own, and deletes no bucket in any test.
STAND_IN_ALONE = {"s3:DeleteBucket"}
# S3 User Guide, "Required permissions for Amazon S3 API operations" (2025), where it is not the operation's own name.
S3_ACTIONS = {
    "CompleteMultipartUpload": "PutObject",
    "CreateMultipartUpload": "PutObject",
    "GetBucketEncryption": "GetEncryptionConfiguration",
    "GetBucketLifecycleConfiguration": "GetLifecycleConfiguration",
    "GetObjectLockConfiguration": "GetBucketObjectLockConfiguration",
    "GetPublicAccessBlock": "GetBucketPublicAccessBlock",
    "HeadBucket": "ListBucket",
    "HeadObject": "GetObject",
    "ListBuckets": "ListAllMyBuckets",
    "ListMultipartUploads": "ListBucketMultipartUploads",
    "ListObjects": "ListBucket",
    "ListObjectsV2": "ListBucket",
    "ListParts": "ListMultipartUploadParts",
    "PutBucketEncryption": "PutEncryptionConfiguration",
    "PutBucketLifecycleConfiguration": "PutLifecycleConfiguration",
    "PutObjectLockConfiguration": "PutBucketObjectLockConfiguration",
    "PutPublicAccessBlock": "PutBucketPublicAccessBlock",
    "UploadPart": "PutObject",
}
# Actions that are no operation of their service (Service Authorization Reference, 2025).
NO_OPERATIONS = {"iam:PassRole"}


@cache
def find_operations() -> dict[str, list[tuple[str, str]]]:
    """Every operation of the services used, by the name boto3 gives it: service and API name."""
    session, found = botocore.session.get_session(), dict[str, list[tuple[str, str]]]()
    for service in PREFIXES:
        for name in session.get_service_model(service).operation_names:
            found.setdefault(xform_name(name), []).append((service, name))
    return found


def find_actions(files: Iterable[Path], services: Iterable[str] = PREFIXES) -> dict[str, str]:
    """The action of every operation that the code names, as a method or as text, and where it stands."""
    found: dict[str, str] = {}
    for path in files:
        for part in ast.walk(ast.parse(path.read_text())):
            name = (
                part.attr if isinstance(part, ast.Attribute) else part.value if isinstance(part, ast.Constant) else ""
            )
            for service, operation in find_operations().get(name, ()) if isinstance(name, str) and "_" in name else ():
                if service in services:
                    action = S3_ACTIONS.get(operation, operation) if service == "s3" else operation
                    where = f"{path.relative_to(CHECKOUT)}:{getattr(part, 'lineno', 0)}"
                    found.setdefault(f"{PREFIXES[service]}:{action}", where)
    return found


def find_allowed(*policies: Any) -> list[str]:
    """Every action that some statement allows."""
    statements = [statement for policy in policies for statement in policy["Statement"]]
    actions = [statement["Action"] for statement in statements if statement["Effect"] == "Allow"]
    return [action for one in actions for action in ([one] if isinstance(one, str) else one)]


def is_allowed(action: str, allowed: list[str]) -> bool:
    return any(fnmatch.fnmatchcase(action, pattern) for pattern in allowed)


def read(path: Path) -> Any:
    return json.loads(path.read_text())


def test_operator_may_do_everything_that_the_code_does() -> None:
    found = find_actions(OPERATOR_CODE)
    assert {"ec2:RunInstances", "ec2:PurchaseCapacityBlock", "iam:GetRole", "s3:ListAllMyBuckets"} <= set(found)
    allowed = find_allowed(read(OPERATOR), read(PURCHASE))
    missing = {action: where for action, where in found.items() if not is_allowed(action, allowed)}
    assert set(missing) == STAND_IN_ALONE, missing


def test_buying_is_allowed_by_the_policy_for_it_alone() -> None:
    assert is_allowed("ec2:PurchaseCapacityBlock", find_allowed(read(PURCHASE)))
    assert not is_allowed("ec2:PurchaseCapacityBlock", find_allowed(read(OPERATOR)))


def test_node_may_do_everything_that_the_engine_does() -> None:
    found = find_actions((CHECKOUT / "decamp" / "store").glob("*.py"), ["s3"])
    assert {"s3:PutObject", "s3:ListBucket", "s3:AbortMultipartUpload"} <= set(found)
    allowed = find_allowed(json.loads(make_node_policy("s3://archives/rentals", "gpu-1")))
    assert {action for action in found if not is_allowed(action, allowed)} == set()


@pytest.mark.parametrize("path", [OPERATOR, PURCHASE], ids=["operator", "purchase"])
def test_every_action_named_is_one_that_there_is(path: Path) -> None:
    services = {prefix: service for service, prefix in PREFIXES.items()}
    known = {f"{PREFIXES[service]}:{name}" for one in find_operations().values() for service, name in one}
    # S3's actions have names of their own; those that are no operation's were looked up one by one.
    known |= {f"s3:{action}" for action in (*S3_ACTIONS.values(), "ListBucketVersions")}
    known |= {f"s3:{action}" for action in ("ListTagsForResource", "TagResource", "UntagResource")} | NO_OPERATIONS
    for action in find_allowed(read(path)):
        assert action.split(":")[0] in services, action
        if "*" in action:
            assert any(fnmatch.fnmatchcase(one, action) for one in known), action
        else:
            assert action in known, action


def test_what_is_made_with_tags_is_allowed_before_it_has_them() -> None:
    # Of a rule that is about to be made EC2 knows no tag yet: a condition on it would refuse every rule.
    statements = read(OPERATOR)["Statement"]
    making = {"ec2:AuthorizeSecurityGroupIngress", "ec2:AuthorizeSecurityGroupEgress", "ec2:RunInstances"}
    free = {action for one in statements if "Condition" not in one for action in find_allowed({"Statement": [one]})}
    assert making <= free
    # Nothing but the rules of groups may be changed without the project's tag on it, and what EC2 cannot tell by tags.
    (rules,) = [one for one in statements if one["Sid"] == "RulesOfOwnGroups"]
    assert rules["Resource"] == "arn:aws:ec2:*:*:security-group-rule/*"
    ending = {"ec2:TerminateInstances", "ec2:DeleteVolume", "ec2:ModifyInstanceAttribute", "ec2:DeleteTags"}
    for one in statements:
        if ending & set(find_allowed({"Statement": [one]})):
            assert one["Condition"] == {"StringEquals": {"aws:ResourceTag/decamp:project": "decamp"}}
