"""The store outlives the stack: no destroy deletes a bucket or what is in it, and an `up` finds it again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, ReadResult, Resource, UpdateResult

from decamp.errors import StoreFailure
from decamp.rehearsal import store_server
from decamp.rehearsal.credentials import ensure_credentials
from decamp.store.location import StoreLocation
from infra.config import StackConfig
from infra.dynamic import NamedProvider, diff_inputs

if TYPE_CHECKING:
    from mypy_boto3_s3.client import S3Client

_SERVER_INPUTS = ("directory", "port")
_BUCKET_INPUTS = ("url", "endpoint", "region", "credentials_directory")


class StoreServerProvider(NamedProvider):
    """The rehearsal's S3 server: one that died is found by a refresh or a preview and started by the next up."""

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        return diff_inputs(_olds, _news, settings=_SERVER_INPUTS, drifted=not _is_running(_olds))

    def create(self, props: dict[str, Any]) -> CreateResult:
        return CreateResult(f"store-server:{props['directory']}", _start_server(props))

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        return UpdateResult(_start_server(_news))

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        return ReadResult(id_, {**props, "running": _is_running(props)})

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Leaves the server running: the archives are read after the stack is gone."""


def _is_running(props: dict[str, Any]) -> bool:
    there = store_server.status(Path(props["directory"]))
    return there is not None and there.running and there.port == int(props["port"])


def _start_server(props: dict[str, Any]) -> dict[str, Any]:
    directory, port = Path(props["directory"]), int(props["port"])
    keys = ensure_credentials(directory.parent, f"http://127.0.0.1:{port}")
    store_server.start(directory, "127.0.0.1", port, keys.access_key, keys.secret_key)
    return {"directory": props["directory"], "port": port, "running": True}


class BucketProvider(NamedProvider):
    """The bucket of the archives is there and opens with the operator's credentials, or the up fails."""

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        return diff_inputs(_olds, _news, settings=_BUCKET_INPUTS, drifted=not _olds.get("found"))

    def create(self, props: dict[str, Any]) -> CreateResult:
        return CreateResult(f"bucket:{props['url']}", _provide_bucket(props))

    def update(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> UpdateResult:
        return UpdateResult(_provide_bucket(_news))

    def read(self, id_: str, props: dict[str, Any]) -> ReadResult:
        try:
            found = _find_bucket(_connect(props), StoreLocation.parse(props["url"]).bucket)
        except StoreFailure:
            found = False
        return ReadResult(id_, {**props, "found": found})

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Leaves the bucket and everything in it."""


def _connect(props: dict[str, Any]) -> S3Client:
    import boto3
    from botocore.config import Config

    # The rehearsal's server knows one pair of keys, whatever the shell has.
    directory = props["credentials_directory"]
    held = ensure_credentials(Path(directory)) if directory else None
    client: S3Client = boto3.client(
        "s3",
        endpoint_url=props["endpoint"] or None,
        region_name=props["region"],
        config=Config(
            connect_timeout=10,
            read_timeout=30,
            retries={"mode": "standard", "total_max_attempts": 3},
            s3={"addressing_style": "path" if props["endpoint"] else "auto"},
        ),
        aws_access_key_id=held.access_key if held else None,
        aws_secret_access_key=held.secret_key if held else None,
    )
    return client


def _find_bucket(client: S3Client, bucket: str) -> bool:
    from botocore.exceptions import BotoCoreError, ClientError

    from decamp.store.failures import StoreRefusal, translate

    try:
        client.head_bucket(Bucket=bucket)
    except (BotoCoreError, ClientError) as error:
        failure = translate(error, f"s3://{bucket}")
        if isinstance(failure, StoreRefusal) and failure.status == 404:
            return False
        raise failure from None
    return True


def _provide_bucket(props: dict[str, Any]) -> dict[str, Any]:
    bucket = StoreLocation.parse(props["url"]).bucket
    client = _connect(props)
    if not _find_bucket(client, bucket):
        if not props["credentials_directory"]:
            endpoint = f" --endpoint-url {props['endpoint']}" if props["endpoint"] else ""
            raise StoreFailure(
                f"s3://{bucket}",
                "there is no such bucket, and the target rented makes none",
                expected="an existing bucket in decamp:store.url",
                run=f"aws s3api create-bucket --bucket {bucket}{endpoint}",
            )
        client.create_bucket(Bucket=bucket)
    return {**{key: props[key] for key in _BUCKET_INPUTS}, "found": True}


class StoreServer(Resource, module="decamp", name="StoreServer"):
    """The rehearsal's S3 server as a resource."""


class Bucket(Resource, module="decamp", name="Bucket"):
    """The bucket as a resource; deleting it from the stack deletes nothing in the store."""


class Store(pulumi.ComponentResource):
    """Where the archives go.

    Args:
        config: the stack's settings.

    Attributes:
        resources: what must stay in the stack until every guard has agreed.
    """

    def __init__(self, config: StackConfig) -> None:
        super().__init__("decamp:index:Store", "store", None, pulumi.ResourceOptions())
        rehearsal = config.target == "rehearsal"
        # Retained: a destroy forgets the bucket and the server, and never asks either to go.
        options = pulumi.ResourceOptions(parent=self, retain_on_delete=True)
        self.resources: list[pulumi.Resource] = [self]
        if rehearsal:
            server = StoreServer(
                StoreServerProvider(),
                "store-server",
                {"directory": str(config.rehearsal_directory / "store"), "port": config.store_port, "running": None},
                options,
            )
            self.resources.append(server)
        bucket = Bucket(
            BucketProvider(),
            "bucket",
            {
                "url": config.store.url,
                "endpoint": config.store.endpoint,
                "region": config.store.region,
                "credentials_directory": str(config.rehearsal_directory) if rehearsal else "",
                "found": None,
            },
            pulumi.ResourceOptions.merge(options, pulumi.ResourceOptions(depends_on=self.resources[1:])),
        )
        self.resources.append(bucket)
        self.register_outputs(self.describe(config))

    @staticmethod
    def describe(config: StackConfig) -> dict[str, str]:
        """The store as the stack's outputs show it."""
        return {"url": config.store.url, "endpoint": config.store.endpoint, "region": config.store.region}


def declare_store(config: StackConfig) -> Store:
    """Declares the store of the configured target."""
    if config.target == "aws":
        from infra.aws.bucket import AwsStore  # loads pulumi-aws, which no other target needs

        return AwsStore(config)
    return Store(config)
