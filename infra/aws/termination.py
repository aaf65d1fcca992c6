"""An instance is protected against termination until its guard has agreed, and ends in the same moment.

EC2 refuses to terminate a protected instance, whoever asks: the console, another tool, a `destroy` of a program that
has no guard. This resource alone takes the protection off, after it has asked the guard itself, and terminates the
instance at once. So there is never a living instance that was agreed to yesterday and is unprotected today: if the
termination fails, the protection is put on again and the next destroy asks anew.
"""

from __future__ import annotations

import contextlib
from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, UpdateResult

from decamp.aws.account import Account, CloudRefusal, translated
from decamp.aws.tags import CONTACTED, read_tags
from decamp.errors import DecampError
from decamp.teardown import GuardedNode
from infra.aws.host_keys import derive_kept_key
from infra.dynamic import NamedProvider, diff_inputs
from infra.teardown_guard import agree

_IDENTITY = ("instance_id",)
_SETTINGS = (
    "name",
    "seed",
    "host",
    "port",
    "user",
    "ssh_private_key_file",
    "store_url",
    "store_endpoint",
    "store_region",
    "workspace",
    "region",
    "profile",
    "protect",
)
_GONE = ("terminated", "shutting-down")


class TerminationProvider(NamedProvider):
    """Holds the protection on, and is the one way by which a node's instance ends."""

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        drifted = bool(_olds.get("protect")) != bool(_olds.get("protected"))
        return diff_inputs(_olds, _news, identity=_IDENTITY, settings=_SETTINGS, drifted=drifted)

    def create(self, props: dict[str, Any]) -> CreateResult:
        return CreateResult(props["instance_id"], _protect(props))

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        return UpdateResult(_protect(_news))

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        """Says whether the protection is on; an instance that is gone leaves this as it was, for the guard to ask."""
        account, instance_id = Account(props["region"], props["profile"]), props["instance_id"]
        if not props.get("protect") or _find_instance(account, instance_id) is None:
            return ReadResult(id_, props)
        with translated(instance_id):
            told = account.ec2.describe_instance_attribute(InstanceId=instance_id, Attribute="disableApiTermination")
        return ReadResult(id_, {**props, "protected": bool(told["DisableApiTermination"].get("Value"))})

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Ends the instance if the guard has agreed in this run or agrees now.

        An instance that was never contacted has never been in an inventory, so nothing of anybody's is on it: a stack
        whose `up` broke off before that can be destroyed.

        Raises:
            TeardownRefused: the node must not go.
            CloudRefusal: EC2 did not end it; the protection is on again.
        """
        account = Account(_props["region"], _props["profile"])
        instance = _find_instance(account, _props["instance_id"])
        if instance is None:
            return
        machine_id = read_tags(instance.get("Tags")).get(CONTACTED, "")
        if machine_id:
            agree(_guarded(_props, machine_id))
        _cancel_spot_request(account, instance)
        _terminate(account, _props)


def _guarded(props: dict[str, Any], machine_id: str) -> GuardedNode:
    host_key = derive_kept_key(props["seed"], props["instance_id"]).public
    return GuardedNode.from_properties({**props, "target": "aws", "host_key": host_key, "machine_id": machine_id})


def _protect(props: dict[str, Any]) -> dict[str, Any]:
    if props["protect"]:
        _set_protection(Account(props["region"], props["profile"]), props["instance_id"], on=True)
    return {**{key: props[key] for key in (*_IDENTITY, *_SETTINGS)}, "protected": bool(props["protect"])}


def _set_protection(account: Account, instance_id: str, *, on: bool) -> None:
    with translated(f"termination protection of {instance_id}"):
        account.ec2.modify_instance_attribute(InstanceId=instance_id, DisableApiTermination={"Value": on})


def _find_instance(account: Account, instance_id: str) -> Any | None:
    try:
        with translated(instance_id):
            told = account.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
    except CloudRefusal as refusal:
        if refusal.code == "InvalidInstanceID.NotFound":
            return None
        raise
    instances = [instance for reservation in told for instance in reservation["Instances"]]
    return next((instance for instance in instances if instance["State"]["Name"] not in _GONE), None)


def _cancel_spot_request(account: Account, instance: Any) -> None:
    # A persistent request would start another instance in place of the one that ends.
    request = instance.get("SpotInstanceRequestId")
    if request:
        with translated(f"spot request {request}"):
            account.ec2.cancel_spot_instance_requests(SpotInstanceRequestIds=[request])


def _terminate(account: Account, props: dict[str, Any]) -> None:
    instance_id = props["instance_id"]
    if props["protect"]:
        _set_protection(account, instance_id, on=False)
    try:
        with translated(f"{props['name']} ({instance_id})"):
            account.ec2.terminate_instances(InstanceIds=[instance_id])
    except DecampError:
        if props["protect"]:
            # The refusal that led here says more than one of putting the protection back would.
            with contextlib.suppress(DecampError):
                _set_protection(account, instance_id, on=True)
        raise


class Termination(Resource, module="decamp", name="AwsTermination"):
    """An instance's protection, and its end, as a resource."""

    protected: pulumi.Output[bool]

    def __init__(self, name: str, properties: dict[str, Any], options: pulumi.ResourceOptions) -> None:
        super().__init__(TerminationProvider(), name, {**properties, "protected": None}, options)
