"""Instances of the stand-in: entries of the moto server, each with a booted host behind its address if asked for."""

from __future__ import annotations

import base64
import subprocess
from pathlib import Path
from typing import Any

import yaml
from botocore.exceptions import ClientError

from decamp.rehearsal import addresses, host
from tests.aws_provider.kinds import Clients, Kind, Properties, from_pairs, retag, specify_tags, to_boto

_PLACE = "stand-in:address"
_GONE = ("terminated", "shutting-down")


def run_instance(clients: Clients, properties: Properties) -> tuple[str, Properties]:
    ec2 = clients.connect("ec2")
    wanted: dict[str, Any] = {
        "ImageId": properties["ami"],
        "InstanceType": properties["instanceType"],
        "MinCount": 1,
        "MaxCount": 1,
        "KeyName": properties["keyName"],
        "IamInstanceProfile": {"Name": properties["iamInstanceProfile"]},
        "UserData": properties["userData"],
        "Placement": {"AvailabilityZone": properties["availabilityZone"]},
        "MetadataOptions": to_boto(properties["metadataOptions"]),
        "TagSpecifications": [
            *specify_tags("instance", properties),
            *specify_tags("volume", {"tags": properties.get("volumeTags")}),
        ],
        "BlockDeviceMappings": [{"DeviceName": "/dev/sda1", "Ebs": to_boto(properties["rootBlockDevice"])}],
    }
    if properties.get("launchTemplate"):
        wanted["LaunchTemplate"] = {
            "LaunchTemplateId": properties["launchTemplate"]["id"],
            "Version": properties["launchTemplate"]["version"],
        }
    else:
        wanted["SubnetId"] = properties["subnetId"]
        wanted["SecurityGroupIds"] = properties["vpcSecurityGroupIds"]
    if properties.get("placementGroup"):
        wanted["Placement"]["GroupName"] = properties["placementGroup"]
    if properties.get("instanceMarketOptions"):
        wanted["InstanceMarketOptions"] = to_boto(properties["instanceMarketOptions"])
    if properties.get("capacityReservationSpecification"):
        wanted["CapacityReservationSpecification"] = to_boto(properties["capacityReservationSpecification"])
    if properties.get("instanceInitiatedShutdownBehavior"):
        wanted["InstanceInitiatedShutdownBehavior"] = properties["instanceInitiatedShutdownBehavior"]
    (instance,) = ec2.run_instances(**wanted)["Instances"]
    (interface, *_others) = instance["NetworkInterfaces"]
    return instance["InstanceId"], {
        "primaryNetworkInterfaceId": interface["NetworkInterfaceId"],
        "privateIp": instance["PrivateIpAddress"],
        "instanceState": "running",
    }


def _find_volumes(ec2: Any, instance_id: str) -> list[str]:
    wanted = [{"Name": "attachment.instance-id", "Values": [instance_id]}]
    return [volume["VolumeId"] for volume in ec2.describe_volumes(Filters=wanted)["Volumes"]]


def find_instance(ec2: Any, instance_id: str) -> Any | None:
    try:
        told = ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
    except ClientError:
        return None
    found = [one for reservation in told for one in reservation["Instances"] if one["State"]["Name"] not in _GONE]
    return found[0] if found else None


def read_instance(clients: Clients, instance_id: str, _held: Properties) -> Properties | None:
    found = find_instance(clients.connect("ec2"), instance_id)
    if found is None:
        _end_host(clients, instance_id)
        return None
    options = found["MetadataOptions"]
    return {
        "tags": from_pairs(found.get("Tags")),
        "instanceState": found["State"]["Name"],
        "metadataOptions": {
            "httpEndpoint": options["HttpEndpoint"],
            "httpTokens": options["HttpTokens"],
            "httpPutResponseHopLimit": options["HttpPutResponseHopLimit"],
        },
    }


def update_instance(clients: Clients, instance_id: str, olds: Properties, news: Properties) -> None:
    retag(clients, instance_id, olds, news)
    ec2 = clients.connect("ec2")
    for volume in _find_volumes(ec2, instance_id):
        retag(clients, volume, {"tags": olds.get("volumeTags")}, {"tags": news.get("volumeTags")})
    if news.get("metadataOptions") != olds.get("metadataOptions"):
        ec2.modify_instance_metadata_options(InstanceId=instance_id, **to_boto(news["metadataOptions"]))
    behavior = news.get("instanceInitiatedShutdownBehavior")
    if behavior and behavior != olds.get("instanceInitiatedShutdownBehavior"):
        ec2.modify_instance_attribute(InstanceId=instance_id, InstanceInitiatedShutdownBehavior={"Value": behavior})


def delete_instance(clients: Clients, instance_id: str, _held: Properties) -> None:
    ec2 = clients.connect("ec2")
    if find_instance(ec2, instance_id) is not None:
        ec2.terminate_instances(InstanceIds=[instance_id])
    _end_host(clients, instance_id)


def allocate_address(clients: Clients, properties: Properties) -> tuple[str, Properties]:
    ec2 = clients.connect("ec2")
    told = ec2.allocate_address(Domain="vpc", TagSpecifications=specify_tags("elastic-ip", properties))
    place, allocation = told["PublicIp"], told["AllocationId"]
    if clients.hosts:
        # An address of the loopback network stands behind the one that moto made up.
        place = addresses.find_free_address()
        ec2.create_tags(Resources=[allocation], Tags=[{"Key": _PLACE, "Value": place}])
    return allocation, {"publicIp": place, "allocationId": allocation}


def _find_address(ec2: Any, allocation: str) -> Any:
    return ec2.describe_addresses(AllocationIds=[allocation])["Addresses"][0]


def read_address(clients: Clients, allocation: str, _held: Properties) -> Properties | None:
    try:
        tags = from_pairs(_find_address(clients.connect("ec2"), allocation).get("Tags"))
    except ClientError:
        return None
    return {"tags": {key: value for key, value in tags.items() if key != _PLACE}}


def join_address(clients: Clients, properties: Properties) -> tuple[str, Properties]:
    ec2 = clients.connect("ec2")
    told = ec2.associate_address(
        AllocationId=properties["allocationId"], NetworkInterfaceId=properties["networkInterfaceId"]
    )
    return told["AssociationId"], {}


def leave_address(clients: Clients, association: str, _held: Properties) -> None:
    try:
        clients.connect("ec2").disassociate_address(AssociationId=association)
    except ClientError as error:
        # An instance that ended has let go of its address.
        if error.response["Error"]["Code"] != "InvalidAssociationID.NotFound":
            raise


def describe_template(properties: Properties) -> dict[str, Any]:
    interfaces = [
        {
            "NetworkCardIndex": int(one["networkCardIndex"]),
            "DeviceIndex": int(one["deviceIndex"]),
            "InterfaceType": one["interfaceType"],
            "SubnetId": one["subnetId"],
            "Groups": one["securityGroups"],
            "DeleteOnTermination": one["deleteOnTermination"] == "true",
        }
        for one in properties["networkInterfaces"]
    ]
    return {"NetworkInterfaces": interfaces}


def create_template(clients: Clients, properties: Properties) -> tuple[str, Properties]:
    told = clients.connect("ec2").create_launch_template(
        LaunchTemplateName=f"{properties['__name']}-{properties['tags']['decamp:stack']}",
        LaunchTemplateData=describe_template(properties),
        TagSpecifications=specify_tags("launch-template", properties),
    )
    return told["LaunchTemplate"]["LaunchTemplateId"], {"latestVersion": 1, "defaultVersion": 1}


def add_template_version(clients: Clients, one: str, old: Properties, new: Properties) -> None:
    """As the real provider: other interfaces make a version, which is the default only where that is asked for."""
    ec2 = clients.connect("ec2")
    if old["networkInterfaces"] != new["networkInterfaces"]:
        told = ec2.create_launch_template_version(LaunchTemplateId=one, LaunchTemplateData=describe_template(new))
        if new.get("updateDefaultVersion"):
            version = str(told["LaunchTemplateVersion"]["VersionNumber"])
            ec2.modify_launch_template(LaunchTemplateId=one, DefaultVersion=version)
    retag(clients, one, old, new)


def start_host(clients: Clients, name: str, address: str, user_data: str) -> None:
    """Boots a host as cloud-init would make it from this user data: its name, its host key and who may come in."""
    told = yaml.safe_load(user_data)
    directory = Path(clients.hosts) / name
    directory.mkdir(parents=True, exist_ok=True)
    private_key = directory / "first_host_key"
    private_key.write_text(told["ssh_keys"]["ed25519_private"])
    private_key.chmod(0o600)
    public = subprocess.run(["ssh-keygen", "-y", "-f", str(private_key)], check=True, capture_output=True, text=True)
    host.public_half(private_key).write_text(public.stdout)
    (authorized,) = told["ssh_authorized_keys"]
    host.start(told["hostname"], directory / "host", address, private_key, authorized, host.new_machine_id())


def _end_host(clients: Clients, instance_id: str) -> None:
    if clients.hosts and (Path(clients.hosts) / instance_id / "host").exists():
        host.destroy(Path(clients.hosts) / instance_id / "host")


def _join_and_start(clients: Clients, properties: Properties) -> tuple[str, Properties]:
    made = join_address(clients, properties)
    if clients.hosts:
        ec2 = clients.connect("ec2")
        (interface,) = ec2.describe_network_interfaces(NetworkInterfaceIds=[properties["networkInterfaceId"]])[
            "NetworkInterfaces"
        ]
        instance_id = interface["Attachment"]["InstanceId"]
        told = ec2.describe_instance_attribute(InstanceId=instance_id, Attribute="userData")["UserData"]["Value"]
        place = from_pairs(_find_address(ec2, properties["allocationId"])["Tags"])[_PLACE]
        start_host(clients, instance_id, place, base64.b64decode(told).decode())
    return made


KINDS = {
    "aws:ec2/instance:Instance": Kind(
        run_instance,
        read_instance,
        delete_instance,
        update_instance,
        # Instance type, IAM profile and reservation change in place with the real provider, on a stopped instance.
        fixed=(
            "ami",
            "availabilityZone",
            "subnetId",
            "keyName",
            "launchTemplate",
            "placementGroup",
            "instanceMarketOptions",
            "userData",
        ),
    ),
    "aws:ec2/eip:Eip": Kind(
        allocate_address,
        read_address,
        lambda clients, one, _held: clients.connect("ec2").release_address(AllocationId=one) and None,
        retag,
        fixed=("domain",),
    ),
    "aws:ec2/eipAssociation:EipAssociation": Kind(
        _join_and_start, lambda _clients, _id, _held: {}, leave_address, fixed=("allocationId", "networkInterfaceId")
    ),
    "aws:ec2/launchTemplate:LaunchTemplate": Kind(
        create_template,
        lambda _clients, _id, _held: {},
        lambda clients, one, _held: clients.connect("ec2").delete_launch_template(LaunchTemplateId=one) and None,
        add_template_version,
    ),
    # moto has none: what the program asks for is kept in the state alone.
    "aws:ec2/placementGroup:PlacementGroup": Kind(
        lambda _clients, properties: (f"{properties['__name']}-of-the-stand-in", {}),
        lambda _clients, _id, _held: {},
        lambda _clients, _id, _held: None,
        lambda *_arguments: None,
        fixed=("strategy",),
    ),
}
