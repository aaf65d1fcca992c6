"""A node's host key is known before anybody speaks to it, and no user data holds the one it keeps.

User data is readable by every process on the node and by whoever may describe the instance. So it carries a key that
opens the first contact alone. Within that contact the node is given the key it keeps, over the connection that the
first key has pinned. Both follow from one secret of the stack's state and the instance's id: a first contact that was
killed at any point can be taken up again, and no two machines ever have the same key.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
from dataclasses import dataclass

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat


@dataclass(frozen=True)
class HostKey:
    """An Ed25519 host key: the private half as OpenSSH stores it, the public half as `ssh-ed25519 AAAA...`."""

    private: str
    public: str


def new_seed() -> str:
    """Returns 32 random bytes as hexadecimal digits."""
    return secrets.token_hex(32)


def derive_first_key(seed: str) -> HostKey:
    """Returns the key that the first contact is pinned by."""
    return _derive(seed, "first contact")


def derive_kept_key(seed: str, instance_id: str) -> HostKey:
    """Returns the key that this one instance keeps."""
    return _derive(seed, f"kept by {instance_id}")


def _derive(seed: str, purpose: str) -> HostKey:
    # RFC 8032, 5.1.5: an Ed25519 private key is any 32 bytes.
    material = hmac.new(bytes.fromhex(seed), purpose.encode(), hashlib.sha256).digest()
    key = Ed25519PrivateKey.from_private_bytes(material)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()).decode("ascii")
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH).decode("ascii")
    return HostKey(private, public)


def make_user_data(name: str, first_key: HostKey, authorized_key: str) -> str:
    """Returns the cloud-config a node starts with: its name, the key of the first contact, and who may come in.

    cloud-init 23 and newer: `ssh_keys` replaces the image's host keys once, at the first boot; `disable_root: false`
    lets the operator's key open root, as on every other target.
    """
    indented = first_key.private.strip().replace("\n", "\n    ")
    return (
        "#cloud-config\n"
        f"preserve_hostname: false\nhostname: {name}\n"
        "disable_root: false\nssh_pwauth: false\n"
        f'ssh_authorized_keys:\n  - "{authorized_key}"\n'
        "ssh_deletekeys: true\n"
        f"ssh_keys:\n  ed25519_private: |\n    {indented}\n  ed25519_public: {first_key.public}\n"
    )
