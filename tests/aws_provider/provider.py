"""Pulumi's AWS provider played by boto3 and a moto server: real calls, a real protocol, no AWS and no money.

It behaves as the real one in what the tests rest on: which changes replace a resource, that a refresh shows what has
become of it, that ignored tags are neither shown nor removed, and that a refusal reads `api error CODE: message`.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import grpc
from botocore.exceptions import ClientError
from pulumi.provider.experimental import provider as protocol
from pulumi.provider.experimental.property_value import PropertyValue
from pulumi.runtime.proto import engine_pb2, engine_pb2_grpc

from tests.aws_provider import bucket_kinds, instance_kinds, network_kinds
from tests.aws_provider.kinds import Clients, Kind, Properties, from_pairs

BANNER = "STAND-IN: this is the tests' stand-in for Pulumi's AWS provider; nothing here reaches AWS"
KINDS: dict[str, Kind] = {**bucket_kinds.KINDS, **network_kinds.KINDS, **instance_kinds.KINDS}
# Which inputs were given, so that one that is left out later shows as a change.
_GIVEN = "standInInputs"


class StandIn(protocol.Provider):
    """Serves the resource types that Decamp's program declares, and no others.

    Args:
        url: of the server that plays AWS.
        engine: address of the Pulumi engine.
    """

    def __init__(self, url: str, engine: str) -> None:
        self.engine = engine
        self.clients = Clients.from_environment(url)
        self.ignored_tags: frozenset[str] = frozenset()

    async def configure(self, request: protocol.ConfigureRequest) -> protocol.ConfigureResponse:
        await asyncio.to_thread(say_what_this_is, self.engine)
        told = plain(request.args.get("ignoreTags"))
        if isinstance(told, str):
            told = json.loads(told)
        self.ignored_tags = frozenset((told or {}).get("keys") or ())
        return protocol.ConfigureResponse(accept_secrets=False, supports_preview=False)

    async def check(self, request: protocol.CheckRequest) -> protocol.CheckResponse:
        if bare(request.type) not in KINDS:
            raise NotImplementedError(f"the stand-in has no {request.type}")
        return protocol.CheckResponse(inputs=request.new_inputs)

    async def diff(self, request: protocol.DiffRequest) -> protocol.DiffResponse:
        kind = KINDS[bare(request.type)]
        old, new = plain_map(request.old_state), request.new_inputs
        given = set(old.get(_GIVEN) or ())
        changed = [key for key, value in new.items() if has_unknown(value) or plain(value) != old.get(key)]
        changed += sorted(given - set(new))
        changed = [key for key in changed if key not in request.ignore_changes and key != "__defaults"]
        replaces = [key for key in changed if key in kind.fixed or kind.update is None]
        detailed = {
            key: protocol.PropertyDiff(
                protocol.PropertyDiffKind.UPDATE_REPLACE if key in replaces else protocol.PropertyDiffKind.UPDATE, True
            )
            for key in changed
        }
        return protocol.DiffResponse(changes=bool(changed), replaces=replaces, diffs=changed, detailed_diff=detailed)

    async def create(self, request: protocol.CreateRequest) -> protocol.CreateResponse:
        inputs = plain_map(request.properties)
        kind = KINDS[bare(request.type)]
        resource_id, known = await self._call(kind.create, {**inputs, "__name": request.name})
        outputs = {**inputs, **known, _GIVEN: sorted(inputs)}
        return protocol.CreateResponse(resource_id=resource_id, properties=rich_map(outputs))

    async def read(self, request: protocol.ReadRequest) -> protocol.ReadResponse:
        held = plain_map(request.properties)
        found = await self._call(KINDS[bare(request.type)].read, request.resource_id, held)
        if found is None:
            return protocol.ReadResponse(resource_id="", properties={}, inputs={})
        if "tags" in found:
            found["tags"] = {key: value for key, value in found["tags"].items() if key not in self.ignored_tags}
        inputs = {**plain_map(request.inputs), **{key: found[key] for key in found if key in request.inputs}}
        outputs = rich_map({**held, **found})
        return protocol.ReadResponse(request.resource_id, outputs, rich_map(inputs))

    async def update(self, request: protocol.UpdateRequest) -> protocol.UpdateResponse:
        olds, news = plain_map(request.olds), plain_map(request.news)
        update = KINDS[bare(request.type)].update
        assert update is not None
        await self._call(update, request.resource_id, olds, news)
        return protocol.UpdateResponse(properties=rich_map({**olds, **news, _GIVEN: sorted(news)}))

    async def delete(self, request: protocol.DeleteRequest) -> None:
        await self._call(KINDS[bare(request.type)].delete, request.resource_id, plain_map(request.properties))

    async def invoke(self, request: protocol.InvokeRequest) -> protocol.InvokeResponse:
        if request.tok != "aws:ec2/getSubnet:getSubnet":
            raise NotImplementedError(f"the stand-in has no {request.tok}")
        (subnet,) = self.clients.connect("ec2").describe_subnets(SubnetIds=[plain(request.args["id"])])["Subnets"]
        told = {
            "id": subnet["SubnetId"],
            "vpcId": subnet["VpcId"],
            "availabilityZone": subnet["AvailabilityZone"],
            "tags": from_pairs(subnet.get("Tags")),
        }
        return protocol.InvokeResponse(return_value=rich_map(told))

    async def _call(self, function: Any, *arguments: Any) -> Any:
        # In a thread: the engine asks for many things at once.
        try:
            return await asyncio.to_thread(function, self.clients, *arguments)
        except ClientError as error:
            told, status = error.response["Error"], error.response["ResponseMetadata"].get("HTTPStatusCode")
            raise RuntimeError(
                f"operation error {error.operation_name}, https response error StatusCode: {status}, "
                f"api error {told['Code']}: {told['Message']}"
            ) from None


def bare(kind: str) -> str:
    """Returns a resource's own type; the engine puts its parents' before it."""
    return kind.rsplit("$", 1)[-1]


def say_what_this_is(engine: str) -> None:
    """Says through the engine, in every run, that no AWS is behind this."""
    with grpc.insecure_channel(engine) as channel:
        message = engine_pb2.LogRequest(severity=engine_pb2.WARNING, message=BANNER)
        engine_pb2_grpc.EngineStub(channel).Log(message, timeout=10)


def plain(value: PropertyValue | None) -> Any:
    """Returns a property as Python has it, secrets opened."""
    held = value.value if value is not None else None
    if isinstance(held, str) or held is None or isinstance(held, bool):
        return held
    if isinstance(held, float):
        return int(held) if held.is_integer() else held
    if hasattr(held, "items"):
        return {key: plain(inner) for key, inner in held.items()}
    return [plain(inner) for inner in held] if isinstance(held, list | tuple) else held


def plain_map(values: dict[str, PropertyValue]) -> Properties:
    return {key: plain(value) for key, value in values.items() if key != "__defaults"}


def has_unknown(value: PropertyValue) -> bool:
    held = value.value
    if hasattr(held, "items"):
        return any(has_unknown(inner) for inner in held.values())
    if isinstance(held, tuple):
        return any(has_unknown(inner) for inner in held)
    return type(held).__name__ == "Computed"


def rich(value: Any) -> PropertyValue:
    if isinstance(value, dict):
        return PropertyValue({key: rich(inner) for key, inner in value.items() if inner is not None})
    if isinstance(value, list | tuple):
        return PropertyValue([rich(inner) for inner in value])
    if isinstance(value, int) and not isinstance(value, bool):
        return PropertyValue(float(value))
    return PropertyValue(value)


def rich_map(values: Properties) -> dict[str, PropertyValue]:
    return {key: rich(value) for key, value in values.items() if value is not None and not key.startswith("__")}
