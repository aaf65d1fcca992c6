"""Networks, addresses, keys and roles of the stand-in."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from botocore.exceptions import ClientError

from tests.aws_provider.kinds import Clients, Kind, Properties, from_pairs, retag, specify_tags, to_pairs


def _plain_kind(
    create: Callable[[Any, Properties], tuple[str, Properties]],
    describe: Callable[[Any, str], list[Any]],
    delete: Callable[[Any, str, Properties], Any],
    fixed: tuple[str, ...],
) -> Kind:
    """A kind of EC2 whose tags are all that changes in place."""

    def look(clients: Clients, resource_id: str, held: Properties) -> Properties | None:
        try:
            found = describe(clients.connect("ec2"), resource_id)
        except ClientError:
            return None
        if not found:
            return None
        return {"tags": from_pairs(found[0].get("Tags"))} if "tags" in held else {}

    return Kind(
        create=lambda clients, properties: create(clients.connect("ec2"), properties),
        read=look,
        delete=lambda clients, resource_id, held: delete(clients.connect("ec2"), resource_id, held) and None,
        update=retag,
        fixed=fixed,
    )


def _create_vpc(ec2: Any, properties: Properties) -> tuple[str, Properties]:
    tags = specify_tags("vpc", properties)
    vpc = ec2.create_vpc(CidrBlock=properties["cidrBlock"], TagSpecifications=tags)["Vpc"]["VpcId"]
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsSupport={"Value": bool(properties.get("enableDnsSupport", True))})
    ec2.modify_vpc_attribute(VpcId=vpc, EnableDnsHostnames={"Value": bool(properties.get("enableDnsHostnames"))})
    return vpc, {}


def _create_gateway(ec2: Any, properties: Properties) -> tuple[str, Properties]:
    tags = specify_tags("internet-gateway", properties)
    gateway = ec2.create_internet_gateway(TagSpecifications=tags)["InternetGateway"]["InternetGatewayId"]
    ec2.attach_internet_gateway(InternetGatewayId=gateway, VpcId=properties["vpcId"])
    return gateway, {}


def _delete_gateway(ec2: Any, gateway: str, held: Properties) -> None:
    ec2.detach_internet_gateway(InternetGatewayId=gateway, VpcId=held["vpcId"])
    ec2.delete_internet_gateway(InternetGatewayId=gateway)


def _create_subnet(ec2: Any, properties: Properties) -> tuple[str, Properties]:
    told = ec2.create_subnet(
        VpcId=properties["vpcId"],
        CidrBlock=properties["cidrBlock"],
        AvailabilityZone=properties["availabilityZone"],
        TagSpecifications=specify_tags("subnet", properties),
    )
    return told["Subnet"]["SubnetId"], {}


def _create_routes(ec2: Any, properties: Properties) -> tuple[str, Properties]:
    tags = specify_tags("route-table", properties)
    return ec2.create_route_table(VpcId=properties["vpcId"], TagSpecifications=tags)["RouteTable"]["RouteTableId"], {}


def _create_route(clients: Clients, properties: Properties) -> tuple[str, Properties]:
    table, where = properties["routeTableId"], properties["destinationCidrBlock"]
    clients.connect("ec2").create_route(
        RouteTableId=table, DestinationCidrBlock=where, GatewayId=properties["gatewayId"]
    )
    return f"r-{table}-{where}", {}


def _delete_route(clients: Clients, _route: str, held: Properties) -> None:
    where = held["destinationCidrBlock"]
    clients.connect("ec2").delete_route(RouteTableId=held["routeTableId"], DestinationCidrBlock=where)


def _join_routes(clients: Clients, properties: Properties) -> tuple[str, Properties]:
    told = clients.connect("ec2").associate_route_table(
        RouteTableId=properties["routeTableId"], SubnetId=properties["subnetId"]
    )
    return told["AssociationId"], {}


def _create_endpoint(ec2: Any, properties: Properties) -> tuple[str, Properties]:
    told = ec2.create_vpc_endpoint(
        VpcId=properties["vpcId"],
        ServiceName=properties["serviceName"],
        VpcEndpointType=properties["vpcEndpointType"],
        RouteTableIds=properties["routeTableIds"],
        TagSpecifications=specify_tags("vpc-endpoint", properties),
    )
    return told["VpcEndpoint"]["VpcEndpointId"], {}


def _create_group(ec2: Any, properties: Properties) -> tuple[str, Properties]:
    name = f"{properties['__name']}-{hashlib.sha256(properties['vpcId'].encode()).hexdigest()[:7]}"
    group = ec2.create_security_group(
        GroupName=name,
        Description=properties["description"],
        VpcId=properties["vpcId"],
        TagSpecifications=specify_tags("security-group", properties),
    )["GroupId"]
    # The real provider takes the rule away that EC2 gives every group.
    everything = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    ec2.revoke_security_group_egress(GroupId=group, IpPermissions=[everything])
    return group, {"name": name}


def _permission(properties: Properties) -> dict[str, Any]:
    permission: dict[str, Any] = {"IpProtocol": properties["ipProtocol"]}
    if "fromPort" in properties:
        permission.update(FromPort=int(properties["fromPort"]), ToPort=int(properties["toPort"]))
    if properties.get("cidrIpv4"):
        permission["IpRanges"] = [{"CidrIp": properties["cidrIpv4"], "Description": properties["description"]}]
    if properties.get("cidrIpv6"):
        permission["Ipv6Ranges"] = [{"CidrIpv6": properties["cidrIpv6"], "Description": properties["description"]}]
    if properties.get("referencedSecurityGroupId"):
        permission["UserIdGroupPairs"] = [{"GroupId": properties["referencedSecurityGroupId"]}]
    return permission


def _rule_kind(direction: str) -> Kind:
    def create(clients: Clients, properties: Properties) -> tuple[str, Properties]:
        authorize = getattr(clients.connect("ec2"), f"authorize_security_group_{direction}")
        told = authorize(GroupId=properties["securityGroupId"], IpPermissions=[_permission(properties)])
        return told["SecurityGroupRules"][0]["SecurityGroupRuleId"], {}

    def look(clients: Clients, rule: str, held: Properties) -> Properties | None:
        wanted = [{"Name": "group-id", "Values": [held["securityGroupId"]]}]
        rules = clients.connect("ec2").describe_security_group_rules(Filters=wanted)["SecurityGroupRules"]
        return {} if any(one["SecurityGroupRuleId"] == rule for one in rules) else None

    def delete(clients: Clients, _rule: str, held: Properties) -> None:
        revoke = getattr(clients.connect("ec2"), f"revoke_security_group_{direction}")
        revoke(GroupId=held["securityGroupId"], IpPermissions=[_permission(held)])

    fixed = ("securityGroupId", "ipProtocol", "fromPort", "toPort", "cidrIpv4", "cidrIpv6", "referencedSecurityGroupId")
    return Kind(create, look, delete, retag, fixed)


def _create_key(ec2: Any, properties: Properties) -> tuple[str, Properties]:
    name = f"{properties['__name']}-{hashlib.sha256(str(properties['tags']).encode()).hexdigest()[:7]}"
    told = ec2.import_key_pair(
        KeyName=name,
        PublicKeyMaterial=properties["publicKey"].encode(),
        TagSpecifications=specify_tags("key-pair", properties),
    )
    return name, {"keyName": name, "keyPairId": told["KeyPairId"]}


def _create_role(clients: Clients, properties: Properties) -> tuple[str, Properties]:
    name = f"{properties['__name']}-{hashlib.sha256(str(properties).encode()).hexdigest()[:7]}"
    clients.connect("iam").create_role(
        RoleName=name,
        AssumeRolePolicyDocument=properties["assumeRolePolicy"],
        Tags=to_pairs(properties.get("tags")),
    )
    return name, {"name": name}


def _retag_role(clients: Clients, name: str, _olds: Properties, news: Properties) -> None:
    clients.connect("iam").tag_role(RoleName=name, Tags=to_pairs(news.get("tags")))


def _put_rights(clients: Clients, properties: Properties) -> tuple[str, Properties]:
    name = properties["__name"]
    clients.connect("iam").put_role_policy(
        RoleName=properties["role"], PolicyName=name, PolicyDocument=properties["policy"]
    )
    return f"{properties['role']}:{name}", {"name": name}


def _update_rights(clients: Clients, _id: str, olds: Properties, news: Properties) -> None:
    clients.connect("iam").put_role_policy(
        RoleName=news["role"], PolicyName=olds["name"], PolicyDocument=news["policy"]
    )


def _delete_rights(clients: Clients, _id: str, held: Properties) -> None:
    clients.connect("iam").delete_role_policy(RoleName=held["role"], PolicyName=held["name"])


def _create_profile(clients: Clients, properties: Properties) -> tuple[str, Properties]:
    name = f"{properties['__name']}-{hashlib.sha256(properties['role'].encode()).hexdigest()[:7]}"
    iam = clients.connect("iam")
    iam.create_instance_profile(InstanceProfileName=name, Tags=to_pairs(properties.get("tags")))
    iam.add_role_to_instance_profile(InstanceProfileName=name, RoleName=properties["role"])
    return name, {"name": name}


def _delete_profile(clients: Clients, name: str, held: Properties) -> None:
    iam = clients.connect("iam")
    iam.remove_role_from_instance_profile(InstanceProfileName=name, RoleName=held["role"])
    iam.delete_instance_profile(InstanceProfileName=name)


def _there(_clients: Clients, _id: str, _held: Properties) -> Properties:
    return {}


KINDS = {
    "aws:ec2/vpc:Vpc": _plain_kind(
        _create_vpc,
        lambda ec2, vpc: ec2.describe_vpcs(VpcIds=[vpc])["Vpcs"],
        lambda ec2, vpc, _held: ec2.delete_vpc(VpcId=vpc),
        ("cidrBlock",),
    ),
    "aws:ec2/internetGateway:InternetGateway": _plain_kind(
        _create_gateway,
        lambda ec2, one: ec2.describe_internet_gateways(InternetGatewayIds=[one])["InternetGateways"],
        _delete_gateway,
        ("vpcId",),
    ),
    "aws:ec2/subnet:Subnet": _plain_kind(
        _create_subnet,
        lambda ec2, subnet: ec2.describe_subnets(SubnetIds=[subnet])["Subnets"],
        lambda ec2, subnet, _held: ec2.delete_subnet(SubnetId=subnet),
        ("vpcId", "cidrBlock", "availabilityZone"),
    ),
    "aws:ec2/routeTable:RouteTable": _plain_kind(
        _create_routes,
        lambda ec2, table: ec2.describe_route_tables(RouteTableIds=[table])["RouteTables"],
        lambda ec2, table, _held: ec2.delete_route_table(RouteTableId=table),
        ("vpcId",),
    ),
    "aws:ec2/route:Route": Kind(_create_route, _there, _delete_route),
    "aws:ec2/routeTableAssociation:RouteTableAssociation": Kind(
        _join_routes,
        _there,
        lambda clients, one, _held: clients.connect("ec2").disassociate_route_table(AssociationId=one) and None,
    ),
    "aws:ec2/vpcEndpoint:VpcEndpoint": _plain_kind(
        _create_endpoint,
        lambda ec2, one: ec2.describe_vpc_endpoints(VpcEndpointIds=[one])["VpcEndpoints"],
        lambda ec2, one, _held: ec2.delete_vpc_endpoints(VpcEndpointIds=[one]),
        ("vpcId", "serviceName"),
    ),
    "aws:ec2/securityGroup:SecurityGroup": _plain_kind(
        _create_group,
        lambda ec2, group: ec2.describe_security_groups(GroupIds=[group])["SecurityGroups"],
        lambda ec2, group, _held: ec2.delete_security_group(GroupId=group),
        ("vpcId", "description"),
    ),
    "aws:vpc/securityGroupIngressRule:SecurityGroupIngressRule": _rule_kind("ingress"),
    "aws:vpc/securityGroupEgressRule:SecurityGroupEgressRule": _rule_kind("egress"),
    "aws:ec2/keyPair:KeyPair": replace(
        _plain_kind(
            _create_key,
            lambda ec2, name: ec2.describe_key_pairs(KeyNames=[name])["KeyPairs"],
            lambda ec2, name, _held: ec2.delete_key_pair(KeyName=name),
            ("publicKey",),
        ),
        # Its id is its name, and tags go by another one.
        update=lambda clients, _name, olds, news: retag(clients, olds["keyPairId"], olds, news),
    ),
    "aws:iam/role:Role": Kind(
        _create_role,
        _there,
        lambda clients, name, _held: clients.connect("iam").delete_role(RoleName=name) and None,
        _retag_role,
    ),
    "aws:iam/rolePolicy:RolePolicy": Kind(_put_rights, _there, _delete_rights, _update_rights, fixed=("role",)),
    "aws:iam/instanceProfile:InstanceProfile": Kind(
        _create_profile, _there, _delete_profile, lambda *_arguments: None, fixed=("role",)
    ),
}
