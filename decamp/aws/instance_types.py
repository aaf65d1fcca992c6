"""What an instance type has: GPUs, network cards and the quota that counts it; asked of EC2 where no table says it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from decamp.aws.account import Account, CloudRefusal, translated


@dataclass(frozen=True)
class Interface:
    """A network interface at launch; `kind` as EC2 names it: interface, efa or efa-only."""

    card: int
    device: int
    kind: str


@dataclass(frozen=True)
class InstanceType:
    """A type as EC2 describes it.

    Args:
        name: e.g. `p5.48xlarge`.
        gpu: like `8x B200`; empty without GPUs.
        vcpus: of one instance.
        instance_store_gb: of all its disks together.
        interfaces: what it is started with to have all its EFAs; empty for one plain interface.
        told_by_ec2: EC2 has said what EFAs there are; else the interfaces are those of EFA_CARDS.
    """

    name: str
    gpu: str
    vcpus: int
    instance_store_gb: int
    interfaces: tuple[Interface, ...] = ()
    told_by_ec2: bool = True

    def describe_efa(self) -> str:
        """Returns in one line how many EFAs there are and who says so; empty where EC2 says that there are none."""
        count = sum(1 for one in self.interfaces if one.kind != "interface")
        if self.told_by_ec2:
            return f"EFA: {count} of {self.name}, as EC2 describes it" if count else ""
        table = f"by the table in decamp/aws/instance_types.py, as EC2 does not say what {self.name} has"
        return f"EFA: {count or 'none'}, {table}"


@dataclass(frozen=True)
class Quota:
    """A vCPU quota of EC2, by its code in the Service Quotas service."""

    code: str
    name: str


# For where EC2 does not say it: network cards, each with one EFA (EC2 User Guide, "Maximize network bandwidth on
# EFA-enabled accelerated instances", 2025).
EFA_CARDS = {
    "p6-b200.48xlarge": 8,
    "p5en.48xlarge": 16,
    "p5e.48xlarge": 32,
    "p5.48xlarge": 32,
    "p4de.24xlarge": 4,
    "p4d.24xlarge": 4,
}
# The same guide: the first card's EFA is an interface of its own here, beside the one that carries IP. EC2's
# description of a type does not say how they are to be shared out.
_FIRST_EFA_APART = ("p6-b200.48xlarge",)

# Service Quotas, "Amazon EC2" (2025): vCPUs of running instances, by family and market.
_QUOTAS = {
    ("p", "on_demand"): Quota("L-417A185B", "Running On-Demand P instances"),
    ("p", "spot"): Quota("L-7212CCBC", "All P4, P3 and P2 Spot Instance Requests"),
    ("p5", "spot"): Quota("L-C4BD4855", "All P5 Spot Instance Requests"),
    ("g", "on_demand"): Quota("L-DB2E81BA", "Running On-Demand G and VT instances"),
    ("g", "spot"): Quota("L-3819A6DF", "All G and VT Spot Instance Requests"),
    ("standard", "on_demand"): Quota("L-1216C47A", "Running On-Demand Standard instances"),
    ("standard", "spot"): Quota("L-34B43A08", "All Standard Spot Instance Requests"),
}

_STANDARD = "acdhimrtz"


def lay_out_interfaces(name: str, cards: Sequence[int], count: int) -> tuple[Interface, ...]:
    """Returns the interfaces a type is started with: one that carries IP, and an EFA on each card that has one.

    The guide (see EFA_CARDS): device 0 of card 0 carries IP and may be an EFA as well; every other EFA is efa-only on
    device 1, which takes no address.

    Args:
        name: the instance type.
        cards: network card indices that can have an EFA, ascending.
        count: how many EFAs an instance may have. Where that is fewer than there are cards, the first cards go without
            (card 0 of p6-b300 has none), except that a single one is the first card's.
    """
    with_efa = list(cards[-count:] if count > 1 else cards[:1])
    if with_efa[0] == 0 and name not in _FIRST_EFA_APART:
        head, with_efa = Interface(0, 0, "efa"), with_efa[1:]
    else:
        head = Interface(0, 0, "interface")
    return (head, *(Interface(card, 1, "efa-only") for card in with_efa))


def read_interfaces(name: str, network: Mapping[str, Any]) -> tuple[tuple[Interface, ...], bool]:
    """Returns the interfaces of a type, and whether it is EC2 that says so; the table's where EC2 does not.

    Args:
        name: the instance type.
        network: `NetworkInfo` of EC2's description (EC2 API Reference, "NetworkInfo" and "NetworkCardInfo", 2025).
    """
    if network.get("EfaSupported") is False:
        return (), True
    count = int(network.get("EfaInfo", {}).get("MaximumEfaInterfaces", 0))
    # Which kinds a card takes is told of late; of a card that has no word on it, any.
    cards = sorted(
        int(card["NetworkCardIndex"])
        for card in network.get("NetworkCards", [])
        if {"efa", "efa-only"} & set(card.get("InterfaceTypes") or ["efa"])
    )
    if network.get("EfaSupported") and count and cards:
        return lay_out_interfaces(name, cards, count), True
    known = EFA_CARDS.get(name, 0)
    return (lay_out_interfaces(name, range(known), known) if known else ()), False


def find_quota(name: str, market: str) -> Quota | None:
    """Returns the quota that counts a type on a market (`on_demand`, `spot`); None where it is not known.

    Capacity blocks and reservations count their vCPUs when they are made, not when an instance starts.
    """
    family = re.match(r"[a-z]+", name)
    letter = family[0] if family else ""
    if name.startswith(("p5", "p6")) and market == "spot":
        return _QUOTAS[("p5", "spot")] if name.startswith("p5") else None
    if letter in ("g", "gr", "vt"):
        return _QUOTAS.get(("g", market))
    if letter == "p":
        return _QUOTAS.get(("p", market))
    return _QUOTAS.get(("standard", market)) if letter[:1] in _STANDARD else None


def describe_type(account: Account, name: str) -> InstanceType:
    """Returns what EC2 says of a type.

    Raises:
        CloudRefusal: the region has no such type.
    """
    with translated(name):
        told = account.ec2.describe_instance_types(InstanceTypes=[name])["InstanceTypes"]  # type: ignore[list-item]  # any name
    if not told:
        raise CloudRefusal(name, "EC2 does not describe this type", code="InvalidInstanceType")
    (only,) = told
    gpus = only.get("GpuInfo", {}).get("Gpus", [])
    interfaces, told_by_ec2 = read_interfaces(name, only.get("NetworkInfo", {}))
    words = ", ".join(f"{gpu.get('Count', 1)}x {gpu.get('Name', 'GPU')}" for gpu in gpus)
    return InstanceType(
        name=name,
        gpu=words,
        vcpus=int(only.get("VCpuInfo", {}).get("DefaultVCpus", 0)),
        instance_store_gb=int(only.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0)),
        interfaces=interfaces,
        told_by_ec2=told_by_ec2,
    )


def count_vcpus(account: Account, quota: Quota) -> int:
    """Returns how many vCPUs of a quota running instances take in the region, whoever started them.

    Each counts with its type's own number of vCPUs, also where it was started with fewer.
    """
    states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    with translated("running instances"):
        pages = account.ec2.get_paginator("describe_instances").paginate(Filters=states)  # type: ignore[arg-type]  # plain mappings
        told = [one for page in pages for reservation in page["Reservations"] for one in reservation["Instances"]]
    # Neither spot nor a capacity block says `on demand`; a block's instances count nowhere.
    started = Counter((str(one["InstanceType"]), one.get("InstanceLifecycle", "on_demand")) for one in told)
    counted = {key: count for key, count in started.items() if find_quota(*key) == quota}
    return sum(describe_type(account, name).vcpus * count for (name, _), count in counted.items())


def list_zones(account: Account, name: str) -> list[str]:
    """Returns the zones of the region that offer a type, sorted; empty when none does."""
    with translated(name):
        pages = account.ec2.get_paginator("describe_instance_type_offerings").paginate(
            LocationType="availability-zone", Filters=[{"Name": "instance-type", "Values": [name]}]
        )
        return sorted({str(offer["Location"]) for page in pages for offer in page["InstanceTypeOfferings"]})
