"""AWS played on loopback: a moto server, what moto lacks (capacity blocks, quotas, prices), and refusals on request."""

from __future__ import annotations

import io
import json
import os
import threading
import urllib.parse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any
from xml.sax.saxutils import escape

import boto3
from moto.moto_api._internal import moto_api_backend
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
from werkzeug.serving import make_server

REGION = "us-east-1"
ACCOUNT = "123456789012"
IMAGE_PARAMETER = "/aws/service/deeplearning/ami/x86_64/base-oss-nvidia-driver-gpu-ubuntu-24.04/latest/ami-id"
_NAMESPACE = "http://ec2.amazonaws.com/doc/2016-11-15/"

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


@dataclass
class Cloud:
    """What the played AWS has, and what it refuses; tests change it while it runs.

    Args:
        faults: EC2 action to error code and message; the action is refused with it.
        reservations, offerings, placement_groups: as EC2 describes them, in its XML names.
        quotas: quota code to vCPUs; a code that is not here is refused as unknown.
        prices: instance type to dollars an hour; None refuses the price API.
        bought: offering ids, in the order of their purchase.
        calls: every EC2 action that was asked for.
        foreign_buckets: names that another account has.
        held_back: EC2 action to an event; the action is done, and answered only when the event is set.
    """

    faults: dict[str, tuple[str, str]] = field(default_factory=dict)
    reservations: list[dict[str, Any]] = field(default_factory=list)
    offerings: list[dict[str, Any]] = field(default_factory=list)
    placement_groups: list[dict[str, Any]] = field(default_factory=list)
    quotas: dict[str, int] = field(default_factory=dict)
    prices: dict[str, float] | None = None
    image: str = "ami-0123456789abcdef0"
    bought: list[str] = field(default_factory=list)
    calls: list[str] = field(default_factory=list)
    foreign_buckets: set[str] = field(default_factory=set)
    held_back: dict[str, threading.Event] = field(default_factory=dict)
    url: str = ""

    def reset(self) -> None:
        """Empties the account and forgets every wish of a test."""
        moto_api_backend.reset()
        for name, value in vars(Cloud(url=self.url)).items():
            setattr(self, name, value)

    def connect(self, service: str) -> Any:
        return boto3.client(service, endpoint_url=self.url, region_name=REGION, **KEYS)

    def environment(self) -> dict[str, str]:
        """Variables by which boto3 and the stand-in provider find this AWS, and no other."""
        services = ("EC2", "S3", "STS", "SSM", "IAM", "PRICING", "SERVICE_QUOTAS")
        return {
            **{f"AWS_ENDPOINT_URL_{service}": self.url for service in services},
            "AWS_ACCESS_KEY_ID": KEYS["aws_access_key_id"],
            "AWS_SECRET_ACCESS_KEY": KEYS["aws_secret_access_key"],
            "AWS_CONFIG_FILE": "/dev/null",
            "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
            "AWS_EC2_METADATA_DISABLED": "true",
            "DECAMP_STAND_IN_AWS_URL": self.url,
        }


KEYS = {"aws_access_key_id": "AKIAIOSFODNN7EXAMPLE", "aws_secret_access_key": "of-a-test"}


class Server:
    """Serves a Cloud on a free loopback port until it is stopped."""

    def __init__(self, cloud: Cloud) -> None:
        # Nothing of moto's asks anybody else, whatever the machine has.
        os.environ.setdefault("MOTO_EC2_LOAD_DEFAULT_AMIS", "true")
        # moto has one account for the whole process: what another module's tests left in it is not this one's.
        moto_api_backend.reset()
        self.cloud = cloud
        app = _Front(cloud, DomainDispatcherApplication(create_backend_app))
        self._server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_QuietHandler)
        cloud.url = f"http://127.0.0.1:{self._server.server_port}"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._server.shutdown()
        self._thread.join(timeout=10)
        self._server.server_close()


class _QuietHandler(MotoRequestHandler):
    def log_request(self, code: int | str = "-", size: int | str = "-") -> None:
        """Says nothing: a test's output is its own."""


class _Front:
    """Answers what moto does not know and refuses what it was told to; hands everything else on."""

    def __init__(self, cloud: Cloud, moto: WsgiApp) -> None:
        self._cloud, self._moto = cloud, moto

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        environ["wsgi.input"] = io.BytesIO(body)
        asked: dict[str, str] = {}
        if "/ec2/aws4_request" in environ.get("HTTP_AUTHORIZATION", ""):
            asked = {key: values[0] for key, values in urllib.parse.parse_qs(body.decode()).items()}
            answer = self._answer_ec2(asked)
            kind = "text/xml"
        else:
            answer = self._answer_json(environ.get("HTTP_X_AMZ_TARGET", ""), body)
            kind = "application/x-amz-json-1.1"
        if environ.get("PATH_INFO", "").strip("/").split("/")[0] in self._cloud.foreign_buckets:
            answer = ("403 Forbidden", "")
        if answer is None:
            done = list(self._moto(environ, start_response))
            if asked.get("Action") in self._cloud.held_back:
                self._cloud.held_back[asked["Action"]].wait(timeout=120)
            return done
        status, text = answer
        start_response(status, [("Content-Type", kind), ("Content-Length", str(len(text.encode())))])
        return [text.encode()]

    def _answer_ec2(self, asked: dict[str, str]) -> tuple[str, str] | None:
        action, cloud = asked.get("Action", ""), self._cloud
        cloud.calls.append(action)
        if action in cloud.faults:
            return _refuse(*cloud.faults[action])
        if action == "DescribeCapacityReservations":
            wanted = asked.get("CapacityReservationId.1")
            found = [one for one in cloud.reservations if wanted in (None, one["capacityReservationId"])]
            if wanted and not found:
                return _refuse("InvalidCapacityReservationId.NotFound", f"{wanted} does not exist")
            return _tell(action, {"capacityReservationSet": found})
        if action == "DescribeCapacityBlockOfferings":
            fits = [
                one
                for one in cloud.offerings
                if one["instanceType"] == asked["InstanceType"]
                and one["instanceCount"] == int(asked["InstanceCount"])
                and one["capacityBlockDurationHours"] == int(asked["CapacityDurationHours"])
            ]
            return _tell(action, {"capacityBlockOfferingSet": fits})
        if action == "DescribePlacementGroups":
            return _tell(action, {"placementGroupSet": cloud.placement_groups})
        if action == "PurchaseCapacityBlock":
            cloud.bought.append(asked["CapacityBlockOfferingId"])
            (offer,) = [one for one in cloud.offerings if one["capacityBlockOfferingId"] == cloud.bought[-1]]
            block = make_reservation("cr-0b10c000000000001", offer["instanceType"], state="payment-pending")
            block.update(endDate=offer["endDate"], startDate=offer["startDate"], reservationType="capacity-block")
            cloud.reservations.append(block)
            return _tell(action, {"capacityReservation": block})
        return None

    def _answer_json(self, target: str, body: bytes) -> tuple[str, str] | None:
        asked = json.loads(body or b"{}") if target else {}
        if target == "AmazonSSM.GetParameter" and asked.get("Name") == IMAGE_PARAMETER:
            return "200 OK", json.dumps({"Parameter": {"Name": IMAGE_PARAMETER, "Value": self._cloud.image}})
        if target.endswith(".GetServiceQuota"):
            code = asked["QuotaCode"]
            if code not in self._cloud.quotas:
                return "400 Bad Request", json.dumps({"__type": "NoSuchResourceException", "Message": "no such quota"})
            return "200 OK", json.dumps({"Quota": {"QuotaCode": code, "Value": self._cloud.quotas[code]}})
        if target == "AWSPriceListService.GetProducts":
            return self._answer_price(asked)
        return None

    def _answer_price(self, asked: dict[str, Any]) -> tuple[str, str]:
        if self._cloud.prices is None:
            return "400 Bad Request", json.dumps(
                {"__type": "AccessDeniedException", "Message": "may not ask for prices"}
            )
        wanted = {one["Field"]: one["Value"] for one in asked["Filters"]}
        price = self._cloud.prices.get(wanted["instanceType"])
        rate = {"unit": "Hrs", "pricePerUnit": {"USD": str(price)}}
        product = json.dumps({"terms": {"OnDemand": {"a": {"priceDimensions": {"b": rate}}}}})
        return "200 OK", json.dumps({"FormatVersion": "aws_v1", "PriceList": [] if price is None else [product]})


def make_reservation(reservation_id: str, instance_type: str, **changes: Any) -> dict[str, Any]:
    """Returns a reservation in EC2's XML names: active, one instance, one of them free, without an end."""
    return {
        "capacityReservationId": reservation_id,
        "ownerId": ACCOUNT,
        "instanceType": instance_type,
        "availabilityZone": f"{REGION}b",
        "state": "active",
        "totalInstanceCount": 1,
        "availableInstanceCount": 1,
        "startDate": "2026-01-01T11:30:00.000Z",
        "reservationType": "default",
        **changes,
    }


def _refuse(code: str, message: str) -> tuple[str, str]:
    told = f"<Errors><Error><Code>{escape(code)}</Code><Message>{escape(message)}</Message></Error></Errors>"
    # As EC2 does: what is its own fault is worth another try, and boto3 makes one unless told not to.
    status = "500 Internal Server Error" if code == "InternalError" else "400 Bad Request"
    return status, f"<Response>{told}<RequestID>of-a-test</RequestID></Response>"


def _tell(action: str, content: dict[str, Any]) -> tuple[str, str]:
    return "200 OK", f'<{action}Response xmlns="{_NAMESPACE}">{_to_xml(content)}</{action}Response>'


def _to_xml(value: Any) -> str:
    if isinstance(value, dict):
        return "".join(f"<{key}>{_to_xml(inner)}</{key}>" for key, inner in value.items())
    if isinstance(value, list):
        return "".join(f"<item>{_to_xml(inner)}</item>" for inner in value)
    return escape(str(value))
