"""Small files of the formats the engine knows by name: whole ones, and torn ones as a crash leaves them."""

from __future__ import annotations

import gzip
import io
import json
import random
import struct
import tarfile
import zipfile


def _safetensors(rng: random.Random) -> bytes:
    data = rng.randbytes(64)
    header = json.dumps({"w": {"dtype": "F32", "shape": [16], "data_offsets": [0, 64]}}).encode()
    return struct.pack("<Q", len(header)) + header + data


def _jsonl(rng: random.Random) -> bytes:
    rows = [{"id": number, "text": "x" * rng.randint(0, 40)} for number in range(rng.randint(1, 20))]
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def _tar(rng: random.Random) -> bytes:
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        body = rng.randbytes(700)
        member = tarfile.TarInfo("member")
        member.size = len(body)
        archive.addfile(member, io.BytesIO(body))
    return sink.getvalue()


def _checkpoint(rng: random.Random) -> bytes:
    """A zip as torch.save writes it: one directory with a pickle and a version."""
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w") as archive:
        archive.writestr("model/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("model/version", b"3\n")
        archive.writestr("model/data/0", rng.randbytes(100))
    return sink.getvalue()


def whole_files(rng: random.Random) -> list[tuple[bytes, bytes]]:
    """One whole file of each format, by name."""
    return [
        (b"model.safetensors", _safetensors(rng)),
        (b"rows.jsonl", _jsonl(rng)),
        (b"state.json", json.dumps({"step": rng.randint(0, 9)}).encode()),
        (b"text.gz", gzip.compress(rng.randbytes(300), mtime=0)),
        (b"members.tar", _tar(rng)),
        (b"model.pt", _checkpoint(rng)),
    ]


def whole_file(name: bytes, rng: random.Random) -> bytes:
    """A whole file of the format that the name's ending says; random bytes for any other ending."""
    ending = name[name.rfind(b".") :]
    found = [body for known, body in whole_files(rng) if known.endswith(ending)]
    return found[0] if found else rng.randbytes(200)


def torn_files(rng: random.Random) -> list[tuple[bytes, bytes]]:
    """The same files cut off so that no reader takes them for whole."""
    return [(name, body[: len(body) // 2] if name != b"rows.jsonl" else body[:-3]) for name, body in whole_files(rng)]
