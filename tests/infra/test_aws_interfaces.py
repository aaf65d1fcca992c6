"""Which EFAs a type has is what EC2 says of it, and the repository's table where EC2 does not."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from moto.ec2.models.instance_types import INSTANCE_TYPES

from decamp.aws.account import Account
from decamp.aws.instance_types import EFA_CARDS, describe_type, read_interfaces
from tests.aws_provider.cloud import Cloud


def expect(first: str, *others: int) -> list[tuple[int, int, str]]:
    return [(0, 0, first), *((card, 1, "efa-only") for card in others)]


def shown(interfaces: Any) -> list[tuple[int, int, str]]:
    return [(one.card, one.device, one.kind) for one in interfaces]


@pytest.mark.parametrize(
    ("name", "wanted", "told"),
    [
        ("p6-b200.48xlarge", expect("interface", *range(8)), "8 of p6-b200.48xlarge"),
        ("p6-b300.48xlarge", expect("interface", *range(1, 17)), "16 of p6-b300.48xlarge"),
        ("p5en.48xlarge", expect("efa", *range(1, 16)), "16 of p5en.48xlarge"),
        ("p4d.24xlarge", expect("efa", *range(1, 4)), "4 of p4d.24xlarge"),
        ("g6e.48xlarge", expect("efa", *range(1, 4)), "4 of g6e.48xlarge"),
        ("g6.12xlarge", expect("efa"), "1 of g6.12xlarge"),
        ("g6.xlarge", [], ""),
    ],
)
def test_type_has_the_interfaces_that_ec2_describes(
    cloud: Cloud, name: str, wanted: list[tuple[int, int, str]], told: str
) -> None:
    assert cloud.url
    kind = describe_type(Account("us-east-1"), name)
    assert shown(kind.interfaces) == wanted
    assert kind.describe_efa() == (f"EFA: {told}, as EC2 describes it" if told else "")


@pytest.mark.parametrize("silent", [{}, {"EfaSupported": True}, {"EfaInfo": {"MaximumEfaInterfaces": 16}}])
def test_table_is_used_where_ec2_does_not_say_and_that_is_told(silent: dict[str, Any]) -> None:
    def describe(InstanceTypes: list[str]) -> dict[str, Any]:  # noqa: N803 - boto3's name
        return {"InstanceTypes": [{**INSTANCE_TYPES[InstanceTypes[0]], "NetworkInfo": silent}]}

    account: Any = SimpleNamespace(ec2=SimpleNamespace(describe_instance_types=describe))
    kind, other = describe_type(account, "p5en.48xlarge"), describe_type(account, "g6.12xlarge")
    assert shown(kind.interfaces) == expect("efa", *range(1, 16))
    table = "by the table in decamp/aws/instance_types.py, as EC2 does not say what"
    assert kind.describe_efa() == f"EFA: 16, {table} p5en.48xlarge has"
    assert other.interfaces == () and other.describe_efa() == f"EFA: none, {table} g6.12xlarge has"


@pytest.mark.parametrize("name", EFA_CARDS)
def test_table_says_what_ec2_says(name: str) -> None:
    asked, from_table = read_interfaces(name, INSTANCE_TYPES[name]["NetworkInfo"]), read_interfaces(name, {})
    assert asked == (from_table[0], True) and from_table[1] is False


def test_card_that_takes_no_efa_has_none() -> None:
    cards = [
        {"NetworkCardIndex": 0, "InterfaceTypes": ["interface"]},
        {"NetworkCardIndex": 1, "InterfaceTypes": ["interface", "efa", "efa-only"]},
        {"NetworkCardIndex": 2, "InterfaceTypes": ["interface"]},
    ]
    network = {"EfaSupported": True, "EfaInfo": {"MaximumEfaInterfaces": 1}, "NetworkCards": cards}
    assert shown(read_interfaces("new.48xlarge", network)[0]) == expect("interface", 1)
