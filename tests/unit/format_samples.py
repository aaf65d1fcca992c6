"""Small whole files of every format that the engine knows by name."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import struct
import tarfile
import zipfile
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather as feather
import pyarrow.parquet as parquet
from safetensors.numpy import save

TEXT = b"".join(b"line %d of something\n" % number for number in range(200))


def arrow_table(masks: list[list[float] | None]) -> pa.Table:
    return pa.table({"id": list(range(len(masks))), "loss_mask": masks})


def arrow_file(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=16)
    return sink.getvalue()


def arrow_stream(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table, max_chunksize=16)
    return sink.getvalue()


def parquet_file(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    parquet.write_table(table, sink, row_group_size=16)
    return sink.getvalue()


def feather_file(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    feather.write_feather(table, sink, compression="uncompressed")
    return sink.getvalue()


def zstd_file(content: bytes) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, "zstd") as stream:
        stream.write(content)
    whole: bytes = sink.getvalue().to_pybytes()
    return whole


def tar_file(files: dict[str, bytes]) -> bytes:
    """An archive up to its first block of zeros: what follows is padding."""
    sink = io.BytesIO()
    with tarfile.open(fileobj=sink, mode="w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))
        end = archive.offset
    return sink.getvalue()[: end + tarfile.BLOCKSIZE]


def zip_file(files: dict[str, bytes]) -> bytes:
    sink = io.BytesIO()
    with zipfile.ZipFile(sink, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return sink.getvalue()


def npy_file(array: np.ndarray[Any, Any]) -> bytes:
    sink = io.BytesIO()
    np.save(sink, array)
    return sink.getvalue()


def safetensors_file() -> bytes:
    whole: bytes = save({"w": np.arange(60, dtype=np.float32), "b": np.zeros(3, dtype=np.int64)}, {"step": "3"})
    return whole


TABLE = arrow_table([[1.0] * (number % 7) for number in range(50)])
WHOLE: dict[str, bytes] = {
    "a.safetensors": safetensors_file(),
    "a.json": json.dumps({"a": [1, 2, {"b": "ü"}]}).encode(),
    "a.jsonl": b"".join(json.dumps({"id": number, "text": "x" * number}).encode() + b"\n" for number in range(40)),
    "a.arrow": arrow_file(TABLE),
    "stream.arrow": arrow_stream(TABLE),
    "a.feather": feather_file(TABLE),
    "a.parquet": parquet_file(TABLE),
    "a.txt.gz": gzip.compress(TEXT),
    "a.tgz": gzip.compress(tar_file({"x": TEXT})),
    "a.bz2": bz2.compress(TEXT),
    "a.xz": lzma.compress(TEXT),
    "a.zst": zstd_file(TEXT),
    "a.tar": tar_file({"x": TEXT, "y": b"", "z": b"1"}),
    "a.zip": zip_file({"x": TEXT, "y/z": b"1"}),
    "model.pt": zip_file({"archive/data.pkl": TEXT, "archive/data/0": bytes(5000)}),
    "a.npz": zip_file({"w.npy": npy_file(np.arange(100))}),
    "a.npy": npy_file(np.arange(100, dtype=np.float16).reshape(4, 25)),
}


def truncated_safetensors_header(document: object) -> bytes:
    header = json.dumps(document).encode()
    return struct.pack("<Q", len(header)) + header
