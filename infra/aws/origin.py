"""What a node is born with is fixed until the node is replaced: the secret behind its host keys, and its image.

An image named by an SSM parameter moves on every few weeks. Looked up again at every `up` it would want to replace a
running node; so it is looked up once, when the node is asked for.
"""

from __future__ import annotations

from typing import Any

import pulumi
from pulumi.dynamic import CreateResult, DiffResult, Resource

from decamp.aws.account import Account, CloudRefusal, translated
from decamp.errors import BadInput
from infra.aws.host_keys import derive_first_key, make_user_data, new_seed
from infra.dynamic import NamedProvider, diff_inputs

# `generation` is everything whose change makes another machine. EC2 could change some of it on a stopped instance, and
# stopping erases the instance store: here it is a replacement, which the guard is asked about.
INPUTS = ("name", "generation", "image_id", "image_parameter", "authorized_key")
_ACCOUNT = ("region", "profile")


class OriginProvider(NamedProvider):
    """Makes the secret and looks the image up once; a change of what is asked for makes another node."""

    def diff(self, _id: str, _olds: dict[str, Any], _news: dict[str, Any]) -> DiffResult:
        return diff_inputs(_olds, _news, identity=INPUTS)

    def create(self, props: dict[str, Any]) -> CreateResult:
        seed = new_seed()
        first_key = derive_first_key(seed)
        outs = {
            **{key: props[key] for key in (*INPUTS, *_ACCOUNT)},
            "image": props["image_id"]
            or find_image(Account(props["region"], props["profile"]), props["image_parameter"]),
            "seed": seed,
            "user_data": make_user_data(props["name"], first_key, props["authorized_key"]),
        }
        return CreateResult(f"{props['name']}:{first_key.public[-16:]}", outs)

    def delete(self, _id: str, _props: dict[str, Any]) -> None:
        """Forgets the secret; the machine it belonged to has been deleted before."""


def find_image(account: Account, parameter: str) -> str:
    """Returns the image that an SSM parameter names now.

    Raises:
        BadInput: there is no such parameter in the region.
    """
    key = "decamp:aws.image.parameter"
    try:
        with translated(key):
            told = account.connect("ssm").get_parameter(Name=parameter)
    except CloudRefusal as refusal:
        if refusal.code != "ParameterNotFound":
            raise
        run = f"aws ssm get-parameters-by-path --path {parameter.rsplit('/', 2)[0]} --region {account.region}"
        raise BadInput(key, f"no such SSM parameter in {account.region}", found=parameter, run=run) from None
    return str(told["Parameter"]["Value"])


class Origin(Resource, module="decamp", name="AwsNodeOrigin"):
    """A node's origin as a resource; its secret is encrypted in the state."""

    image: pulumi.Output[str]
    seed: pulumi.Output[str]
    user_data: pulumi.Output[str]

    def __init__(self, name: str, properties: dict[str, Any], options: pulumi.ResourceOptions) -> None:
        secret = pulumi.ResourceOptions(additional_secret_outputs=["seed", "user_data"])
        unknown = {"image": None, "seed": None, "user_data": None}
        super().__init__(
            OriginProvider(), name, {**properties, **unknown}, pulumi.ResourceOptions.merge(options, secret)
        )
