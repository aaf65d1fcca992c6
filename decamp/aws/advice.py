"""What AWS refuses is said in words that name the way out, whoever met the refusal: boto3 or the Pulumi provider."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Advice:
    """What an error code of AWS means here and what helps."""

    what: str
    run: str


# Codes: EC2 API Reference, "Error codes", and S3 API Reference, "Error responses" (2025).
_ADVICE: tuple[tuple[str, Advice], ...] = (
    (
        "InsufficientInstanceCapacity|InsufficientHostCapacity|InsufficientCapacity",
        Advice(
            "AWS has no free capacity of this type in this zone now; nothing was started",
            "decamp capacity find --region REGION --hours 24 --instance-type TYPE"
            "  # or set decamp:aws.availability_zone to another, or try later",
        ),
    ),
    (
        "SpotMaxPriceTooLow",
        Advice(
            "the spot price is above decamp:aws.purchase.max_price",
            "raise decamp:aws.purchase.max_price, or leave it out to pay up to the on-demand price",
        ),
    ),
    (
        "VcpuLimitExceeded|InstanceLimitExceeded|MaxSpotInstanceCountExceeded",
        Advice(
            "the account's quota of vCPUs for this family is too small; nothing was started",
            "aws service-quotas request-service-quota-increase --service-code ec2 --quota-code CODE"
            " --desired-value VCPUS --region REGION  # a new account's quota is 0",
        ),
    ),
    (
        "AddressLimitExceeded",
        Advice(
            "the account's quota of elastic addresses is used up",
            "decamp sweep  # shows those that no stack has; or set decamp:aws.address to private",
        ),
    ),
    (
        "VpcLimitExceeded",
        Advice("the region's quota of VPCs is used up", "set decamp:aws.network.subnet_id to a subnet you have"),
    ),
    (
        "ReservationCapacityExceeded",
        Advice(
            "the reservation has no free instance left", "aws ec2 describe-capacity-reservations  # AvailableInstances"
        ),
    ),
    (
        r"InvalidCapacityReservationId(?:\.NotFound|\.Malformed)?|CapacityReservationNotActive",
        Advice(
            "the reservation is not there, not active or not this account's",
            "aws ec2 describe-capacity-reservations --region REGION",
        ),
    ),
    (
        "Unsupported|InvalidInstanceType",
        Advice(
            "this zone or region does not offer the instance type",
            "aws ec2 describe-instance-type-offerings --location-type availability-zone"
            " --filters Name=instance-type,Values=TYPE",
        ),
    ),
    (
        "OperationNotPermitted",
        Advice(
            "the instance is protected against termination, and its guard has not agreed",
            "pulumi up  # makes the guard whole again; then evacuate, then pulumi destroy",
        ),
    ),
    (
        "BucketAlreadyExists",
        Advice(
            "the bucket's name is taken by another account",
            "choose another bucket in decamp:store.url: names are global",
        ),
    ),
    (
        "UnauthorizedOperation|AccessDenied|AccessDeniedException",
        Advice(
            "the credentials lack a permission", "aws iam ...  # docs/aws-operator-policy.json has all that is needed"
        ),
    ),
    (
        "AuthFailure|InvalidClientTokenId|UnrecognizedClientException|SignatureDoesNotMatch|InvalidAccessKeyId",
        Advice(
            "AWS does not know these credentials, or the account has not enabled the region",
            "aws sts get-caller-identity  # and: aws account list-regions",
        ),
    ),
    (
        "ExpiredToken|RequestExpired|ExpiredTokenException",
        Advice("the credentials have expired", "aws sso login  # or export fresh ones"),
    ),
)


def find_advice(code: str) -> Advice | None:
    """Returns what an error code means here; None for one that is not known."""
    for pattern, advice in _ADVICE:
        if re.fullmatch(pattern, code):
            return advice
    return None


def find_code(text: str) -> str:
    """Returns the first known error code in a provider's message; empty if there is none.

    The AWS provider writes `api error CODE: message` (aws-sdk-go-v2, smithy.OperationError, 2025).
    """
    stated = re.findall(r"api error ([A-Za-z.]+)", text) or re.findall(r"\(([A-Za-z.]+)\) when calling", text)
    return next((code for code in stated if find_advice(code)), "")


def shorten(text: str, limit: int = 300) -> str:
    """Returns a message on one line without the authorization blob EC2 appends to it."""
    line = " ".join(text.split())
    line = re.sub(r"Encoded authorization failure message: \S+", "", line).strip()
    return line if len(line) <= limit else line[: limit - 3] + "..."
