"""Asks a hub or a store how many bytes a fetch would bring, from the operator's machine, before a node changes."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "roles/model/files"))
from fetch_files import Refused, Unsteady
from hub_source import Hub

try:
    from store_source import ObjectStore
except ImportError:  # boto3 is installed beside Ansible by `make setup` alone
    ObjectStore = None

sys.path.pop(0)

DOCUMENTATION = r"""
name: source_size
short_description: Ask how many bytes a fetch would bring
description:
  - Returns the bytes of each, or 0 where this machine gets no answer that counts; the node may get one later.
  - An answer that says no (no such repository, no access, no such object) is an error.
author: Decamp
options:
  _terms:
    description: Repositories on the hub (C(owner/name)), or URLs of the store (C(s3://bucket/key)).
    required: true
  kind:
    description: V(huggingface) for a repository, V(store) for all objects below the URL, V(object) for that one.
    required: true
  revision:
    description: Commit of the repository.
    default: ""
  endpoint:
    description: URL of the hub or of the store; empty for Amazon S3.
    default: ""
  region:
    description: Region of the store.
    default: ""
  credentials:
    description: V(node) where the node has a role of its own; then this machine may have no right to ask.
    default: operator
"""


UNKNOWN = 0


class LookupModule(LookupBase):
    def run(self, terms: list[str], variables: Any = None, **options: Any) -> list[int]:  # noqa: ARG002
        return [ask(str(term), options) for term in terms]


def ask(place: str, options: dict[str, Any]) -> int:
    try:
        if options["kind"] == "huggingface":
            hub = Hub(options["endpoint"], place, options["revision"], os.environ.get("HF_TOKEN", ""))
            return sum(remote.size for remote in hub.list_files())
        return ask_store(place, options)
    except Refused as refused:
        if options.get("credentials") == "node":
            return UNKNOWN
        raise AnsibleError(str(refused)) from None
    except (Unsteady, OSError):
        return UNKNOWN


def ask_store(url: str, options: dict[str, Any]) -> int:
    if ObjectStore is None:
        return UNKNOWN
    store = ObjectStore(url, options.get("endpoint", ""), options.get("region", ""))
    if options["kind"] == "object":
        return store.describe_object("").size
    return sum(remote.size for remote in store.list_files())
