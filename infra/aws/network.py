"""Nodes are reached by SSH from the operator's addresses alone, speak freely with each other, and reach S3 for free."""

from __future__ import annotations

import ipaddress
import itertools
from collections.abc import Mapping, Sequence

import pulumi
import pulumi_aws as aws

from infra.aws.settings import AwsSettings

ANYWHERE = "0.0.0.0/0"


class Network(pulumi.ComponentResource):
    """A network of the stack's own, or a subnet that was there, with the nodes' security group.

    Args:
        settings: `decamp:aws`, the account's answers included.
        tags: of every resource.
        ports: where sshd listens on the nodes.
        opts: with the provider.

    Attributes:
        subnet_id, security_group_id: for the nodes.
        resources: everything made here.
    """

    def __init__(
        self, settings: AwsSettings, tags: Mapping[str, str], ports: Sequence[int], opts: pulumi.ResourceOptions
    ) -> None:
        super().__init__("decamp:aws:Network", "network", None, opts)
        self._tags = dict(tags)
        self._settings = settings
        self.resources: list[pulumi.Resource] = []
        if settings.network.subnet_id:
            given = aws.ec2.get_subnet_output(
                id=settings.network.subnet_id, opts=pulumi.InvokeOutputOptions(parent=self)
            )
            self.subnet_id: pulumi.Output[str] = given.id.apply(str)
            vpc_id: pulumi.Output[str] = given.vpc_id.apply(str)
        else:
            self.subnet_id, vpc_id = self._make_network()
        self.security_group_id = self._make_security_group(vpc_id, sorted(set(ports)))
        self.register_outputs({"subnet_id": self.subnet_id, "security_group_id": self.security_group_id})

    def _options(self) -> pulumi.ResourceOptions:
        return pulumi.ResourceOptions(parent=self)

    def _make_network(self) -> tuple[pulumi.Output[str], pulumi.Output[str]]:
        settings, options = self._settings, self._options()
        vpc = aws.ec2.Vpc(
            "vpc",
            cidr_block=settings.network.cidr,
            enable_dns_support=True,
            enable_dns_hostnames=True,
            tags=self._tags,
            opts=options,
        )
        # One at a time, as both would have the same addresses; what is in it is a node's, whose guard is asked.
        replaced = pulumi.ResourceOptions(parent=self, delete_before_replace=True)
        subnet_cidr = next(ipaddress.IPv4Network(settings.network.cidr).subnets(prefixlen_diff=2))
        gateway = aws.ec2.InternetGateway("gateway", vpc_id=vpc.id, tags=self._tags, opts=options)
        subnet = aws.ec2.Subnet(
            "subnet",
            vpc_id=vpc.id,
            cidr_block=str(subnet_cidr),
            availability_zone=settings.facts.zone,
            # Nodes have an elastic address or none: one that comes by itself changes at every stop.
            map_public_ip_on_launch=False,
            tags=self._tags,
            opts=replaced,
        )
        routes = aws.ec2.RouteTable("routes", vpc_id=vpc.id, tags=self._tags, opts=options)
        out = aws.ec2.Route(
            "route-out",
            route_table_id=routes.id,
            destination_cidr_block=ANYWHERE,
            gateway_id=gateway.id,
            opts=options,
        )
        joined = aws.ec2.RouteTableAssociation(
            "routes-of-subnet", route_table_id=routes.id, subnet_id=subnet.id, opts=replaced
        )
        # Without it, evacuating through a NAT gateway would cost 0.045 dollars a GB; a gateway endpoint costs nothing
        # (Amazon VPC User Guide, "Gateway endpoints", 2025).
        endpoint = aws.ec2.VpcEndpoint(
            "s3-endpoint",
            vpc_id=vpc.id,
            service_name=f"com.amazonaws.{settings.region}.s3",
            vpc_endpoint_type="Gateway",
            route_table_ids=[routes.id],
            tags=self._tags,
            opts=options,
        )
        self.resources += [vpc, gateway, subnet, routes, out, joined, endpoint]
        return subnet.id, vpc.id

    def _make_security_group(self, vpc_id: pulumi.Output[str], ports: Sequence[int]) -> pulumi.Output[str]:
        options = self._options()
        group = aws.ec2.SecurityGroup(
            "nodes",
            description="Decamp nodes: SSH from the operator, everything among themselves",
            vpc_id=vpc_id,
            tags=self._tags,
            opts=options,
        )
        self.resources.append(group)
        for source, port in itertools.product(self._settings.facts.ssh_from, ports):
            four = ipaddress.ip_network(source).version == 4
            self.resources.append(
                aws.vpc.SecurityGroupIngressRule(
                    f"ssh-{port}-from-{source.replace('/', '-').replace(':', '.')}",
                    security_group_id=group.id,
                    description="SSH from the operator",
                    ip_protocol="tcp",
                    from_port=port,
                    to_port=port,
                    cidr_ipv4=source if four else None,
                    cidr_ipv6=None if four else source,
                    tags=self._tags,
                    opts=options,
                )
            )
        # EFA wants all traffic of the group with itself, in both directions (EC2 User Guide, "Get started with EFA and
        # MPI", 2025).
        self.resources += [
            aws.vpc.SecurityGroupIngressRule(
                "from-each-other",
                security_group_id=group.id,
                description="Among the nodes",
                ip_protocol="-1",
                referenced_security_group_id=group.id,
                tags=self._tags,
                opts=options,
            ),
            aws.vpc.SecurityGroupEgressRule(
                "to-each-other",
                security_group_id=group.id,
                description="Among the nodes",
                ip_protocol="-1",
                referenced_security_group_id=group.id,
                tags=self._tags,
                opts=options,
            ),
            aws.vpc.SecurityGroupEgressRule(
                "to-anywhere",
                security_group_id=group.id,
                description="Packages, models, S3",
                ip_protocol="-1",
                cidr_ipv4=ANYWHERE,
                tags=self._tags,
                opts=options,
            ),
        ]
        return group.id
