"""The key that opens the nodes is one that EC2 takes, and its public half belongs to the private one that is used."""

from __future__ import annotations

import subprocess
from pathlib import Path

from decamp.errors import BadInput

# EC2 User Guide, "Create a key pair" (2025): RSA and Ed25519.
_TAKEN = ("ssh-ed25519", "ssh-rsa")


def read_public_half(private_key_file: Path) -> str:
    """Returns the public key as `ssh-ed25519 AAAA...`, computed from the private one.

    Raises:
        BadInput: the file is no private key, has a passphrase and no .pub beside it, or is of a type EC2 does not take.
    """
    key = "decamp:ssh.private_key_file"
    ended = subprocess.run(
        ["ssh-keygen", "-y", "-P", "", "-f", str(private_key_file)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    text = ended.stdout
    beside = private_key_file.with_name(f"{private_key_file.name}.pub")
    if ended.returncode != 0 and beside.is_file():
        text = beside.read_text(encoding="utf-8")  # the private half has a passphrase, which the agent holds
    fields = text.split()
    if len(fields) < 2:
        said = " ".join(ended.stderr.split())[-200:]
        raise BadInput(key, "no public key can be had from it", found=said, run="ssh-keygen -t ed25519")
    if fields[0] not in _TAKEN:
        raise BadInput(key, "EC2 takes no key of this type", expected=" or ".join(_TAKEN), found=fields[0])
    return f"{fields[0]} {fields[1]}"
