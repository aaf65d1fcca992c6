"""The stack's configuration is complete, typed and within its limits, or every wrong value is named at once."""

from __future__ import annotations

import base64
import binascii
import json
import re
import stat
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from decamp.errors import BadInput
from decamp.stack import NodeRecord, StoreRecord
from infra.aws.settings import AwsSettings, read_settings
from infra.fields import Problems, Section

CHECKOUT = Path(__file__).resolve().parent.parent

# A target is a file in infra/nodes/ and an entry in infra.nodes.TARGETS.
TARGETS = ("rehearsal", "rented", "aws")

HOST_KEY_TYPES = ("ssh-ed25519", "ecdsa-sha2-nistp256", "ecdsa-sha2-nistp384", "ecdsa-sha2-nistp521", "ssh-rsa")

# A node's name is a DNS label (RFC 1123, 2.1: 63 characters): it becomes a hostname and part of an object key.
_NODE_NAME = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_HOST = r"[A-Za-z0-9]([A-Za-z0-9.:-]{0,253}[A-Za-z0-9])?"
# Bucket names: 3 to 63 characters (Amazon S3 User Guide, "General purpose bucket naming rules", 2025).
_STORE_URL = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](/[A-Za-z0-9._=-]+)*/?"
# No user name or password: an endpoint is kept in the state and shown in the outputs.
_ENDPOINT = r"https?://[A-Za-z0-9.\[\]:-]+/?"
_OCTET = r"(25[0-5]|2[0-4]\d|1?\d?\d)"
_LOOPBACK = rf"127\.{_OCTET}\.{_OCTET}\.{_OCTET}"


@dataclass(frozen=True)
class StackConfig:
    """All of the stack's settings, checked; `aws` is there for that target alone."""

    target: str
    store: StoreRecord
    nodes: tuple[NodeRecord, ...]
    ssh_private_key_file: Path
    workspace: str
    configure: bool
    rehearsal_directory: Path
    store_port: int
    max_price_per_hour: float | None = None
    aws: AwsSettings | None = None


class ConfigRefused(BadInput):
    """The configuration has wrong values; each is one of `problems`.

    Args:
        stack: name of the stack the values belong to.
        problems: one error a value.
    """

    def __init__(self, stack: str, problems: list[BadInput]) -> None:
        self.problems = tuple(problems)
        count = f"{len(problems)} wrong value{'s' if len(problems) > 1 else ''}"
        lines = "".join(f"\n  {problem}" for problem in problems)
        super().__init__(f"Pulumi.{stack}.yaml", f"{count}, nothing was declared:{lines}")


def parse_config(stack: str, raw: Mapping[str, str], checkout: Path = CHECKOUT) -> StackConfig:
    """Returns the settings, or raises ConfigRefused with every problem found.

    Args:
        stack: the stack's name, for messages.
        raw: all configuration as Pulumi holds it, `decamp:key` to text; objects are JSON.
        checkout: directory that relative paths start from.
    """
    problems = Problems()
    top = Section("decamp", _decode(raw, problems), problems, separator=":")
    target = top.choice("target", TARGETS, required=True) or ""
    rehearsal = top.section("rehearsal")
    directory = _under(checkout, rehearsal.text("directory", allowed="a path") or ".rehearsal")
    store_port = rehearsal.integer("store_port", 1024, 65535, 18333)
    rehearsal.close()
    if target != "rehearsal" and rehearsal.values:
        problems.add("decamp:rehearsal", "belongs to the target rehearsal alone", expected="no such key")
    store = _read_store(top.section("store"), target, store_port)
    ssh = top.section("ssh")
    key_file = _read_key_file(ssh, target, directory, checkout)
    user = ssh.text("user", pattern=r"[a-z_][a-z0-9_-]{0,31}", allowed="a login name") or "root"
    ssh.close()
    deadline = top.instant("deadline") or ""
    nodes = _read_nodes(top, target, user, deadline)
    max_price = top.price("max_price_per_hour")
    aws = _read_aws(top, target, store, deadline)
    if aws is None:
        _check_prices(top, nodes, max_price)
    workspace = top.text("workspace", pattern=r"/[^\0]+", allowed="an absolute path below /") or "/workspace"
    configure = top.flag("configure")
    top.close()
    if problems.found:
        raise ConfigRefused(stack, problems.found)
    if aws is not None:
        store = replace(store, region=aws.region)
    return StackConfig(target, store, nodes, key_file, workspace, configure, directory, store_port, max_price, aws)


def _read_aws(top: Section, target: str, store: StoreRecord, deadline: str) -> AwsSettings | None:
    section, any_source = top.section("aws"), top.flag("allow_any_source")
    if target == "aws":
        return read_settings(
            section,
            deadline=deadline,
            store_url=store.url,
            store_region=str(top.section("store").values.get("region") or ""),
            allow_any_source=any_source,
        )
    if section.values or any_source:
        key = section.key if section.values else top.name("allow_any_source")
        top.problems.add(key, "belongs to the target aws alone", expected="no such key")
    return None


def _decode(raw: Mapping[str, str], problems: Problems) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, text in raw.items():
        namespace, _, name = key.partition(":")
        if namespace != "decamp":
            continue
        if text[:1] in ("{", "["):
            try:
                values[name] = json.loads(text)
            except ValueError:
                problems.add(key, "not readable", expected="JSON or YAML", found=text)
        else:
            values[name] = text
    return values


def _under(checkout: Path, text: str) -> Path:
    return checkout / Path(text).expanduser()


def _read_store(section: Section, target: str, store_port: int) -> StoreRecord:
    rehearsal = target == "rehearsal"
    url = section.text("url", pattern=_STORE_URL, allowed="s3://bucket or s3://bucket/prefix", required=not rehearsal)
    endpoint = section.text(
        "endpoint", pattern=_ENDPOINT, allowed="http(s)://host[:port] without user, password, path or query"
    )
    region = section.text("region", pattern=r"[a-z0-9-]+", allowed="a region's name, e.g. us-east-1") or "us-east-1"
    section.close()
    if rehearsal and endpoint:
        section.problems.add(
            section.name("endpoint"),
            "the rehearsal starts its own S3 server",
            expected="decamp:rehearsal.store_port",
            found=endpoint,
        )
    if rehearsal:
        return StoreRecord((url or "s3://decamp-rehearsal").rstrip("/"), f"http://127.0.0.1:{store_port}", region)
    return StoreRecord((url or "").rstrip("/"), (endpoint or "").rstrip("/"), region)


def _read_key_file(ssh: Section, target: str, directory: Path, checkout: Path) -> Path:
    allowed = "the path of the private key that opens the nodes, readable by you alone"
    text = ssh.text("private_key_file", allowed=allowed, required=target != "rehearsal", run="ssh-keygen -t ed25519")
    if target == "rehearsal" or text is None:
        return _under(checkout, text) if text else directory / "ssh" / "operator_ed25519"
    path = _under(checkout, text)
    key = ssh.name("private_key_file")
    if not path.is_file():
        ssh.problems.add(key, "no such file", expected=allowed, found=text, run="ssh-keygen -t ed25519")
    elif stat.S_IMODE(path.stat().st_mode) & 0o077:
        mode = f"{stat.S_IMODE(path.stat().st_mode):04o}"
        ssh.problems.add(key, "readable by others", expected="0600", found=mode, run=f"chmod 600 {path}")
    return path


def _read_nodes(top: Section, target: str, user: str, deadline: str) -> tuple[NodeRecord, ...]:
    value = top.raw("nodes")
    key = top.name("nodes")
    if target == "rehearsal" and value is None:
        value = [{"name": "node-1"}]
    if not isinstance(value, list) or not all(isinstance(entry, Mapping) for entry in value) or not value:
        top.problems.add(key, "missing" if value is None else "not allowed", expected="a list of nodes", found=value)
        return ()
    nodes = []
    for number, entry in enumerate(value):
        section = Section(f"{key}[{number}]", entry, top.problems)
        nodes.append(_read_node(section, target, user, deadline))
        section.close()
    unique: tuple[tuple[str, list[str]], ...] = (
        ("name", [node.name for node in nodes]),
        ("host", [f"{node.host}:{node.port}" if node.host else "" for node in nodes]),
        ("host_key", [node.host_key for node in nodes]),
    )
    for field, values in unique:
        for value_twice in sorted({one for one in values if one and values.count(one) > 1}):
            places = ", ".join(f"nodes[{at}]" for at, one in enumerate(values) if one == value_twice)
            top.problems.add(f"{key}.{field}", f"given twice, in {places}", expected="one node each", found=value_twice)
    return tuple(nodes)


def _read_node(section: Section, target: str, user: str, deadline: str) -> NodeRecord:
    name = section.text(
        "name", pattern=_NODE_NAME, allowed="1 to 63 of a-z, 0-9 and -, not first or last -", required=True
    )
    port, host_key = 22, ""
    if target == "rented":
        host = section.text("host", pattern=_HOST, allowed="an address or a host's name", required=True)
        port = section.integer("port", 1, 65535, 22)
        host_key = _read_host_key(section, host or "HOST", port)
    elif target == "aws":
        host = ""  # EC2 gives the address, and the first contact the host key
    else:
        numbered = re.fullmatch(r"node-(\d{1,3})", name or "")
        given = numbered is not None and 1 <= int(numbered[1]) <= 254
        # The default address follows from the name, not from the place in the list: dropping one node moves no other.
        host = section.text("host", pattern=_LOOPBACK, allowed="an address in 127.0.0.0/8", required=not given)
        host = host or (f"127.0.10.{int(numbered[1])}" if numbered and given else "")
    return NodeRecord(
        name=name or "",
        host=host or "",
        port=port,
        user=section.text("user", pattern=r"[a-z_][a-z0-9_-]{0,31}", allowed="a login name") or user,
        host_key=host_key,
        gpu=section.text("gpu", allowed="the GPUs' name, e.g. 8x B200") or ("none" if target == "rehearsal" else ""),
        # What an instance costs is asked of AWS, or is in decamp:aws.purchase.
        price_per_hour=None if target == "aws" else section.price("price_per_hour"),
        deadline=section.instant("deadline") or deadline,
    )


def _read_host_key(section: Section, host: str, port: int) -> str:
    scan = f"ssh-keyscan -t ed25519 -p {port} {host}"
    advice = f"{scan}  # then compare it over another way (the provider's console, the host's owner) before use"
    # A block scalar in YAML ends with a newline.
    text = section.text(
        "host_key",
        pattern=r"[^\n]+\n?",
        allowed='the host\'s public key, "ssh-ed25519 AAAA..."',
        required=True,
        run=advice,
    )
    if text is None:
        return ""
    kind, _, rest = text.strip().partition(" ")
    body = rest.split(" ")[0]
    try:
        blob = base64.b64decode(body, validate=True)
    except binascii.Error:
        blob = b""
    # The key's own first field repeats its type (RFC 4253, 6.6): a shortened or mixed-up paste shows here.
    if kind not in HOST_KEY_TYPES or blob[4 : 4 + len(kind)] != kind.encode() or len(blob) < 40:
        expected = f"a whole public key of type {', '.join(HOST_KEY_TYPES)}"
        section.problems.add(section.name("host_key"), "not a public key", expected=expected, found=text, run=advice)
    return f"{kind} {body}"


def _check_prices(top: Section, nodes: tuple[NodeRecord, ...], limit: float | None) -> None:
    if limit is None:
        return
    unpriced = [node.name for node in nodes if node.price_per_hour is None]
    if unpriced:
        where = top.name("max_price_per_hour")
        top.problems.add(where, f"cannot be held: no price_per_hour for {', '.join(unpriced)}", expected="a price each")
    total = sum(node.price_per_hour or 0.0 for node in nodes)
    if total > limit:
        top.problems.add(
            top.name("max_price_per_hour"),
            "the nodes together cost more",
            expected=f"at most {limit:.2f} dollars an hour",
            found=f"{total:.2f}",
        )
