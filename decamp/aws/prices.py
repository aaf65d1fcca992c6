"""A price always says where it comes from: the price API, the spot history, or the dated table in this repository."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Any

from decamp.aws.account import PRICING_REGION, Account, translated
from decamp.aws.price_table import AS_OF, GP3_PER_GIB_MONTH, HOURS_PER_MONTH, ON_DEMAND_PER_HOUR, PUBLIC_IPV4_PER_HOUR
from decamp.errors import DecampError

SPOT_HISTORY = timedelta(hours=6)


@dataclass(frozen=True)
class Price:
    """US dollars an hour, and where that is from.

    Args:
        per_hour: of one instance, without disk and address.
        source: in words, e.g. `price API` or `table of 2025-11-15`.
    """

    per_hour: float
    source: str


def find_on_demand(account: Account, instance_type: str) -> Price | None:
    """Returns the on-demand price of a type in the account's region; None when neither API nor table has one."""
    try:
        asked = _ask_price_list(account, instance_type)
    except DecampError:
        asked = None  # no permission, no network or no such service there: the table, which says that it is one
    return asked or look_up(instance_type, account.region)


def look_up(instance_type: str, region: str) -> Price | None:
    """Returns the table's price of a type in a region, or None."""
    known = ON_DEMAND_PER_HOUR.get(instance_type, {}).get(region)
    return None if known is None else Price(known, f"the repository's table of {AS_OF}; the price API gave none")


def _ask_price_list(account: Account, instance_type: str) -> Price | None:
    # AWS Price List, "Finding services and products" (2025): these five fields leave one product.
    wanted = {
        "instanceType": instance_type,
        "regionCode": account.region,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "preInstalledSw": "NA",
        "capacitystatus": "Used",
    }
    filters = [{"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()]
    with translated("price API"):
        told = account.connect("pricing", PRICING_REGION).get_products(ServiceCode="AmazonEC2", Filters=filters)
    prices = {price for product in told.get("PriceList", []) for price in _read_product(json.loads(product))}
    return Price(max(prices), "price API") if prices else None


def _read_product(product: dict[str, Any]) -> list[float]:
    terms = product.get("terms", {}).get("OnDemand", {}).values()
    rates = [rate for term in terms for rate in term.get("priceDimensions", {}).values()]
    hourly = [rate for rate in rates if rate.get("unit") == "Hrs"]
    return [float(rate["pricePerUnit"]["USD"]) for rate in hourly if float(rate["pricePerUnit"].get("USD", 0)) > 0]


def find_spot(account: Account, instance_type: str, zone: str) -> Price | None:
    """Returns what spot costs in a zone now; None when the history has nothing."""
    since = datetime.now(timezone.utc) - SPOT_HISTORY
    with translated(f"spot price of {instance_type}"):
        told = account.ec2.describe_spot_price_history(
            InstanceTypes=[instance_type],  # type: ignore[list-item]  # any name
            AvailabilityZone=zone,
            ProductDescriptions=["Linux/UNIX"],
            StartTime=since,
        )["SpotPriceHistory"]
    if not told:
        return None
    newest = max(told, key=lambda row: row["Timestamp"])
    return Price(float(newest["SpotPrice"]), f"spot price history, {newest['Timestamp']:%Y-%m-%d %H:%M} UTC")


def price_surroundings(root_volume_gib: int, elastic_address: bool) -> float:
    """Returns what a node's disk and public address cost an hour, by the table."""
    disk = root_volume_gib * GP3_PER_GIB_MONTH / HOURS_PER_MONTH
    return disk + (PUBLIC_IPV4_PER_HOUR if elastic_address else 0.0)
