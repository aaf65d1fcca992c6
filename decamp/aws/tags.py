"""Everything Decamp makes in an account carries these tags, so that what a stack has lost sight of can be found.

Keys and values stay within EC2's limits (EC2 User Guide, "Tag restrictions", 2025: 128 and 256 characters).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

PROJECT = "decamp:project"
STACK = "decamp:stack"
NODE = "decamp:node"
OWNER = "decamp:owner"
EXPIRES = "decamp:expires"
# Set on an instance at the first contact, with its machine id as value: from then on it may hold somebody's work. The
# stack's provider is told to leave it alone, as no program declares it.
CONTACTED = "decamp:machine-id"

PROJECT_NAME = "decamp"
# The value of NODE on what is the stack's and no node's.
SHARED = "shared"


def make_tags(stack: str, owner: str, expires: str, node: str = SHARED) -> dict[str, str]:
    """Returns the tags of a resource; `Name` is what the console shows."""
    return {
        "Name": f"{PROJECT_NAME}-{stack}" if node == SHARED else f"{PROJECT_NAME}-{stack}-{node}",
        PROJECT: PROJECT_NAME,
        STACK: stack,
        NODE: node,
        OWNER: owner,
        EXPIRES: expires,
    }


def read_tags(pairs: Iterable[Mapping[str, Any]] | None) -> dict[str, str]:
    """Returns tags as EC2 and S3 list them, `[{Key, Value}]`, as a mapping."""
    return {str(pair["Key"]): str(pair["Value"]) for pair in pairs or ()}


def make_filters(stack: str | None = None, node: str | None = None) -> list[dict[str, Any]]:
    """Returns EC2 filters for what carries the project's tag, narrowed to a stack and a node."""
    wanted = {PROJECT: PROJECT_NAME, STACK: stack, NODE: node}
    return [{"Name": f"tag:{key}", "Values": [value]} for key, value in wanted.items() if value is not None]
