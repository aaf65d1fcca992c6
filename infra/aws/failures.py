"""A refusal of EC2 in the middle of an `up` ends with a message that says what it means here and what to do."""

from __future__ import annotations

import re

import pulumi
from pulumi.runtime.proto import resource_pb2
from pulumi.runtime.settings import monitor_supports_feature

from decamp.aws.advice import find_advice, find_code, shorten
from decamp.aws.instance_types import find_quota
from infra.aws.settings import AwsSettings

_LIST_QUOTAS = (
    "aws service-quotas list-service-quotas --service-code ec2 --region REGION"
    "  # then request VCPUS for the one that counts TYPE"
)


def make_failure_hook(node: str, settings: AwsSettings) -> pulumi.ResourceHookBinding | None:
    """Returns a hook for an instance that explains its failure and never tries again by itself.

    An engine that is too old for such hooks shows EC2's own words alone.
    """
    if not monitor_supports_feature(resource_pb2.RESOURCE_MONITOR_FEATURE_ERROR_HOOKS):
        return None

    def tell(args: pulumi.ErrorHookArgs) -> bool:
        message = explain(node, settings, args.errors[0] if args.errors else "")
        if message:
            pulumi.log.error(message)
        return False

    return pulumi.ResourceHookBinding(on_error=[pulumi.ErrorHook(f"explain-{node}", tell)])


def explain(node: str, settings: AwsSettings, error: str) -> str:
    """Returns what a provider's error means and what helps; empty when it is not one that is known."""
    code = find_code(error)
    advice = find_advice(code)
    if advice is None:
        return ""
    quota = find_quota(settings.instance_type, settings.purchase.option)
    run = _LIST_QUOTAS if "CODE" in advice.run and quota is None else advice.run
    known = {
        "TYPE": settings.instance_type,
        "REGION": settings.region,
        "CODE": quota.code if quota else "",
        "VCPUS": str(count_needed(settings, error)),
    }
    for word, value in known.items():
        run = run.replace(word, value)
    place = f"{settings.instance_type} ({settings.purchase.option}) in {settings.facts.zone}"
    return f"{node}: {advice.what}: found {code} for {place}: {shorten(_message(error, code), 160)}; run: {run}"


def count_needed(settings: AwsSettings, error: str) -> int:
    """Returns how many vCPUs the quota must allow, after EC2 has said that it allows too few.

    That is what was counted before the `up`. Where EC2 allows as much already, something that cannot be counted takes
    of it, such as an unused reservation: then what it allows and an instance more.
    """
    # As EC2 words it: "your current vCPU limit of 96 allows for the instance bucket".
    told = re.search(r"vCPU limit of (\d+)", error)
    allowed = int(told[1]) if told else 0
    facts = settings.facts
    return facts.quota_vcpus if facts.quota_vcpus > allowed else allowed + facts.vcpus


def _message(error: str, code: str) -> str:
    """EC2's own sentence: what follows its code, to the end of the line."""
    lines = error.split(code, 1)[-1].lstrip(":) ").splitlines()
    return lines[0].rstrip(": ") if lines else ""
