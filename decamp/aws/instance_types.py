"""What an instance type has: GPUs, network cards and the quota that counts it; asked of EC2 where no table says it."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from decamp.aws.account import Account, CloudRefusal, translated


@dataclass(frozen=True)
class Interface:
    """A network interface at launch; `kind` as EC2 names it: interface, efa or efa-only."""

    card: int
    device: int
    kind: str


@dataclass(frozen=True)
class InstanceType:
    """A type as EC2 describes it; `gpu` reads like `8x B200`, empty without GPUs."""

    name: str
    gpu: str
    vcpus: int
    instance_store_gb: int


@dataclass(frozen=True)
class Quota:
    """A vCPU quota of EC2, by its code in the Service Quotas service."""

    code: str
    name: str


def _efa_cards(count: int, first: str, others_from: int, others: str) -> tuple[Interface, ...]:
    head = (Interface(0, 0, first),)
    return head + tuple(Interface(card, 1, others) for card in range(others_from, count))


# EC2 User Guide, "Maximize network bandwidth on EFA-enabled accelerated instances" (2025): card 0 carries IP on device
# 0, the others are efa-only on device 1, which takes no address. On p6-b200 all eight cards have such a second device.
EFA_INTERFACES: dict[str, tuple[Interface, ...]] = {
    "p6-b200.48xlarge": _efa_cards(8, "interface", 0, "efa-only"),
    "p5en.48xlarge": _efa_cards(16, "efa", 1, "efa-only"),
    "p5e.48xlarge": _efa_cards(32, "efa", 1, "efa-only"),
    "p5.48xlarge": _efa_cards(32, "efa", 1, "efa-only"),
    "p4de.24xlarge": _efa_cards(4, "efa", 1, "efa-only"),
    "p4d.24xlarge": _efa_cards(4, "efa", 1, "efa-only"),
}

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


def get_efa_interfaces(name: str) -> tuple[Interface, ...]:
    """Returns the interfaces a type with EFA is started with; none for a type that has one plain interface."""
    return EFA_INTERFACES.get(name, ())


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
    words = ", ".join(f"{gpu.get('Count', 1)}x {gpu.get('Name', 'GPU')}" for gpu in gpus)
    return InstanceType(
        name=name,
        gpu=words,
        vcpus=int(only.get("VCpuInfo", {}).get("DefaultVCpus", 0)),
        instance_store_gb=int(only.get("InstanceStorageInfo", {}).get("TotalSizeInGB", 0)),
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
