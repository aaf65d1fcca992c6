"""A refusal of EC2 in the middle of an `up` ends with a message that says what it means here and what to do."""

from __future__ import annotations

import pulumi
from pulumi.runtime.proto import resource_pb2
from pulumi.runtime.settings import monitor_supports_feature

from decamp.aws.advice import find_advice, find_code, shorten
from decamp.aws.instance_types import find_quota
from infra.aws.settings import AwsSettings


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
    run = advice.run
    quota = find_quota(settings.instance_type, settings.purchase.option)
    known = {"TYPE": settings.instance_type, "REGION": settings.region, "CODE": quota.code if quota else "CODE"}
    for word, value in known.items():
        run = run.replace(word, value)
    place = f"{settings.instance_type} ({settings.purchase.option}) in {settings.facts.zone}"
    return f"{node}: {advice.what}: found {code} for {place}: {shorten(_message(error, code), 160)}; run: {run}"


def _message(error: str, code: str) -> str:
    """EC2's own sentence: what follows its code, to the end of the line."""
    lines = error.split(code, 1)[-1].lstrip(":) ").splitlines()
    return lines[0].rstrip(": ") if lines else ""
