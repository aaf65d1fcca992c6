"""Wrong settings of the target aws are named with their key, all at once, before anybody asks AWS anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra.aws.settings import DLAMI_PARAMETER, AwsSettings
from tests.infra.aws_declaration import make_key, settings_of
from tests.infra.test_config import find_problems, parse


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    return make_key(tmp_path)


def read(key_file: Path, aws: dict[str, Any] | None = None, **changes: Any) -> AwsSettings:
    settings = parse(settings_of(key_file, aws, **changes)).aws
    assert settings is not None
    return settings


def problems_of(key_file: Path, aws: dict[str, Any] | None = None, **changes: Any) -> list[str]:
    return find_problems(settings_of(key_file, aws, **changes))


def test_small_stack_has_careful_defaults(key_file: Path) -> None:
    config = parse(settings_of(key_file))
    aws = config.aws
    assert aws is not None
    assert (aws.shutdown, aws.elastic_address, aws.efa, aws.root_volume_gib) == ("stop", True, True, 500)
    assert aws.image_parameter == DLAMI_PARAMETER and aws.image_id == ""
    assert aws.network.ssh_from == () and aws.expires == "2099-01-01T00:00:00Z"
    assert (aws.bucket.abort_uploads_days, aws.bucket.keep_old_versions_days, aws.bucket.existing) == (7, 30, False)
    assert config.store.region == "us-east-1" and config.store.endpoint == "" and config.nodes[0].user == "root"


def test_store_follows_the_nodes_region(key_file: Path) -> None:
    west = {"region": "us-west-2", "availability_zone": "us-west-2a"}
    assert parse(settings_of(key_file, west)).store.region == "us-west-2"
    (problem,) = problems_of(key_file, west, store={"url": "s3://archives", "region": "us-east-1"})
    assert problem.startswith("decamp:store.region: is not the nodes' region: expected us-west-2")


@pytest.mark.parametrize(
    ("region", "what"),
    [
        ("mars", 'not allowed: expected a region, e.g. us-east-1, found "mars"'),
        ("us-west-2", "is neither the region of availability_zone (us-east-1b) nor decamp:store.region: expected us"),
    ],
)
def test_wrong_region_is_one_message(key_file: Path, region: str, what: str) -> None:
    (problem,) = problems_of(key_file, {"region": region}, store={"url": "s3://archives", "region": "us-east-1"})
    assert problem.startswith(f"decamp:aws.region: {what}")


def test_zone_and_store_in_regions_of_their_own_are_two_messages(key_file: Path) -> None:
    store = {"url": "s3://archives", "region": "eu-north-1"}
    keys = [problem.split(": ")[0] for problem in problems_of(key_file, {"region": "us-west-2"}, store=store)]
    assert keys == ["decamp:aws.availability_zone", "decamp:store.region"]


@pytest.mark.parametrize("source", ["0.0.0.0/0", "::/0"])
def test_open_door_needs_a_second_word(key_file: Path, source: str) -> None:
    network = {"network": {"ssh_from": [source]}}
    (problem,) = problems_of(key_file, network)
    assert problem.startswith("decamp:aws.network.ssh_from: would let everybody on the internet try to log in")
    assert "decamp:allow_any_source" in problem
    assert read(key_file, network, allow_any_source=True).network.ssh_from == (source,)


@pytest.mark.parametrize("sources", [["0.0.0.0/1", "128.0.0.0/1"], ["::/1", "203.0.113.7", "8000::/1"]])
def test_an_open_door_in_two_halves_is_one(key_file: Path, sources: list[str]) -> None:
    network = {"network": {"ssh_from": sources}}
    (problem,) = problems_of(key_file, network)
    assert problem.startswith("decamp:aws.network.ssh_from: would let everybody on the internet try to log in")
    assert len(read(key_file, network, allow_any_source=True).network.ssh_from) == len(sources)


@pytest.mark.parametrize(
    ("purchase", "key", "what"),
    [
        ({"option": "capacity_block"}, "reservation_id", "missing"),
        ({"option": "reservation"}, "reservation_id", "missing"),
        ({"option": "on_demand", "reservation_id": "cr-0123456789abcdef0"}, "reservation_id", "means nothing"),
        ({"option": "on_demand", "max_price": 3}, "max_price", "means nothing"),
        ({"option": "reservation", "reservation_id": "cr-1234"}, "reservation_id", "not allowed"),
        ({"option": "spot", "interruption": "hibernate"}, "interruption", "not allowed"),
        ({"option": "cheap"}, "option", "not allowed"),
        ({}, "option", "missing"),
        ({"option": "spot", "price_per_hour": 3}, "price_per_hour", "means nothing"),
    ],
)
def test_purchase_with_what_does_not_belong(key_file: Path, purchase: dict[str, Any], key: str, what: str) -> None:
    problems = problems_of(key_file, {"purchase": purchase})
    assert any(problem.startswith(f"decamp:aws.purchase.{key}: {what}") for problem in problems), problems


def test_missing_block_is_answered_with_how_to_get_one(key_file: Path) -> None:
    (problem,) = problems_of(key_file, {"purchase": {"option": "capacity_block"}})
    assert "run: decamp capacity find" in problem


@pytest.mark.parametrize(
    ("bucket", "what"),
    [
        ("a..b-bucket", "two dots in a row"),
        ("192.168.5.4", "formatted like an IP address"),
        ("xn--bucket", "a reserved prefix"),
        ("bucket-s3alias", "a reserved suffix"),
        ("with.dots", "a dot, which breaks TLS"),
    ],
)
def test_bucket_name_that_s3_would_refuse(key_file: Path, bucket: str, what: str) -> None:
    (problem,) = problems_of(key_file, store={"url": f"s3://{bucket}/rentals"})
    assert problem.startswith(f"decamp:store.url: the bucket's name has {what}") and bucket in problem


def test_options_for_an_existing_bucket_are_refused_in_one_message(key_file: Path) -> None:
    key = {"kms_key_arn": "arn:aws:kms:us-east-1:123456789012:key/k"}
    options = {"storage_class": "GLACIER_IR", "keep_old_versions_days": 7, "object_lock_days": 0}
    (problem,) = problems_of(key_file, {"bucket": {"existing": True, **key, **options}})
    what = "decamp:aws.bucket: has options that an existing bucket does not get: expected existing alone"
    assert problem.startswith(what) and "keep_old_versions_days, object_lock_days, storage_class" in problem
    assert read(key_file, {"bucket": {"existing": True, **key}}).bucket.kms_key_arn == key["kms_key_arn"]
    assert read(key_file, {"bucket": {"existing": False, **options}}).bucket.storage_class == "GLACIER_IR"


def test_expiry_is_asked_for_where_nothing_else_says_it(key_file: Path) -> None:
    (problem,) = problems_of(key_file, deadline=None)
    assert problem.startswith("decamp:aws.expires: missing")
    assert read(key_file, {"expires": "2098-01-01T00:00:00Z"}, deadline=None).expires == "2098-01-01T00:00:00Z"
    block = {"option": "capacity_block", "reservation_id": "cr-0123456789abcdef0"}
    assert read(key_file, {"purchase": block}, deadline=None).expires == ""


def test_everything_wrong_is_named_at_once(key_file: Path) -> None:
    wrong = {
        "region": "mars",
        "availability_zone": "b",
        "owner": None,
        "instance_type": "B200",
        "image": {"id": "ami-1", "parameter": "x"},
        "root_volume_gib": 4,
        "shutdown": "sleep",
        "address": "public",
        "network": {"cidr": "10.0.0.0/8", "ssh_from": ["me"], "subnet_id": "net"},
        "bucket": {
            "storage_class": "STANDARD_IA",
            "storage_class_after_days": 2,
            "object_lock_mode": "GOVERNANCE",
            "kms_key_arn": "key",
        },
        "spot": True,
    }
    problems = problems_of(key_file, wrong)
    keys = {problem.split(": ")[0].removeprefix("decamp:aws.") for problem in problems}
    assert keys == {
        *("region", "availability_zone", "owner", "instance_type", "image.id", "image.parameter", "root_volume_gib"),
        *("shutdown", "address", "network.cidr", "network.ssh_from", "network.subnet_id", "spot"),
        *("bucket.storage_class_after_days", "bucket.object_lock_days", "bucket.kms_key_arn"),
    }


def test_settings_of_aws_belong_to_aws(key_file: Path) -> None:
    settings = settings_of(key_file)
    settings["target"] = "rehearsal"
    del settings["store"]
    problems = find_problems(settings)
    assert any(problem.startswith("decamp:aws: belongs to the target aws alone") for problem in problems)


def test_node_of_aws_has_no_address_of_its_own(key_file: Path) -> None:
    node = {"name": "b200-1", "host": "203.0.113.7", "host_key": "ssh-ed25519 AAAA", "price_per_hour": 1}
    keys = {problem.split(": ")[0] for problem in problems_of(key_file, nodes=[node])}
    assert keys == {f"decamp:nodes[0].{key}" for key in ("host", "host_key", "price_per_hour")}
