"""Builds a bundle of locked packages on the operator's machine, or finds it in the cache, and says where it is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
from decamp.bundle import build_bundle
from decamp.errors import DecampError

sys.path.pop(0)

DOCUMENTATION = r"""
name: python_bundle
short_description: Build a bundle of locked packages for a node, or find it in the cache
description:
  - Returns the bundle's C(name), C(path) on this machine, C(digest) and whether it was C(cached).
author: Decamp
options:
  _terms:
    description: Name of the bundle.
    required: true
  python:
    description: The node's Python, such as 3.11.
    required: true
  machine:
    description: The node's machine, as C(uname -m) says it.
    required: true
  requirements:
    description: Lock file with hashes; empty for no packages.
    default: ""
  source:
    description: Directory whose files go along; empty for none.
    default: ""
  uses:
    description: Digests of bundles beside this one whose packages its commands import.
    default: []
  with_decamp:
    description: Adds this checkout's decamp.
    default: false
"""


class LookupModule(LookupBase):
    def run(self, terms: list[str], variables: Any = None, **options: Any) -> list[dict[str, object]]:  # noqa: ARG002
        requirements, source = options.get("requirements"), options.get("source")
        try:
            bundle = build_bundle(
                str(terms[0]),
                Path(requirements) if requirements else None,
                str(options["python"]),
                str(options["machine"]),
                with_decamp=bool(options.get("with_decamp")),
                source=Path(source) if source else None,
                uses=[str(digest) for digest in options.get("uses") or []],
            )
        except DecampError as error:
            raise AnsibleError(str(error)) from None
        return [bundle.as_document()]
