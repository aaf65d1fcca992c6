"""A GPU instance with an identity, an address and rights of its own; IMDSv2 only, encrypted, and hard to end."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pulumi
import pulumi_aws as aws

from decamp.aws.instance_types import Interface
from decamp.stack import NodeRecord
from infra.aws.failures import make_failure_hook
from infra.aws.first_contact import FirstContact
from infra.aws.network import Network
from infra.aws.origin import Origin
from infra.aws.permissions import ASSUME_BY_EC2, make_node_policy
from infra.aws.settings import AwsSettings
from infra.aws.termination import Termination
from infra.config import StackConfig
from infra.nodes import Node

# What is agreed to change of a running instance; everything else is another machine, and the guard is asked.
_ROOT_VOLUME_THROUGHPUT_MIB_S = 250


class AwsNode(pulumi.ComponentResource):
    """An EC2 instance and all that is its own.

    Args:
        config: the node as asked for, with price, deadline and GPU filled in.
        stack: the stack's settings, the account's answers included.
        network: where it lives.
        key_name, placement_group: what it shares with the other nodes; no placement group for a single node.
        authorized_key: the operator's public key.
        tags: of everything that is the node's.
        opts: with the provider.
    """

    def __init__(
        self,
        config: NodeRecord,
        stack: StackConfig,
        *,
        network: Network,
        key_name: pulumi.Input[str],
        placement_group: pulumi.Input[str] | None,
        authorized_key: str,
        tags: Mapping[str, str],
        opts: pulumi.ResourceOptions,
    ) -> None:
        super().__init__("decamp:node:Aws", config.name, None, opts)
        assert stack.aws is not None
        self.config, self._stack, self._settings = config, stack, stack.aws
        self._tags, self._network = dict(tags), network
        self._options = pulumi.ResourceOptions(parent=self)
        # The old one goes first: the guard is asked before a second instance is paid for.
        self._one_at_a_time = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        self._place = {"region": self._settings.region, "profile": self._settings.profile}
        self.origin = Origin(
            f"{config.name}-origin",
            {
                **self._place,
                "name": config.name,
                "generation": describe_generation(self._settings),
                "image_id": self._settings.image_id,
                "image_parameter": self._settings.image_parameter,
                "authorized_key": authorized_key,
            },
            self._one_at_a_time,
        )
        self._owned: list[pulumi.Resource] = [self.origin]
        profile = self._make_profile()
        interfaces = self._settings.facts.interfaces if self._settings.efa else ()
        template = self._make_template(interfaces) if interfaces else None
        self.instance = self._make_instance(profile, template, key_name, placement_group)
        self._owned.append(self.instance)
        self.host = self._make_address()
        self._termination = Termination(f"{config.name}-termination", self._make_termination(), self._after_all())
        self.contact = FirstContact(
            f"{config.name}-contact",
            {**self._place, **self._login(), "instance_id": self.instance.id, "seed": self.origin.seed},
            pulumi.ResourceOptions.merge(self._after_all(), pulumi.ResourceOptions(depends_on=[self._termination])),
        )
        self._owned += [self._termination, self.contact]
        self.register_outputs({"host": self.host, "host_key": self.contact.host_key})

    def as_node(self) -> Node:
        return Node(
            config=self.config,
            component=self,
            owned=tuple(self._owned),
            host=self.host,
            host_key=self.contact.host_key,
            machine_id=self.contact.machine_id,
        )

    def _after_all(self) -> pulumi.ResourceOptions:
        # Deleted before all that is the node's: the node must be reachable for as long as it may be asked.
        return pulumi.ResourceOptions.merge(self._one_at_a_time, pulumi.ResourceOptions(depends_on=self._owned))

    def _login(self) -> dict[str, Any]:
        return {
            "name": self.config.name,
            "host": self.host,
            "port": self.config.port,
            "user": self.config.user,
            "ssh_private_key_file": str(self._stack.ssh_private_key_file),
        }

    def _make_termination(self) -> dict[str, Any]:
        store = self._stack.store
        return {
            **self._place,
            **self._login(),
            "instance_id": self.instance.id,
            "seed": self.origin.seed,
            "store_url": store.url,
            "store_endpoint": store.endpoint,
            "store_region": store.region,
            "workspace": self._stack.workspace,
            # EC2 User Guide, "Change instance termination protection" (2025): not for spot instances.
            "protect": self._settings.purchase.option != "spot",
        }

    def _make_profile(self) -> aws.iam.InstanceProfile:
        name, options = self.config.name, self._options
        role = aws.iam.Role(f"{name}-role", assume_role_policy=ASSUME_BY_EC2, tags=self._tags, opts=options)
        policy = make_node_policy(self._stack.store.url, name, self._settings.bucket.kms_key_arn)
        rights = aws.iam.RolePolicy(f"{name}-rights", role=role.id, policy=policy, opts=options)
        profile = aws.iam.InstanceProfile(f"{name}-profile", role=role.name, tags=self._tags, opts=options)
        self._owned += [role, rights, profile]
        return profile

    def _make_template(self, interfaces: tuple[Interface, ...]) -> aws.ec2.LaunchTemplate:
        # An instance's own arguments cannot say what kind an interface is; a template can.
        template = aws.ec2.LaunchTemplate(
            f"{self.config.name}-interfaces",
            network_interfaces=[
                aws.ec2.LaunchTemplateNetworkInterfaceArgs(
                    network_card_index=interface.card,
                    device_index=interface.device,
                    interface_type=interface.kind,
                    subnet_id=self._network.subnet_id,
                    security_groups=[self._network.security_group_id],
                    delete_on_termination="true",
                )
                for interface in interfaces
            ],
            # A change makes a new version, and a node that is replaced because of it must start from that one.
            update_default_version=True,
            tags=self._tags,
            opts=self._options,
        )
        self._owned.append(template)
        return template

    def _make_instance(
        self,
        profile: aws.iam.InstanceProfile,
        template: aws.ec2.LaunchTemplate | None,
        key_name: pulumi.Input[str],
        placement_group: pulumi.Input[str] | None,
    ) -> aws.ec2.Instance:
        settings = self._settings
        spot_until_stopped = settings.purchase.option == "spot" and settings.purchase.interruption == "terminate"
        return aws.ec2.Instance(
            f"{self.config.name}-instance",
            ami=self.origin.image,
            instance_type=settings.instance_type,
            availability_zone=settings.facts.zone,
            key_name=key_name,
            iam_instance_profile=profile.name,
            user_data=self.origin.user_data,
            # Changed in place, user data would stop the instance and so erase its instance store.
            user_data_replace_on_change=True,
            launch_template=(
                aws.ec2.InstanceLaunchTemplateArgs(id=template.id, version="$Default") if template else None
            ),
            subnet_id=None if template else self._network.subnet_id,
            vpc_security_group_ids=None if template else [self._network.security_group_id],
            placement_group=placement_group,
            metadata_options=aws.ec2.InstanceMetadataOptionsArgs(
                http_endpoint="enabled", http_tokens="required", http_put_response_hop_limit=1
            ),
            root_block_device=aws.ec2.InstanceRootBlockDeviceArgs(
                volume_type="gp3",
                volume_size=settings.root_volume_gib,
                throughput=_ROOT_VOLUME_THROUGHPUT_MIB_S,
                encrypted=True,
                delete_on_termination=True,
            ),
            # Given with the launch. Tags of the disk's own arguments would come in a second call, after which a killed
            # up leaves an untagged disk, and which no policy can allow for tagged things alone.
            volume_tags=self._tags,
            instance_market_options=make_market_options(settings),
            capacity_reservation_specification=make_reservation(settings),
            # A one-time spot instance cannot be stopped, so EC2 takes no such wish for it.
            instance_initiated_shutdown_behavior=None if spot_until_stopped else settings.shutdown,
            # Protection is the termination's alone: two owners would undo each other.
            tags=self._tags,
            opts=pulumi.ResourceOptions.merge(
                self._one_at_a_time,
                pulumi.ResourceOptions(
                    depends_on=[*self._network.resources, *self._owned],
                    replace_on_changes=["instanceType", "capacityReservationSpecification", "iamInstanceProfile"],
                    custom_timeouts=pulumi.CustomTimeouts(create="30m", delete="40m"),
                    hooks=make_failure_hook(self.config.name, self._settings),
                ),
            ),
        )

    def _make_address(self) -> pulumi.Output[str]:
        if not self._settings.elastic_address:
            return self.instance.private_ip
        address = aws.ec2.Eip(f"{self.config.name}-address", domain="vpc", tags=self._tags, opts=self._options)
        # With several interfaces, an instance has no address of its own to go by.
        joined = aws.ec2.EipAssociation(
            f"{self.config.name}-address-of",
            allocation_id=address.id,
            network_interface_id=self.instance.primary_network_interface_id,
            opts=self._one_at_a_time,
        )
        self._owned += [address, joined]
        return address.public_ip


def describe_generation(settings: AwsSettings) -> str:
    """Returns everything whose change makes another machine, in one text."""
    purchase = settings.purchase
    return json.dumps(
        {
            "instance_type": settings.instance_type,
            "zone": settings.facts.zone,
            "subnet_id": settings.network.subnet_id,
            # Another one makes another subnet, and an instance cannot leave its own.
            "cidr": "" if settings.network.subnet_id else settings.network.cidr,
            "purchase": [purchase.option, purchase.reservation_id, purchase.interruption, purchase.max_price],
            "efa": settings.efa,
        },
        sort_keys=True,
    )


def make_market_options(settings: AwsSettings) -> aws.ec2.InstanceInstanceMarketOptionsArgs | None:
    """Returns what tells EC2 that this is spot or a capacity block; None for what is paid on demand."""
    purchase = settings.purchase
    if purchase.option == "capacity_block":
        return aws.ec2.InstanceInstanceMarketOptionsArgs(market_type="capacity-block")
    if purchase.option != "spot":
        return None
    # EC2 User Guide, "Spot request types" (2025): only a persistent request can have its instance stopped.
    kind = "persistent" if purchase.interruption == "stop" else "one-time"
    return aws.ec2.InstanceInstanceMarketOptionsArgs(
        market_type="spot",
        spot_options=aws.ec2.InstanceInstanceMarketOptionsSpotOptionsArgs(
            instance_interruption_behavior=purchase.interruption,
            spot_instance_type=kind,
            max_price=None if purchase.max_price is None else f"{purchase.max_price:.4f}",
        ),
    )


def make_reservation(settings: AwsSettings) -> aws.ec2.InstanceCapacityReservationSpecificationArgs | None:
    """Returns the reservation that the instance must run in."""
    if not settings.purchase.reservation_id:
        return None
    target = aws.ec2.InstanceCapacityReservationSpecificationCapacityReservationTargetArgs(
        capacity_reservation_id=settings.purchase.reservation_id
    )
    return aws.ec2.InstanceCapacityReservationSpecificationArgs(capacity_reservation_target=target)
