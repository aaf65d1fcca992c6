"""What AWS would refuse is found by asking it, and each answer is one message with a key and a way out."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from decamp.aws.account import NoCredentials
from infra.aws.examination import Examined
from infra.aws.places import ask_address
from infra.aws.preparation import ask_vanished
from infra.aws.state import Held, HeldInstance
from infra.config import ConfigRefused, parse_config
from tests.aws_provider.cloud import Cloud, make_reservation
from tests.infra.aws_account import BLOCK, NOW, refusals, start_instance
from tests.infra.aws_declaration import make_key


def test_account_completes_the_settings(ask: Callable[..., Examined], cloud: Cloud) -> None:
    cloud.prices = {"g6.xlarge": 0.9}
    examined = ask()
    aws = examined.config.aws
    assert aws is not None
    facts = aws.facts
    assert (facts.account_id, facts.zone, facts.ssh_from) == ("123456789012", "us-east-1b", ("203.0.113.7/32",))
    assert facts.declare_bucket and facts.gpu == "1x L4" and (facts.vcpus, facts.quota_vcpus) == (4, 4)
    (node,) = examined.config.nodes
    assert (
        node.purchase == "on_demand"
        and node.gpu == "1x L4"
        and node.price_per_hour == pytest.approx(0.9 + 500 * 0.08 / 730 + 0.005, abs=1e-3)
    )
    assert examined.vanished == ("b200-1",) and examined.efa == "" and facts.interfaces == ()


def test_efa_of_the_type_is_found_and_told_unless_it_is_not_wanted(ask: Callable[..., Examined]) -> None:
    examined = ask({"instance_type": "g6e.48xlarge"})
    assert examined.efa == "EFA: 4 of g6e.48xlarge, as EC2 describes it"
    assert len(examined.config.aws.facts.interfaces) == 4  # type: ignore[union-attr]
    assert ask({"instance_type": "g6e.48xlarge", "efa": "none"}).efa == ""


def test_price_says_where_it_is_from(ask: Callable[..., Examined], cloud: Cloud) -> None:
    deadline = ["2026-06-02T12:00:00Z"]
    told = ask().estimate.describe(deadline, NOW)
    assert "0.81 dollars an hour each (the repository's table of 20" in told and "the price API gave none" in told
    cloud.prices = {"g6.xlarge": 2.0}
    told = ask({"root_volume_gib": 100}).estimate.describe(deadline, NOW)
    per_hour = 2.0 + 100 * 0.08 / 730 + 0.005
    assert "2.00 dollars an hour each (price API)" in told
    assert f"together {per_hour:,.2f} an hour, {per_hour * 24:,.2f} a day" in told
    assert f"{per_hour * 24:,.2f} until the deadline in 24.0 h" in told
    assert "no deadline: it costs until it is destroyed" in ask().estimate.describe([""], NOW)
    past = (NOW - timedelta(hours=1)).isoformat()
    assert "a day; the DEADLINE HAS PASSED: it costs until" in ask().estimate.describe([past], NOW)
    unknown = replace(ask().estimate, instance=None).describe([(NOW + timedelta(hours=3)).isoformat()], NOW)
    assert "no price is known" in unknown and unknown.endswith("; the deadline is in 3.0 h")


def test_price_above_the_limit_is_refused(ask: Callable[..., Examined], cloud: Cloud) -> None:
    cloud.prices = {"g6.xlarge": 2.0}
    nodes = [{"name": "a"}, {"name": "b"}]
    assert ask(max_price_per_hour=2.1)
    (problem,) = refusals(ask, max_price_per_hour=2.1, nodes=nodes)
    assert problem.startswith("decamp:max_price_per_hour: the stack costs more: expected at most 2.10 dollars an hour")
    assert "found 4.12 by price API" in problem
    cloud.prices = {}
    (problem,) = refusals(ask, {"instance_type": "g6.2xlarge"}, max_price_per_hour=5)
    assert problem.startswith("decamp:max_price_per_hour: cannot be held: no price is known")


def test_spot_is_priced_by_its_history_or_not_at_less_than_on_demand(
    ask: Callable[..., Examined], cloud: Cloud
) -> None:
    cloud.prices = {"g6.xlarge": 0.9}
    examined = ask({"purchase": {"option": "spot"}})
    assert examined.estimate.instance is not None
    assert examined.estimate.instance.source.startswith("spot price history")


def test_region_without_the_type_is_one_message(ask: Callable[..., Examined], cloud: Cloud) -> None:
    wrong = {"region": "af-south-1", "availability_zone": "af-south-1a", "instance_type": "p6-b200.48xlarge"}
    # As EC2 answers there; and what is in another region is not found either.
    cloud.faults = {
        "DescribeInstanceTypes": ("InvalidInstanceType", "The following supplied instance types do not exist")
    }
    cloud.connect("s3").create_bucket(Bucket="archives")
    elsewhere = {
        "image": {"id": "ami-0123456789abcdef1"},
        "network": {"subnet_id": "subnet-0123456789abcdef0", "ssh_from": ["203.0.113.7"]},
        "purchase": {"option": "reservation", "reservation_id": BLOCK},
    }
    (problem,) = refusals(ask, {**wrong, **elsewhere})
    assert problem.startswith("decamp:aws.region: does not offer p6-b200.48xlarge: found af-south-1; run: aws ec2")


def test_zone_without_the_type_names_those_with_it(ask: Callable[..., Examined]) -> None:
    (problem,) = refusals(ask, {"instance_type": "p6-b200.48xlarge", "availability_zone": "us-east-1a"})
    assert problem.startswith(
        "decamp:aws.availability_zone: does not offer p6-b200.48xlarge: expected one of us-east-1"
    )
    (problem,) = refusals(ask, {"availability_zone": None})
    assert problem.startswith("decamp:aws.availability_zone: missing: expected one of us-east-1a, us-east-1b")


def test_reservation_that_is_not_there(ask: Callable[..., Examined]) -> None:
    problems = refusals(ask, {"purchase": {"option": "reservation", "reservation_id": BLOCK}})
    assert len(problems) == 1
    assert problems[0].startswith(
        "decamp:aws.purchase.reservation_id: no such reservation in us-east-1, or it is another"
    )


@pytest.mark.parametrize(
    ("changes", "nodes", "key", "what"),
    [
        ({"endDate": "2026-06-01T11:30:00.000Z"}, 1, "aws.purchase.reservation_id", "is over"),
        ({"endDate": "2026-06-01T12:20:00.000Z"}, 1, "aws.purchase.reservation_id", "is over"),
        (
            {"state": "scheduled", "startDate": "2026-06-03T11:30:00.000Z"},
            1,
            "aws.purchase.reservation_id",
            "not begun",
        ),
        ({"state": "cancelled"}, 1, "aws.purchase.reservation_id", "is not active"),
        ({"instanceType": "g6.2xlarge"}, 1, "aws.instance_type", "is for another type"),
        ({"reservationType": "default"}, 1, "aws.purchase.option", "is not of this kind"),
        ({}, 2, "nodes", "has too few free instances"),
    ],
)
def test_block_that_cannot_be_used(
    ask: Callable[..., Examined], cloud: Cloud, changes: dict[str, Any], nodes: int, key: str, what: str
) -> None:
    block = {"endDate": "2026-06-05T11:30:00.000Z", "reservationType": "capacity-block", **changes}
    cloud.reservations = [make_reservation(BLOCK, block.pop("instanceType", "g6.xlarge"), **block)]
    purchase = {"purchase": {"option": "capacity_block", "reservation_id": BLOCK}, "availability_zone": None}
    (problem,) = refusals(ask, purchase, nodes=[{"name": f"n-{number}"} for number in range(nodes)])
    assert problem.startswith(f"decamp:{key}: ") and what in problem, problem


def test_deadline_is_half_an_hour_before_the_blocks_end(ask: Callable[..., Examined], cloud: Cloud) -> None:
    end = {"endDate": "2026-06-05T11:30:00.000Z", "reservationType": "capacity-block"}
    cloud.reservations = [make_reservation(BLOCK, "g6.xlarge", **end)]
    cloud.prices = {"g6.xlarge": 0.9}
    purchase = {"option": "capacity_block", "reservation_id": BLOCK, "price_per_hour": 0.5}
    examined = ask({"purchase": purchase, "availability_zone": None}, max_price_per_hour=0.1)
    (node,) = examined.config.nodes
    assert node.deadline == "2026-06-05T11:00:00Z" and node.price_per_hour == 0.5
    assert examined.config.aws is not None and examined.config.aws.facts.zone == "us-east-1b"
    told = examined.estimate.describe([node.deadline], NOW)
    assert "0.00 dollars an hour each (the block's fee was paid when it was bought, paid beforehand at 0.50)" in told
    earlier = ask({"purchase": purchase, "availability_zone": None}, deadline="2026-06-03T00:00:00+02:00")
    assert earlier.config.nodes[0].deadline == "2026-06-03T00:00:00+02:00"


def test_block_that_this_stack_fills_already_is_no_reason(ask: Callable[..., Examined], cloud: Cloud) -> None:
    end = {"endDate": "2026-06-05T11:30:00.000Z", "reservationType": "capacity-block", "availableInstanceCount": 0}
    cloud.reservations = [make_reservation(BLOCK, "g6.xlarge", **end)]
    instance = start_instance(cloud, "b200-1")
    purchase = {"purchase": {"option": "capacity_block", "reservation_id": BLOCK}, "availability_zone": None}
    in_it = HeldInstance("g6.xlarge", "capacity_block", BLOCK)
    assert ask(purchase, held=Held({instance: in_it})).vanished == ()
    # From elsewhere it would need a place in the block, whatever it leaves behind.
    (problem,) = refusals(ask, purchase, held=Held({instance: HeldInstance("g6.xlarge", "on_demand")}))
    assert problem.startswith(f"decamp:nodes: {BLOCK} has too few free instances: expected at most 0 new nodes")


def test_instance_that_an_interrupted_up_left_is_not_paid_for_twice(ask: Callable[..., Examined], cloud: Cloud) -> None:
    instance = start_instance(cloud, "b200-1")
    start_instance(cloud, "b200-1", stack="another")
    (problem,) = refusals(ask)
    assert (
        problem.startswith(f'{instance}: is tagged as b200-1 of "test" and costs money') and "decamp sweep" in problem
    )
    cloud.connect("ec2").terminate_instances(InstanceIds=[instance])
    assert ask().vanished == ("b200-1",)


@pytest.mark.parametrize("dry_run", [True, False])
def test_node_that_ended_by_itself_is_asked_for_before_another_starts(
    ask: Callable[..., Examined], monkeypatch: pytest.MonkeyPatch, dry_run: bool
) -> None:
    from tests.infra.test_stack import guarded as make_guarded

    monkeypatch.setattr("pulumi.runtime.is_dry_run", lambda: dry_run)
    monkeypatch.setattr("pulumi.log.warn", lambda message: told.append(message))
    told: list[str] = []
    examined, guarded = ask(), replace(make_guarded("b200-1"), target="aws")
    asked: list[Any] = []

    def refuse(nodes: Any) -> None:
        asked.extend(nodes)
        raise NoCredentials("b200-1", "must stay")

    if dry_run:
        ask_vanished(examined, [guarded], refuse)
        assert "must stay" in told[0]
    else:
        with pytest.raises(NoCredentials):
            ask_vanished(examined, [guarded], refuse)
    assert asked == [guarded]
    ask_vanished(examined, [replace(guarded, name="other")], refuse)
    assert asked == [guarded]


def test_image_that_is_not_there(ask: Callable[..., Examined]) -> None:
    (problem,) = refusals(ask, {"image": {"parameter": "/aws/service/none"}})
    assert problem.startswith("decamp:aws.image.parameter: no such SSM parameter in us-east-1: found /aws/service/none")
    (problem,) = refusals(ask, {"image": {"id": "ami-0123456789abcdef1"}})
    assert problem.startswith("decamp:aws.image.id: no such image in us-east-1: found ami-0123456789abcdef1")


def test_subnet_that_is_not_there(ask: Callable[..., Examined]) -> None:
    network = {"subnet_id": "subnet-0123456789abcdef0", "ssh_from": ["203.0.113.7"]}
    (problem,) = refusals(ask, {"network": network})
    assert problem.startswith("decamp:aws.network.subnet_id: no such subnet in us-east-1")


def test_bucket_of_another_or_of_another_purpose(ask: Callable[..., Examined], cloud: Cloud) -> None:
    s3 = cloud.connect("s3")
    assert ask().config.aws.facts.declare_bucket  # type: ignore[union-attr]
    s3.create_bucket(Bucket="archives")
    (problem,) = refusals(ask)
    assert problem.startswith("decamp:store.url: there is such a bucket, and it is not one that Decamp made")
    assert not ask({"bucket": {"existing": True}}).config.aws.facts.declare_bucket  # type: ignore[union-attr]
    tags = [{"Key": "decamp:project", "Value": "decamp"}]
    s3.put_bucket_tagging(Bucket="archives", Tagging={"TagSet": tags})
    assert not ask().config.aws.facts.declare_bucket  # type: ignore[union-attr]
    held = Held(buckets=frozenset({"archives"}))
    assert ask(held=held).config.aws.facts.declare_bucket  # type: ignore[union-attr]


def test_existing_bucket_that_does_not_exist(ask: Callable[..., Examined]) -> None:
    (problem,) = refusals(ask, {"bucket": {"existing": True}})
    assert problem.startswith("decamp:store.url: no such bucket, and decamp:aws.bucket.existing is true")


def test_bucket_name_taken_by_another_account(ask: Callable[..., Examined], cloud: Cloud) -> None:
    cloud.foreign_buckets.add("archives")
    (problem,) = refusals(ask)
    assert problem.startswith("decamp:store.url: the bucket's name is taken by another account")


def test_operators_address_is_found_or_asked_for(ask: Callable[..., Examined]) -> None:
    unset: dict[str, Any] = {"network": {}}
    examined = ask(unset, find_address=lambda: "198.51.100.3\n")
    assert examined.config.aws is not None and examined.config.aws.facts.ssh_from == ("198.51.100.3/32",)

    def silent() -> str:
        raise OSError("no route to host")

    (problem,) = refusals(ask, unset, find_address=silent)
    assert problem.startswith("decamp:aws.network.ssh_from: your address cannot be found") and "no route" in problem
    (problem,) = refusals(ask, unset, find_address=lambda: "<html>")
    assert "your address cannot be found" in problem and "run: pulumi config set --path" in problem
    (problem,) = refusals(ask, {"network": {}, "address": "private"}, find_address=lambda: "198.51.100.3")
    assert problem.startswith("decamp:aws.network.ssh_from: missing: private addresses")


def test_address_service_is_asked_over_tls_and_with_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def answer(url: str, timeout: float) -> Any:
        import io

        asked.append((url, timeout))
        return io.BytesIO(b"198.51.100.3\n" + b"x" * 1000)

    monkeypatch.setattr("urllib.request.urlopen", answer)
    assert ask_address().startswith("198.51.100.3\n") and len(ask_address()) == 100
    assert asked[0][0].startswith("https://") and 0 < asked[0][1] <= 30


def test_no_credentials_is_one_message(
    ask: Callable[..., Examined], cloud: Cloud, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(NoCredentials) as refused:
        ask()
    assert str(refused.value).startswith("AWS credentials: none can be had") and "run: aws configure" in str(
        refused.value
    )
    assert refused.value.exit_code == 2 and not cloud.calls


def test_all_that_is_wrong_in_the_account_is_named_at_once(ask: Callable[..., Examined], cloud: Cloud) -> None:
    cloud.quotas = {"L-DB2E81BA": 0}
    cloud.prices = {"g6.xlarge": 2.0}
    start_instance(cloud, "stray")
    wrong = {"image": {"parameter": "/none"}, "availability_zone": "us-east-1e", "network": {}}
    problems = refusals(ask, wrong, find_address=lambda: "", max_price_per_hour=1)
    assert len(problems) == 6, problems


def test_public_half_is_computed_from_the_private_key(tmp_path: Path) -> None:
    from decamp.errors import BadInput
    from infra.aws.operator_key import read_public_half

    key = make_key(tmp_path)
    public = key.with_name(f"{key.name}.pub").read_text().split()
    assert read_public_half(key) == f"{public[0]} {public[1]}"
    (tmp_path / "none").write_text("no key")
    with pytest.raises(BadInput, match="no public key can be had from it"):
        read_public_half(tmp_path / "none")


def test_unknown_target_is_still_refused() -> None:
    with pytest.raises(ConfigRefused):
        parse_config("test", {"decamp:target": "azure"})
