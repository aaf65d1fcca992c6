"""What the AWS target asks for: closed to others, encrypted, hard to end, and with the rights of one prefix alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from decamp.aws.instance_types import Interface
from decamp.aws.tags import CONTACTED
from infra.aws.origin import OriginProvider
from infra.aws.settings import Found
from tests.infra.aws_declaration import FOUND, declare
from tests.infra.declaration import Declared

# Loading the SDK declares its own deprecated names.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning:pulumi_aws.*")


def of_type(declared: Declared, kind: str) -> dict[str, dict[str, Any]]:
    return {name: declared.inputs[name] for name, typ in declared.types.items() if typ.endswith(f":{kind}")}


@pytest.fixture
def b200(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Declared:
    return declare(monkeypatch, tmp_path)


def test_instance_answers_metadata_requests_with_a_token_only(b200: Declared) -> None:
    options = b200.inputs["b200-1-instance"]["metadataOptions"]
    assert options == {"httpEndpoint": "enabled", "httpTokens": "required", "httpPutResponseHopLimit": 1}


def test_root_volume_is_encrypted_and_goes_with_the_instance(b200: Declared) -> None:
    disk = b200.inputs["b200-1-instance"]["rootBlockDevice"]
    assert disk["encrypted"] is True and disk["deleteOnTermination"] is True and disk["volumeType"] == "gp3"


@pytest.mark.parametrize(
    ("settings", "names", "wanted"),
    [
        ({"root_volume_gib": 2000}, ("b200-1-instance", "rootBlockDevice", "volumeSize"), 2000),
        ({"shutdown": "terminate"}, ("b200-1-instance", "instanceInitiatedShutdownBehavior"), "terminate"),
        ({"image": {"id": "ami-0123456789abcdef1"}}, ("b200-1-origin", "image_id"), "ami-0123456789abcdef1"),
        ({"image": {"parameter": "/ours/image"}}, ("b200-1-origin", "image_parameter"), "/ours/image"),
    ],
)
def test_what_was_asked_for_reaches_the_instance(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, settings: dict[str, Any], names: tuple[str, ...], wanted: Any
) -> None:
    value: Any = declare(monkeypatch, tmp_path, settings).inputs
    for name in names:
        value = value[name]
    assert value == wanted


def test_instance_starts_from_the_image_that_its_origin_has_kept(b200: Declared) -> None:
    assert b200.inputs["b200-1-instance"]["ami"] == "ami-1"


def test_given_image_is_kept_without_looking_one_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("infra.aws.origin.find_image", lambda *_: pytest.fail("an image was given"))
    asked = {"name": "b200-1", "generation": "", "image_id": "ami-0123456789abcdef1", "image_parameter": ""}
    place = {"authorized_key": "ssh-ed25519 AAAA", "region": "us-east-1", "profile": ""}
    assert OriginProvider().create({**asked, **place}).outs["image"] == "ami-0123456789abcdef1"


def test_only_the_operator_may_come_in(b200: Declared) -> None:
    rules = of_type(b200, "SecurityGroupIngressRule")
    from_outside = [rule for rule in rules.values() if "referencedSecurityGroupId" not in rule]
    (ssh,) = from_outside
    assert (ssh["cidrIpv4"], ssh["fromPort"], ssh["toPort"], ssh["ipProtocol"]) == ("203.0.113.7/32", 22, 22, "tcp")


def test_every_port_that_a_node_listens_at_is_open_to_the_operator(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    found = Found(**{**vars(FOUND), "ssh_from": ("2001:db8::/64", "203.0.113.7/32")})
    rules = of_type(declare(monkeypatch, tmp_path, found=found), "SecurityGroupIngressRule")
    sources = {(rule.get("cidrIpv4"), rule.get("cidrIpv6")) for rule in rules.values() if "fromPort" in rule}
    assert sources == {("203.0.113.7/32", None), (None, "2001:db8::/64")}


def test_bucket_is_closed_encrypted_versioned_and_kept(b200: Declared) -> None:
    assert all(value is True for key, value in b200.inputs["bucket-public-access"].items() if key != "bucket")
    assert len(b200.inputs["bucket-public-access"]) == 5
    assert b200.inputs["bucket-versioning"]["versioningConfiguration"] == {"status": "Enabled"}
    assert b200.inputs["bucket-ownership"]["rule"] == {"objectOwnership": "BucketOwnerEnforced"}
    (rule,) = b200.inputs["bucket-encryption"]["rules"]
    assert rule["applyServerSideEncryptionByDefault"] == {"sseAlgorithm": "AES256"}
    rules = {one["id"]: one for one in b200.inputs["bucket-lifecycle"]["rules"]}
    assert rules["unfinished-uploads"]["abortIncompleteMultipartUpload"] == {"daysAfterInitiation": 7}
    assert rules["old-versions"]["noncurrentVersionExpiration"] == {"noncurrentDays": 30}
    for name, kind in b200.types.items():
        if kind.startswith("aws:s3/"):
            assert b200.requests[name].retainOnDelete, name


def test_bucket_refuses_whatever_is_not_modern_tls(b200: Declared) -> None:
    statements = json.loads(b200.inputs["bucket-policy"]["policy"])["Statement"]
    assert {statement["Effect"] for statement in statements} == {"Deny"}
    conditions = [statement["Condition"] for statement in statements]
    assert {"Bool": {"aws:SecureTransport": "false"}} in conditions
    assert {"NumericLessThan": {"s3:TlsVersion": "1.2"}} in conditions
    assert all(
        statement["Resource"] == ["arn:aws:s3:::archives", "arn:aws:s3:::archives/*"] for statement in statements
    )


def test_bucket_settings_that_were_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bucket = {
        "kms_key_arn": "arn:aws:kms:us-east-1:123456789012:key/k",
        "storage_class": "GLACIER_IR",
        "storage_class_after_days": 3,
        "object_lock_days": 14,
        "abort_uploads_days": 2,
    }
    declared = declare(monkeypatch, tmp_path, {"bucket": bucket})
    assert declared.inputs["bucket"]["objectLockEnabled"] is True
    lock = declared.inputs["bucket-object-lock"]["rule"]["defaultRetention"]
    assert lock == {"mode": "GOVERNANCE", "days": 14}
    (rule,) = declared.inputs["bucket-encryption"]["rules"]
    assert rule["applyServerSideEncryptionByDefault"]["kmsMasterKeyId"] == bucket["kms_key_arn"]
    rules = {one["id"]: one for one in declared.inputs["bucket-lifecycle"]["rules"]}
    assert rules["bags-to-a-cheaper-class"]["transitions"] == [{"days": 3, "storageClass": "GLACIER_IR"}]
    rights = json.loads(declared.inputs["b200-1-rights"]["policy"])["Statement"]
    assert any(one["Resource"] == bucket["kms_key_arn"] for one in rights)


def test_bucket_of_somebody_else_is_left_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    declared = declare(monkeypatch, tmp_path, {"bucket": {"existing": True}})
    assert not [name for name, kind in declared.types.items() if kind.startswith("aws:s3/")]


def test_bucket_of_an_earlier_stack_is_protected_again_and_not_made(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    declared = declare(monkeypatch, tmp_path, found=Found(**{**vars(FOUND), "declare_bucket": False}))
    assert not of_type(declared, "Bucket")
    assert declared.inputs["bucket-policy"]["bucket"] == declared.inputs["bucket-versioning"]["bucket"] == "archives"


def test_node_may_write_to_its_own_prefix_alone(b200: Declared) -> None:
    statements = json.loads(b200.inputs["b200-1-rights"]["policy"])["Statement"]
    writing = ("s3:Put", "s3:Delete", "s3:Abort")
    for statement in statements:
        if any(action.startswith(writing) for action in statement["Action"]):
            assert statement["Resource"] == "arn:aws:s3:::archives/rentals/b200-1/*"
        assert "*" not in statement["Action"] and not any(action.endswith(":*") for action in statement["Action"])
        assert statement["Resource"].startswith("arn:aws:s3:::archives")
    listing = next(one for one in statements if "s3:ListBucket" in one["Action"])
    assert listing["Condition"] == {"StringLike": {"s3:prefix": ["rentals/*", "rentals"]}}


def test_protection_is_on_for_all_but_spot(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, b200: Declared) -> None:
    assert b200.inputs["b200-1-termination"]["protect"] is True
    # Nobody else says anything of it: two owners would undo each other.
    assert "disableApiTermination" not in b200.inputs["b200-1-instance"]
    assert "forceDestroy" not in b200.inputs["b200-1-instance"]
    spot = declare(monkeypatch, tmp_path, {"purchase": {"option": "spot"}})
    assert spot.inputs["b200-1-termination"]["protect"] is False


def test_guard_goes_first_then_the_termination_then_the_instance(b200: Declared) -> None:
    assert {"b200-1-contact", "b200-1-termination", "b200-1-instance", "b200-1-address-of"} <= b200.dependencies_of(
        "b200-1-guard"
    )
    assert {"b200-1-instance", "b200-1-address-of", "b200-1-rights"} <= b200.dependencies_of("b200-1-termination")
    for name in ("origin", "instance", "address-of", "termination", "contact", "guard"):
        assert b200.requests[f"b200-1-{name}"].deleteBeforeReplace, name


WITH_EFA = Found(**{**vars(FOUND), "interfaces": (Interface(0, 0, "efa"), Interface(1, 1, "efa-only"))})


def test_interfaces_are_those_that_the_account_has_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    declared = declare(monkeypatch, tmp_path, found=WITH_EFA)
    told = declared.inputs["b200-1-interfaces"]["networkInterfaces"]
    # Else a node that is replaced would start from the interfaces of the one before.
    assert declared.inputs["b200-1-interfaces"]["updateDefaultVersion"] is True
    kinds = [(int(one["networkCardIndex"]), int(one["deviceIndex"]), one["interfaceType"]) for one in told]
    assert kinds == [(0, 0, "efa"), (1, 1, "efa-only")]
    instance = declared.inputs["b200-1-instance"]
    # EC2 refuses a subnet or groups beside a template that has interfaces.
    assert "subnetId" not in instance and "vpcSecurityGroupIds" not in instance


@pytest.mark.parametrize("changes", [{"found": FOUND}, {"found": WITH_EFA, "aws": {"efa": "none"}}])
def test_type_without_efa_has_one_plain_interface(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changes: dict[str, Any]
) -> None:
    declared = declare(monkeypatch, tmp_path, **changes)
    assert not of_type(declared, "LaunchTemplate")
    instance = declared.inputs["b200-1-instance"]
    assert instance["subnetId"] == "subnet-id" and instance["vpcSecurityGroupIds"] == ["nodes-id"]


@pytest.mark.parametrize(
    ("purchase", "market", "reservation"),
    [
        ({"option": "on_demand"}, None, None),
        ({"option": "reservation", "reservation_id": "cr-0123456789abcdef0"}, None, "cr-0123456789abcdef0"),
        (
            {"option": "capacity_block", "reservation_id": "cr-0123456789abcdef0"},
            {"marketType": "capacity-block"},
            "cr-0123456789abcdef0",
        ),
        (
            {"option": "spot", "max_price": 60},
            {
                "marketType": "spot",
                "spotOptions": {
                    "instanceInterruptionBehavior": "terminate",
                    "spotInstanceType": "one-time",
                    "maxPrice": "60.0000",
                },
            },
            None,
        ),
        (
            {"option": "spot", "interruption": "stop"},
            {
                "marketType": "spot",
                "spotOptions": {"instanceInterruptionBehavior": "stop", "spotInstanceType": "persistent"},
            },
            None,
        ),
    ],
)
def test_purchase_options(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, purchase: dict[str, Any], market: Any, reservation: str | None
) -> None:
    instance = declare(monkeypatch, tmp_path, {"purchase": purchase}).inputs["b200-1-instance"]
    assert instance.get("instanceMarketOptions") == market
    target = instance.get("capacityReservationSpecification", {}).get("capacityReservationTarget", {})
    assert target.get("capacityReservationId") == reservation
    one_time = market is not None and market.get("spotOptions", {}).get("spotInstanceType") == "one-time"
    assert instance.get("instanceInitiatedShutdownBehavior") == (None if one_time else "stop")


def test_nothing_is_bought_by_any_declaration(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    purchase = {"option": "capacity_block", "reservation_id": "cr-0123456789abcdef0"}
    kinds = declare(monkeypatch, tmp_path, {"purchase": purchase}).types.values()
    assert not [kind for kind in kinds if "apacityBlock" in kind or "apacityReservation" in kind]


def test_everything_that_takes_tags_is_tagged(b200: Declared) -> None:
    untaggable = ("Route", "RouteTableAssociation", "EipAssociation", "RolePolicy")
    for name, kind in b200.types.items():
        short = kind.rsplit(":", 1)[-1]
        if not kind.startswith("aws:") or short in untaggable or (short.startswith("Bucket") and short != "Bucket"):
            continue
        tags = b200.inputs[name]["tags"]
        assert tags["decamp:project"] == "decamp" and tags["decamp:stack"] == "test", name
        assert tags["decamp:owner"] == "somebody@example.org", name
        expected = "b200-1" if name.startswith("b200-1") else "shared"
        assert tags["decamp:node"] == expected, name
        assert tags["decamp:expires"] == ("never" if short == "Bucket" else "2099-01-01T00:00:00Z"), name
    # With the launch, not in a call of its own after it.
    assert b200.inputs["b200-1-instance"]["volumeTags"] == b200.inputs["b200-1-instance"]["tags"]
    assert "tags" not in b200.inputs["b200-1-instance"]["rootBlockDevice"]
    provider = b200.inputs["aws"]
    assert CONTACTED in json.dumps(provider["ignoreTags"])


def test_every_resource_has_its_component_as_parent(b200: Declared) -> None:
    for name, kind in b200.types.items():
        if kind.startswith("aws:s3/"):
            assert b200.parent_of(name) == "store", name
        elif kind.startswith("aws:") and name.startswith("b200-1"):
            assert b200.parent_of(name) == "b200-1", name
        elif kind.startswith("aws:"):
            assert b200.parent_of(name) == "network", name


def test_traffic_to_the_store_takes_the_free_way(b200: Declared) -> None:
    endpoint = b200.inputs["s3-endpoint"]
    assert endpoint["serviceName"] == "com.amazonaws.us-east-1.s3" and endpoint["vpcEndpointType"] == "Gateway"
    assert endpoint["routeTableIds"] == ["routes-id"]


def test_given_subnet_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    network = {"subnet_id": "subnet-0123456789abcdef0", "ssh_from": ["203.0.113.7"]}
    declared = declare(monkeypatch, tmp_path, {"network": network, "instance_type": "g6.xlarge"})
    assert declared.inputs["b200-1-instance"]["subnetId"] == "subnet-0123456789abcdef0"
    assert declared.inputs["nodes"]["vpcId"] == "vpc-given"
    assert not of_type(declared, "Vpc") and not of_type(declared, "RouteTable")


def test_nodes_on_demand_are_placed_together(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, b200: Declared) -> None:
    # One node alone too, so that a second one can join it; it could not be put into a group later.
    assert b200.inputs["b200-1-instance"]["placementGroup"] == "cluster-id"
    two = declare(monkeypatch, tmp_path, nodes=[{"name": "b200-1"}, {"name": "b200-2"}])
    assert two.inputs["cluster"]["strategy"] == "cluster"
    assert two.inputs["b200-1-instance"]["placementGroup"] == two.inputs["b200-2-instance"]["placementGroup"]


def test_private_address_takes_no_elastic_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    declared = declare(monkeypatch, tmp_path, {"address": "private"})
    assert not of_type(declared, "Eip")
    assert declared.inputs["b200-1-guard"]["host"] == "10.64.0.9"


def test_change_that_would_stop_an_instance_is_another_generation(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, b200: Declared
) -> None:
    # EC2 would change the type on a stopped instance; a stop erases the instance store.
    other = declare(monkeypatch, tmp_path, {"instance_type": "g6.xlarge"})
    assert b200.inputs["b200-1-origin"]["generation"] != other.inputs["b200-1-origin"]["generation"]
    assert b200.inputs["b200-1-instance"]["userDataReplaceOnChange"] is True
    later = declare(monkeypatch, tmp_path, {"owner": "else@example.org", "expires": "2098-01-01T00:00:00Z"})
    assert b200.inputs["b200-1-origin"]["generation"] == later.inputs["b200-1-origin"]["generation"]
