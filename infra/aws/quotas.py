"""How many vCPUs an `up` needs of the account's quota is known before it starts, and said again where EC2 refuses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from decamp.aws.account import Account, translated
from decamp.aws.instance_types import InstanceType, Quota, count_vcpus, describe_type, find_quota
from decamp.errors import BadInput, DecampError
from infra.aws.settings import AwsSettings
from infra.aws.state import HeldInstance


@dataclass(frozen=True)
class Demand:
    """What an `up` asks of a quota, in vCPUs.

    Args:
        quota: that counts the instance type on its market.
        starting: how many instances would be started.
        needed: vCPUs of all of them.
        used: by whatever runs in the region now and is counted by the same quota.
        freed: of those, by instances that end before the new ones start.
    """

    quota: Quota
    starting: int
    needed: int
    used: int
    freed: int

    @property
    def total(self) -> int:
        """What the quota must allow."""
        return self.used - self.freed + self.needed


def measure_demand(
    account: Account, settings: AwsSettings, kind: InstanceType, starting: int, ending: Sequence[HeldInstance]
) -> Demand | None:
    """Returns what would be asked of the quota; None where none is known or nothing would be started.

    Args:
        account: whose quota it is.
        settings: type and purchase option.
        kind: the type, as EC2 describes it.
        starting: how many instances would be started.
        ending: those that end before. They free what they take of the same quota; another family or market has one of
            its own, and of what ran in a reservation the vCPUs stay with the reservation.
    """
    quota = find_quota(settings.instance_type, settings.purchase.option)
    if quota is None or not starting:
        return None
    freed = sum(
        describe_type(account, one.instance_type).vcpus
        for one in ending
        if find_quota(one.instance_type, one.option) == quota
    )
    return Demand(quota, starting, kind.vcpus * starting, count_vcpus(account, quota), freed)


def check_quota(account: Account, settings: AwsSettings, demand: Demand) -> list[BadInput]:
    """Returns the quota that has too few vCPUs left for what would be started.

    What else takes of it, such as an unused reservation, only EC2 knows, and says when an instance starts.
    """
    quota = demand.quota
    try:
        with translated(quota.name):
            told = account.connect("service-quotas").get_service_quota(ServiceCode="ec2", QuotaCode=quota.code)
    except DecampError:
        return []  # no permission to ask: EC2 itself will say
    allowed = int(told["Quota"]["Value"])
    if demand.total <= allowed:
        return []
    free = max(0, allowed - demand.used + demand.freed)
    left = f"{free} left: {allowed} allowed, {demand.used} in use by running instances"
    return [
        BadInput(
            "decamp:nodes",
            f'the account\'s quota "{quota.name}" is too small in {account.region}',
            expected=f"{demand.needed} vCPUs for {demand.starting} x {settings.instance_type}",
            found=left + (f", {demand.freed} of them by nodes that are replaced" if demand.freed else ""),
            run=f"aws service-quotas request-service-quota-increase --service-code ec2 --quota-code {quota.code}"
            f" --desired-value {demand.total} --region {account.region}",
        )
    ]
