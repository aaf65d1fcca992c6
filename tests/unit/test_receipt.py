"""A receipt is one machine's word: any change of it is noticed, and only the host's own key signs it."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from decamp.receipt import FORMAT, DamagedReceipt, parse_receipt, seal

URL = "s3://bucket/node-1"
DOCUMENT: dict[str, Any] = {
    "format": FORMAT, "software": "decamp 0", "verdict": "SAFE", "node": "node-1", "store": URL,
    "host": {"machine_id": "0123", "host_keys": ["ssh-ed25519 AAAA"]}, "finished_at": "2026-01-01T00:00:00Z",
    "spec": {"root": "/w", "rules": [{"match": "ü*", "tier": "useful"}]}, "spec_path": "/etc/spec.yml",
    "spec_sha256": "ab", "census_sha256": "cd", "manifest_sha256": "ef", "tag_manifest_sha256": "01",
    "totals": {"irreplaceable": {"entries": 3, "bytes": 0.1}},
}  # fmt: skip


@pytest.fixture(scope="module")
def host_key(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "ssh_host_ed25519_key"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, timeout=30)
    return path


def public(key: Path) -> str:
    return " ".join(key.with_name(key.name + ".pub").read_text().split()[:2])


def test_a_receipt_says_what_was_sealed(tmp_path: Path) -> None:
    body = seal(DOCUMENT, tmp_path / "none")
    receipt = parse_receipt(body, URL)
    assert receipt.sha256 == hashlib.sha256(body).hexdigest()
    assert (receipt.node, receipt.store_url, receipt.verdict, receipt.machine_id) == ("node-1", URL, "SAFE", "0123")
    assert receipt.host_keys == ("ssh-ed25519 AAAA",)
    assert receipt.spec == DOCUMENT["spec"]
    assert (receipt.spec_path, receipt.spec_sha256, receipt.census_sha256) == ("/etc/spec.yml", "ab", "cd")
    assert (receipt.manifest_sha256, receipt.tag_manifest_sha256) == ("ef", "01")
    assert (receipt.finished_at, receipt.totals) == ("2026-01-01T00:00:00Z", DOCUMENT["totals"])


@pytest.mark.parametrize("flip", [0x01, 0x10, 0x20, 0x80])
def test_any_changed_byte_is_noticed(tmp_path: Path, flip: int) -> None:
    body = seal(DOCUMENT, tmp_path / "none")
    for position in range(len(body)):
        changed = bytearray(body)
        changed[position] ^= flip
        with pytest.raises(DamagedReceipt):
            parse_receipt(bytes(changed), URL)


def test_any_changed_byte_of_a_signed_one_is_noticed(host_key: Path) -> None:
    body = seal(DOCUMENT, host_key)
    start, end = body.index(b"-----BEGIN SSH SIGNATURE"), body.index(b"-----END")
    last = body.index(b"\\n", end)
    # Not the signature's last line end, nor the last character before it ends: they stand for nothing in its format.
    for position in [*range(0, start, 7), *range(start, end - 8, 31), *range(end, last), *range(last + 2, len(body))]:
        changed = bytearray(body)
        changed[position] ^= 0x01
        try:
            receipt = parse_receipt(bytes(changed), URL)
        except DamagedReceipt:
            continue
        assert position >= start
        assert not receipt.is_signed_by(public(host_key)), position


@pytest.mark.parametrize("kept", [0, 1, 100, -2])
def test_a_receipt_that_is_cut_off_is_noticed(tmp_path: Path, kept: int) -> None:
    with pytest.raises(DamagedReceipt):
        parse_receipt(seal(DOCUMENT, tmp_path / "none")[:kept], URL)


def test_appended_bytes_are_noticed(tmp_path: Path) -> None:
    for tail in (b" ", b"\n", b"{}"):
        with pytest.raises(DamagedReceipt):
            parse_receipt(seal(DOCUMENT, tmp_path / "none") + tail, URL)


@pytest.mark.parametrize("field", sorted(set(DOCUMENT) - {"software"}))
def test_every_field_is_needed(tmp_path: Path, field: str) -> None:
    partial = {name: value for name, value in DOCUMENT.items() if name != field}
    with pytest.raises(DamagedReceipt):
        parse_receipt(seal(partial, tmp_path / "none"), URL)


@pytest.mark.parametrize("body", [b"", b"null", b"[]", b"3", b'"x"', b"\xff", b"{}", b"[" * 100_000])
def test_what_is_no_receipt_is_damaged(body: bytes) -> None:
    with pytest.raises(DamagedReceipt) as caught:
        parse_receipt(body, URL)
    assert caught.value.exit_code == 5


def test_a_receipt_of_another_format_is_not_understood(tmp_path: Path) -> None:
    with pytest.raises(DamagedReceipt, match="format is unknown: expected decamp-receipt-1, found decamp-receipt-2"):
        parse_receipt(seal({**DOCUMENT, "format": "decamp-receipt-2"}, tmp_path / "none"), URL)


def test_names_that_are_no_text_can_be_sealed(tmp_path: Path) -> None:
    document = {**DOCUMENT, "spec_path": "/\udcff", "spec": {"root": "/\udcfe"}}
    assert parse_receipt(seal(document, tmp_path / "none"), URL).spec_path == "/\udcff"


def test_the_hosts_key_signs(host_key: Path) -> None:
    receipt = parse_receipt(seal(DOCUMENT, host_key), URL)
    assert receipt.is_signed_by(public(host_key))


def test_another_key_is_refused(host_key: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", other], check=True, timeout=30)
    receipt = parse_receipt(seal(DOCUMENT, host_key), URL)
    assert not receipt.is_signed_by(public(other))
    assert not receipt.is_signed_by("ssh-ed25519 AAAA")
    assert not receipt.is_signed_by("")


def test_a_signature_is_of_its_own_receipt_alone(host_key: Path) -> None:
    signed = json.loads(seal(DOCUMENT, host_key))
    forged = json.loads(seal({**DOCUMENT, "node": "node-2"}, Path("/nonexistent")))
    forged["signature"] = signed["signature"]
    body = json.dumps(forged, indent=1, sort_keys=True).encode() + b"\n"
    assert not parse_receipt(body, URL).is_signed_by(public(host_key))


def test_without_a_readable_key_there_is_no_signature(tmp_path: Path) -> None:
    receipt = parse_receipt(seal(DOCUMENT, tmp_path / "none"), URL)
    assert not receipt.is_signed_by("ssh-ed25519 AAAA")
    (tmp_path / "junk").write_text("no key")
    assert "signature" not in json.loads(seal(DOCUMENT, tmp_path / "junk"))
