"""What EC2 refuses in the middle of an up is told with what it means here and what to run; what is not known is not."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from infra.aws.failures import explain
from infra.aws.settings import AwsSettings
from tests.infra.aws_declaration import complete, make_key, settings_of
from tests.infra.test_config import parse


@pytest.fixture
def settings(tmp_path: Path) -> AwsSettings:
    found = complete(parse(settings_of(make_key(tmp_path), {"instance_type": "g6.xlarge"}))).aws
    assert found is not None
    return found


def refusal(code: str, words: str = "EC2's own words.") -> str:
    """As the provider writes it (aws-sdk-go-v2, 2025), with the lines that the engine adds."""
    return (
        f"creating EC2 Instance: operation error EC2: RunInstances, https response error StatusCode: 400,"
        f" RequestID: 1, api error {code}: {words}\nfurther lines"
    )


@pytest.mark.parametrize(
    ("code", "what", "run"),
    [
        (
            "VcpuLimitExceeded",
            "the account's quota of vCPUs for this family is too small; nothing was started",
            "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code L-DB2E81BA",
        ),
        (
            "ReservationCapacityExceeded",
            "the reservation has no free instance left",
            "aws ec2 describe-capacity-reservations",
        ),
        ("SpotMaxPriceTooLow", "the spot price is above decamp:aws.purchase.max_price", "raise decamp:aws.purchase"),
        ("UnauthorizedOperation", "the credentials lack a permission", "aws iam"),
    ],
)
def test_refusal_is_told_with_node_meaning_place_and_a_command(
    settings: AwsSettings, code: str, what: str, run: str
) -> None:
    told = explain("b200-1", settings, refusal(code))
    place = f"found {code} for g6.xlarge (on_demand) in us-east-1b: EC2's own words."
    assert told.startswith(f"b200-1: {what}: {place}; run: {run}") and "\n" not in told


def test_refusal_that_is_not_known_is_left_to_ec2s_own_words(settings: AwsSettings) -> None:
    assert explain("b200-1", settings, refusal("SomethingNew")) == ""


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("EC2's own words.", 384),  # what runs and what would be started
        ("more vCPU capacity than your current vCPU limit of 96 allows for the instance bucket", 384),
        # Enough by what was counted, and too little by what EC2 knows.
        ("more vCPU capacity than your current vCPU limit of 384 allows for the instance bucket", 576),
    ],
)
def test_quota_is_asked_for_by_number(settings: AwsSettings, words: str, wanted: int) -> None:
    told = explain("b200-1", settings, refusal("VcpuLimitExceeded", words))
    assert f"--quota-code L-DB2E81BA --desired-value {wanted} --region us-east-1  #" in told


def test_quota_whose_code_is_not_known_is_looked_up(settings: AwsSettings) -> None:
    spot = replace(settings, instance_type="p6-b200.48xlarge", purchase=replace(settings.purchase, option="spot"))
    told = explain("b200-1", spot, refusal("MaxSpotInstanceCountExceeded"))
    run = "aws service-quotas list-service-quotas --service-code ec2 --region us-east-1"
    assert told.endswith(f"; run: {run}  # then request 384 for the one that counts p6-b200.48xlarge")
