"""An AWS account is asked with the operator's own credentials, and every refusal is a typed error with a way out."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any

from decamp.aws.advice import find_advice, shorten
from decamp.errors import EXIT_STORE, BadInput, DecampError

if TYPE_CHECKING:
    from mypy_boto3_ec2.client import EC2Client
    from mypy_boto3_s3.client import S3Client

# The price list and its query service are in few regions ("Using the AWS Price List Query API", 2025).
PRICING_REGION = "us-east-1"
CONNECT_TIMEOUT_S = 10
READ_TIMEOUT_S = 60
ATTEMPTS = 5

_NO_CREDENTIALS = "aws configure  # or export AWS_PROFILE=..., or AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


class NoCredentials(BadInput):
    """There are no credentials, or AWS does not take them."""


class CloudRefusal(BadInput):
    """AWS answered that it will not do this; `code` is its error code."""

    def __init__(self, where: str, what: str, *, code: str, found: str = "", run: str = "") -> None:
        self.code = code
        super().__init__(where, what, found=found, run=run)


class CloudSilent(DecampError):
    """AWS cannot be reached, or its answer makes no sense."""

    exit_code = EXIT_STORE


class Account:
    """An account in a region, as the operator's credentials open it.

    Args:
        region: region's name.
        profile: profile in the AWS configuration; empty for boto3's usual chain.
    """

    def __init__(self, region: str, profile: str = "") -> None:
        self.region = region
        self.profile = profile

    @cached_property
    def _session(self) -> Any:
        import boto3
        from botocore.exceptions import ProfileNotFound

        try:
            return boto3.Session(profile_name=self.profile or None, region_name=self.region)
        except ProfileNotFound:
            raise NoCredentials(
                "decamp:aws.profile", "no such profile", found=self.profile, run="aws configure list-profiles"
            ) from None

    def connect(self, service: str, region: str = "", attempts: int = ATTEMPTS, endpoint_url: str = "") -> Any:
        """Returns a boto3 client of a service with bounded waits.

        Args:
            service: its name in boto3.
            region: another region than the account's.
            endpoint_url: of an S3-compatible store; empty for AWS's own.
            attempts: 1 for what must not be asked twice, such as a purchase whose answer was lost.
        """
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError

        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            retries={"mode": "standard", "total_max_attempts": attempts},
            s3={"addressing_style": "path" if endpoint_url else "auto"},
        )
        try:
            return self._session.client(
                service, region_name=region or self.region, endpoint_url=endpoint_url or None, config=config
            )
        except (BotoCoreError, ValueError) as error:
            raise CloudSilent(service, "no client can be made", found=shorten(str(error))) from None

    @cached_property
    def ec2(self) -> EC2Client:
        client: EC2Client = self.connect("ec2")
        return client

    @cached_property
    def s3(self) -> S3Client:
        client: S3Client = self.connect("s3")
        return client

    @cached_property
    def identity(self) -> dict[str, str]:
        """Who the credentials are: `account` and `arn`.

        Raises:
            NoCredentials: there are none, or AWS does not take them.
            CloudSilent: AWS does not answer.
        """
        with translated("AWS credentials"):
            told = self.connect("sts").get_caller_identity()
        return {"account": str(told["Account"]), "arn": str(told["Arn"])}


@contextlib.contextmanager
def translated(where: str) -> Iterator[None]:
    """Turns what boto3 raises within into this project's errors, with `where` as their subject.

    Raises:
        NoCredentials: credentials are missing, wrong or expired.
        CloudRefusal: AWS refused for another reason.
        CloudSilent: no answer.
    """
    from botocore.exceptions import BotoCoreError, ClientError

    try:
        yield
    except (BotoCoreError, ClientError) as error:
        raise translate(error, where) from None


def translate(error: Exception, where: str) -> DecampError:
    """Returns the project's error for one of boto3's."""
    from botocore.exceptions import (
        ClientError,
        CredentialRetrievalError,
        NoCredentialsError,
        NoRegionError,
        PartialCredentialsError,
        SSOError,
        TokenRetrievalError,
    )

    if isinstance(error, NoCredentialsError | PartialCredentialsError | CredentialRetrievalError):
        return NoCredentials("AWS credentials", "none can be had", found=shorten(str(error)), run=_NO_CREDENTIALS)
    if isinstance(error, SSOError | TokenRetrievalError):
        return NoCredentials("AWS credentials", "the login has ended", found=shorten(str(error)), run="aws sso login")
    if isinstance(error, NoRegionError):
        return BadInput("decamp:aws.region", "missing", expected="a region, e.g. us-east-1")
    if isinstance(error, ClientError):
        code = str(error.response.get("Error", {}).get("Code", ""))
        said = shorten(str(error.response.get("Error", {}).get("Message", "")) or str(error))
        advice = find_advice(code)
        if advice and advice.what.startswith(("AWS does not know", "the credentials have expired")):
            return NoCredentials("AWS credentials", advice.what, found=f"{code}: {said}", run=advice.run)
        if advice:
            return CloudRefusal(where, advice.what, code=code, found=f"{code}: {said}", run=advice.run)
        return CloudRefusal(where, "AWS refused", code=code, found=f"{code}: {said}")
    return CloudSilent(where, "AWS gives no answer", found=shorten(str(error)), run="check the region and the network")
