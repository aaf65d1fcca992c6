"""Gives the operator's store credentials as environment variables, from boto3's usual chain; writes them nowhere."""

from __future__ import annotations

from typing import Any

from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase

DOCUMENTATION = r"""
name: store_credentials
short_description: Store credentials of the operator as environment variables
description:
  - Environment, profile, SSO or instance role, as boto3 finds them on the operator's machine.
  - Use it only in the environment of a task with C(no_log).
author: Decamp
options:
  _terms:
    description: V(operator) for the operator's credentials, V(node) for none (the node has a role of its own).
    required: true
"""


class LookupModule(LookupBase):
    def run(self, terms: list[str], variables: Any = None, **_options: Any) -> list[dict[str, str]]:  # noqa: ARG002
        source = terms[0] if terms else "operator"
        if source == "node":
            return [{}]
        if source != "operator":
            raise AnsibleError(f"store credentials: unknown source: expected operator or node, found {source}")
        try:
            import boto3
        except ImportError:
            raise AnsibleError("boto3: not installed beside Ansible; run: make setup") from None
        found = boto3.Session().get_credentials()
        if found is None:
            raise AnsibleError(
                "store credentials: none found: expected AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a "
                'role on this machine; run: export them (rehearsal: eval "$(.venv/bin/decamp rehearsal env)")'
            )
        frozen = found.get_frozen_credentials()
        environment = {"AWS_ACCESS_KEY_ID": frozen.access_key, "AWS_SECRET_ACCESS_KEY": frozen.secret_key}
        if frozen.token:
            environment["AWS_SESSION_TOKEN"] = frozen.token
        return [environment]
