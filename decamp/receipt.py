"""The receipt: what an evacuation proved, written last. Without one there is no proof."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from decamp.bag import RECEIPT
from decamp.errors import DamagedArchive
from decamp.store.client import Store
from decamp.store.failures import StoreRefusal

FORMAT = "decamp-receipt-1"
_NAMESPACE = "decamp-receipt"
_SIGNING_KEY = Path("/etc/ssh/ssh_host_ed25519_key")
_SEALS = ("receipt_sha256", "signature")


class MissingReceipt(DamagedArchive):
    """The bag has no receipt: no evacuation of it has ended SAFE since it last changed."""

    def __init__(self, url: str) -> None:
        super().__init__(
            url,
            "there is no receipt, so nothing is proven",
            expected=RECEIPT,
            found="none",
            run="decamp evacuate SPEC --store " + url,
        )


class DamagedReceipt(DamagedArchive):
    """The receipt is not what an evacuation wrote."""


@dataclass(frozen=True)
class Receipt:
    """A receipt whose digest was checked.

    Attributes:
        document: the whole of it; docs/archive-format.md describes every field.
        sha256: of the object's bytes.
    """

    document: dict[str, Any]
    sha256: str

    @property
    def node(self) -> str:
        return str(self.document["node"])

    @property
    def store_url(self) -> str:
        return str(self.document["store"])

    @property
    def verdict(self) -> str:
        return str(self.document["verdict"])

    @property
    def machine_id(self) -> str:
        return str(self.document["host"]["machine_id"])

    @property
    def host_keys(self) -> tuple[str, ...]:
        return tuple(self.document["host"]["host_keys"])

    @property
    def census_sha256(self) -> str:
        return str(self.document["census_sha256"])

    @property
    def manifest_sha256(self) -> str:
        return str(self.document["manifest_sha256"])

    @property
    def tag_manifest_sha256(self) -> str:
        return str(self.document["tag_manifest_sha256"])

    @property
    def spec(self) -> dict[str, Any]:
        return dict(self.document["spec"])

    @property
    def spec_path(self) -> str:
        return str(self.document["spec_path"])

    @property
    def spec_sha256(self) -> str:
        return str(self.document["spec_sha256"])

    @property
    def finished_at(self) -> str:
        return str(self.document["finished_at"])

    @property
    def totals(self) -> dict[str, Any]:
        return dict(self.document["totals"])

    def is_signed_by(self, host_key: str) -> bool:
        """Tells whether the host that has this public key (`type base64`) signed the receipt.

        An object store's credentials are enough to write a receipt; only the node's root can sign one.
        """
        signature = self.document.get("signature")
        if not isinstance(signature, str):
            return False
        with tempfile.TemporaryDirectory(prefix="decamp-receipt-") as directory:
            signers, signature_file = Path(directory, "signers"), Path(directory, "signature")
            signers.write_text(f"node {host_key}\n", encoding="utf-8")
            signature_file.write_text(signature, encoding="ascii", errors="replace")
            done = _ssh_keygen(
                ["-Y", "verify", "-f", str(signers), "-I", "node", "-n", _NAMESPACE, "-s", str(signature_file)],
                _canonical(self.document),
            )
        return done is not None and done.returncode == 0


def _canonical(document: dict[str, Any]) -> bytes:
    """The bytes that digest and signature are about: sorted keys, no blanks, without the seals themselves."""
    content = {name: value for name, value in document.items() if name not in _SEALS}
    return json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=True).encode()


def _ssh_keygen(arguments: list[str], text: bytes) -> subprocess.CompletedProcess[bytes] | None:
    try:
        return subprocess.run(["ssh-keygen", *arguments], input=text, capture_output=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None


def seal(document: dict[str, Any], signing_key: Path = _SIGNING_KEY) -> bytes:
    """Returns the receipt's bytes, with its digest, and signed with the SSH host key where this user may read it."""
    text = _canonical(document)
    sealed = dict(document, receipt_sha256=hashlib.sha256(text).hexdigest())
    if os.access(signing_key, os.R_OK):
        done = _ssh_keygen(["-q", "-Y", "sign", "-f", str(signing_key), "-n", _NAMESPACE], text)
        if done is not None and done.returncode == 0:
            sealed["signature"] = done.stdout.decode("ascii")
    return _written(sealed)


def _written(document: dict[str, Any]) -> bytes:
    """The receipt's bytes, as text that any store and editor leaves alone."""
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=True).encode("ascii") + b"\n"


def parse_receipt(body: bytes, url: str) -> Receipt:
    """Returns the receipt in an object's bytes; raises DamagedReceipt unless its digest and fields are right."""
    try:
        document = json.loads(body)
        found = document.get("receipt_sha256")
        expected = hashlib.sha256(_canonical(document)).hexdigest()
        if document.get("format") != FORMAT:
            raise DamagedReceipt(
                f"{url}/{RECEIPT}",
                "the receipt's format is unknown",
                expected=FORMAT,
                found=str(document.get("format")),
            )
        if found != expected:
            raise DamagedReceipt(
                f"{url}/{RECEIPT}", "the receipt was changed", expected=f"sha256 {expected}", found=str(found)
            )
        if body != _written(document):
            raise DamagedReceipt(
                f"{url}/{RECEIPT}",
                "the receipt was changed",
                expected="the bytes as they were sealed",
                found="other bytes of the same meaning",
            )
        receipt = Receipt(document, hashlib.sha256(body).hexdigest())
        for name in (
            "node",
            "store_url",
            "verdict",
            "machine_id",
            "host_keys",
            "census_sha256",
            "manifest_sha256",
            "tag_manifest_sha256",
            "spec",
            "spec_path",
            "spec_sha256",
            "finished_at",
            "totals",
        ):
            getattr(receipt, name)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise DamagedReceipt(f"{url}/{RECEIPT}", "the receipt is damaged", found=str(error)) from error
    return receipt


def find_receipt(store: Store) -> bytes | None:
    """Returns the bytes of the bag's receipt, or None where it has none."""
    try:
        return store.get_bytes(RECEIPT)
    except StoreRefusal as refusal:
        if refusal.code in ("NoSuchKey", "404"):
            return None
        raise


def read_receipt(store: Store) -> Receipt:
    """Returns the bag's receipt; raises MissingReceipt or DamagedReceipt."""
    body = find_receipt(store)
    if body is None:
        raise MissingReceipt(store.location.url)
    receipt = parse_receipt(body, store.location.url)
    if receipt.store_url != store.location.url or receipt.verdict != "SAFE":
        raise DamagedReceipt(
            f"{store.location.url}/{RECEIPT}",
            "the receipt is of another archive",
            expected=f"{store.location.url}, SAFE",
            found=f"{receipt.store_url}, {receipt.verdict}",
        )
    return receipt
