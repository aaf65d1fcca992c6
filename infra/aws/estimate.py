"""What a stack will cost is said before it costs anything: an hour, a day, until the deadline, and by which price."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from decamp.aws.account import Account
from decamp.aws.price_table import AS_OF
from decamp.aws.prices import Price, find_on_demand, find_spot, price_surroundings
from decamp.errors import BadInput, DecampError
from infra.aws.settings import AwsSettings


@dataclass(frozen=True)
class Estimate:
    """The cost of a stack from now on, in US dollars.

    Args:
        nodes: how many.
        instance: price of one instance; None when nothing is known. A capacity block's is paid already.
        surroundings_per_hour: disk and address of one node.
        words: type and purchase option.
        paid_before: an hour of a block, as its fee was told in the configuration.
    """

    nodes: int
    instance: Price | None
    surroundings_per_hour: float
    words: str
    paid_before: float | None = None

    @property
    def node_per_hour(self) -> float | None:
        return None if self.instance is None else self.instance.per_hour + self.surroundings_per_hour

    @property
    def per_hour(self) -> float | None:
        return None if self.node_per_hour is None else self.nodes * self.node_per_hour

    def describe(self, deadlines: list[str], now: datetime) -> str:
        """Returns the estimate in one line; the time left is the longest of the nodes'."""
        ends = [datetime.fromisoformat(text.replace("Z", "+00:00")) for text in deadlines if text]
        hours = max(((end - now).total_seconds() / 3600 for end in ends), default=0.0)
        if len(ends) < len(deadlines) or not ends:
            until = "; no deadline: it costs until it is destroyed"
        elif hours <= 0:
            until = "; the DEADLINE HAS PASSED: it costs until it is destroyed"
        elif self.per_hour is None:
            until = f"; the deadline is in {hours:,.1f} h"
        else:
            until = f", {self.per_hour * hours:,.2f} until the deadline in {hours:,.1f} h"
        if self.instance is None or self.per_hour is None:
            return f"cost: {self.words}: no price is known, neither by the price API nor by the table of {AS_OF}{until}"
        paid = f", paid beforehand at {self.paid_before:,.2f}" if self.paid_before is not None else ""
        return (
            f"cost: {self.words}: {self.instance.per_hour:,.2f} dollars an hour each ({self.instance.source}{paid}), "
            f"disk and address {self.surroundings_per_hour:,.3f} (table of {AS_OF}); "
            f"together {self.per_hour:,.2f} an hour, {self.per_hour * 24:,.2f} a day{until}. "
            "Storage in S3 and traffic to the internet come on top"
        )


def estimate(account: Account, settings: AwsSettings, zone: str, nodes: int) -> Estimate:
    """Returns what the nodes will cost."""
    option = settings.purchase.option
    price: Price | None
    if option == "capacity_block":
        price = Price(0.0, "the block's fee was paid when it was bought")
    elif option == "spot":
        try:
            price = find_spot(account, settings.instance_type, zone)
        except DecampError:
            price = None
        # Spot never costs more than on demand (EC2 User Guide, "Spot Instance pricing history", 2025).
        price = price or find_on_demand(account, settings.instance_type)
    else:
        price = find_on_demand(account, settings.instance_type)
    around = price_surroundings(settings.root_volume_gib, settings.elastic_address)
    words = f"{nodes} x {settings.instance_type}, {option.replace('_', ' ')}"
    return Estimate(nodes, price, around, words, settings.purchase.price_per_hour)


def check_limit(found: Estimate, limit: float | None) -> list[BadInput]:
    """Returns why the stack may not be brought up at this price; nothing when there is no limit or it holds."""
    if limit is None:
        return []
    key = "decamp:max_price_per_hour"
    if found.per_hour is None:
        return [BadInput(key, "cannot be held: no price is known", expected=f"a price of {found.words}")]
    if found.per_hour > limit:
        source = found.instance.source if found.instance else ""
        return [
            BadInput(
                key,
                "the stack costs more",
                expected=f"at most {limit:.2f} dollars an hour",
                found=f"{found.per_hour:.2f} by {source}",
            )
        ]
    return []
