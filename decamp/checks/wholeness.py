"""Is a file complete? One function a format; each reads as little as proves that nothing is cut off.

A file that a crashed writer left behind usually has a good start and no end, so the end is what is looked at.
"""

from __future__ import annotations

import ast
import bz2
import errno
import gzip
import json
import lzma
import math
import os
import struct
import tarfile
import zipfile
from collections.abc import Callable
from typing import IO

from decamp.checks.result import CheckResult

_PARSE_LIMIT_BYTES = 64 << 20
_CHUNK_BYTES = 1 << 20
_ZIP_START = b"PK\x03\x04"


class Torn(Exception):
    """The file is not whole: what its format demands, and what is there."""

    def __init__(self, expected: str, found: str) -> None:
        self.expected = expected
        self.found = found
        super().__init__(f"expected {expected}, found {found}")


def inspect_wholeness(kind: str, path: bytes) -> CheckResult:
    """Returns whether the file is complete, for a kind that `decamp.checks` knows by the file's name."""
    try:
        with open(path, "rb", opener=_open_regular) as file:
            size_bytes = os.fstat(file.fileno()).st_size
            _INSPECTORS[kind](file, size_bytes)
    except Torn as torn:
        return CheckResult(f"whole:{kind}", False, torn.expected, torn.found)
    except OSError as error:
        if not is_about_data(error):
            raise
        return CheckResult(f"whole:{kind}", False, f"a complete {kind} file", _one_line(error))
    except Exception as error:  # readers of a dozen formats raise what they like for bad data; it is bad data
        return CheckResult(f"whole:{kind}", False, f"a complete {kind} file", _one_line(error))
    return CheckResult(f"whole:{kind}", True)


def _open_regular(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)


def is_about_data(error: OSError) -> bool:
    """Tells bad data from a file that cannot be read: decoders raise a bare OSError, or seek to where nothing is."""
    return error.errno in (None, errno.EINVAL)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split()) or type(error).__name__


def _inspect_safetensors(file: IO[bytes], size_bytes: int) -> None:
    """Source: safetensors format description (README of the project, "Format", read 2026)."""
    start = file.read(8)
    if len(start) < 8:
        raise Torn("an 8-byte header length", f"{len(start)} bytes")
    (header_bytes,) = struct.unpack("<Q", start)
    if header_bytes > size_bytes - 8 or header_bytes > 100_000_000:
        raise Torn(f"a header within the file's {size_bytes} bytes", f"a header length of {header_bytes}")
    header = json.loads(file.read(header_bytes))
    ends = [item["data_offsets"][1] for name, item in header.items() if name != "__metadata__"]
    needed = 8 + header_bytes + max(ends, default=0)
    if needed != size_bytes:
        raise Torn(f"{needed} bytes, as the header says", f"{size_bytes} bytes")


def _inspect_json(file: IO[bytes], size_bytes: int) -> None:
    if size_bytes <= _PARSE_LIMIT_BYTES:
        json.loads(file.read())
        return
    first = file.read(1024).lstrip()[:1]
    file.seek(-1024, os.SEEK_END)
    last = file.read().rstrip()[-1:]
    closing = {b"{": b"}", b"[": b"]", b'"': b'"'}.get(first)
    if closing is None or last != closing:
        raise Torn(f"an end that closes {first!r}", f"{last!r}")


def _inspect_jsonl(file: IO[bytes], size_bytes: int) -> None:
    """The last line parses, and no block of zeros (a crash of the host leaves such) stands at the end."""
    window_bytes = min(size_bytes, 64 << 10)
    while True:
        file.seek(size_bytes - window_bytes)
        tail = file.read(window_bytes)
        lines = tail.rstrip(b"\r\n").rsplit(b"\n", 1)
        if len(lines) == 2 or window_bytes == size_bytes:
            break
        if window_bytes > _PARSE_LIMIT_BYTES:
            raise Torn(f"a last line of at most {_PARSE_LIMIT_BYTES} bytes", "a longer one")
        window_bytes = min(size_bytes, window_bytes * 4)
    last = lines[-1].strip(b" \t\r\n")
    if not last:
        return
    try:
        value = json.loads(last)
    except (ValueError, RecursionError) as error:
        raise Torn("a last line that is JSON", f"{last[-60:]!r} ({_one_line(error)})") from error
    if not tail.endswith(b"\n") and isinstance(value, (int, float)) and not isinstance(value, bool):
        raise Torn("a line end after a number", f"{last[-60:]!r}")


def _inspect_arrow(file: IO[bytes], size_bytes: int) -> None:
    """Source: Arrow columnar format, "IPC Streaming Format" and "IPC File Format" (1.5)."""
    start = file.read(8)
    if start[:4] == b"FEA1":
        file.seek(-4, os.SEEK_END)
        if file.read() != b"FEA1":
            raise Torn("FEA1 at the end", "something else")
        return
    import pyarrow as pa

    file.seek(0)
    if start[:6] == b"ARROW1":
        file.seek(-6, os.SEEK_END)
        if file.read() != b"ARROW1":
            raise Torn("ARROW1 at the end", "something else")
        reader = pa.ipc.open_file(file)
        for number in range(reader.num_record_batches):
            reader.get_batch(number)
        return
    if size_bytes < 8:
        raise Torn("an Arrow file or stream", f"{size_bytes} bytes")
    file.seek(-8, os.SEEK_END)
    if file.read() != b"\xff\xff\xff\xff\0\0\0\0":
        raise Torn("an Arrow end-of-stream mark", "none")
    file.seek(0)
    for _batch in pa.ipc.open_stream(file):
        pass


def _inspect_parquet(file: IO[bytes], size_bytes: int) -> None:
    if size_bytes < 12 or file.read(4) != b"PAR1":
        raise Torn("PAR1 at the start", "something else")
    file.seek(-4, os.SEEK_END)
    if file.read() != b"PAR1":
        raise Torn("PAR1 at the end", "something else")
    import pyarrow.parquet as parquet

    metadata = parquet.read_metadata(file)
    for number in range(metadata.num_row_groups):
        group = metadata.row_group(number)
        for column in range(group.num_columns):
            chunk = group.column(column)
            start = chunk.dictionary_page_offset or chunk.data_page_offset
            if start + chunk.total_compressed_size > size_bytes:
                raise Torn("column chunks within the file", f"one that ends after its {size_bytes} bytes")


def _drain(stream: IO[bytes]) -> None:
    while stream.read(_CHUNK_BYTES):
        pass


def _inspect_gzip(file: IO[bytes], size_bytes: int) -> None:
    if not size_bytes:
        raise Torn("a gzip member", "an empty file")
    with gzip.GzipFile(fileobj=file) as stream:
        _drain(stream)  # type: ignore[arg-type]


def _inspect_bzip2(file: IO[bytes], size_bytes: int) -> None:
    if not size_bytes:
        raise Torn("a bzip2 stream", "an empty file")
    with bz2.BZ2File(file) as stream:
        _drain(stream)


def _inspect_xz(file: IO[bytes], size_bytes: int) -> None:
    if not size_bytes:
        raise Torn("an xz stream", "an empty file")
    with lzma.LZMAFile(file) as stream:
        _drain(stream)


def _inspect_zstd(file: IO[bytes], size_bytes: int) -> None:
    """Walks frames and blocks by their headers. Source: RFC 8878, sections 3.1.1 and 3.1.2."""
    if not size_bytes:
        raise Torn("a zstd frame", "an empty file")
    while True:
        magic = file.read(4)
        if not magic:
            return
        if len(magic) < 4:
            raise Torn("a zstd frame", f"{len(magic)} bytes after the last one")
        (number,) = struct.unpack("<I", magic)
        if 0x184D2A50 <= number <= 0x184D2A5F:
            (skip_bytes,) = struct.unpack("<I", _exactly(file, 4))
            _skip(file, skip_bytes, size_bytes)
            continue
        if number != 0xFD2FB528:
            raise Torn("a zstd frame", f"magic number {number:#010x}")
        descriptor = _exactly(file, 1)[0]
        single_segment, has_checksum = descriptor >> 5 & 1, descriptor >> 2 & 1
        dictionary_bytes = (0, 1, 2, 4)[descriptor & 3]
        content_bytes = (1 if single_segment else 0, 2, 4, 8)[descriptor >> 6]
        _exactly(file, (0 if single_segment else 1) + dictionary_bytes + content_bytes)
        last = False
        while not last:
            header = int.from_bytes(_exactly(file, 3), "little")
            last = bool(header & 1)
            kind, block_bytes = header >> 1 & 3, header >> 3
            if kind == 3:
                raise Torn("a zstd block", "the reserved block type")
            _skip(file, 1 if kind == 1 else block_bytes, size_bytes)
        if has_checksum:
            _exactly(file, 4)


def _exactly(file: IO[bytes], count: int) -> bytes:
    data = file.read(count)
    if len(data) != count:
        raise Torn("more bytes", "the end of the file inside a frame")
    return data


def _skip(file: IO[bytes], count: int, size_bytes: int) -> None:
    if file.seek(count, os.SEEK_CUR) > size_bytes:
        raise Torn("more bytes", "the end of the file inside a frame")


def _inspect_tar(file: IO[bytes], size_bytes: int) -> None:
    with tarfile.open(fileobj=file, mode="r:") as archive:
        for member in archive:
            if member.isreg() and member.offset_data + member.size > size_bytes:
                raise Torn(f"{member.size} bytes of {member.name!r}", "the end of the file inside them")
        end = archive.offset
    file.seek(end)
    if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise Torn("a block of zeros at the end", "something else")


def _inspect_zip(file: IO[bytes], size_bytes: int) -> None:
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            if member.header_offset + member.compress_size > size_bytes:
                raise Torn(f"{member.filename!r} within the file", "one that ends after it")
            if not member.flag_bits & 1:  # an encrypted one cannot be opened, and is there all the same
                archive.open(member).close()


def _inspect_checkpoint(file: IO[bytes], size_bytes: int) -> None:
    """PyTorch checkpoints are zip files; an older PyTorch file is none and passes."""
    start = file.read(4)
    if _ZIP_START.startswith(start):
        if len(start) < len(_ZIP_START):
            raise Torn("a checkpoint", f"{size_bytes} bytes")
        _inspect_zip(file, size_bytes)


def _inspect_bin(file: IO[bytes], size_bytes: int) -> None:
    """Anything can be in a .bin file, nothing too, and often it is a PyTorch checkpoint."""
    if size_bytes:
        _inspect_checkpoint(file, size_bytes)


def _inspect_npy(file: IO[bytes], size_bytes: int) -> None:
    """Source: NumPy Enhancement Proposal 1, "A Simple File Format for NumPy Arrays"."""
    magic = _exactly(file, 8)
    if magic[:6] != b"\x93NUMPY":
        raise Torn("the magic bytes of a .npy file", f"{magic[:6]!r}")
    width = 2 if magic[6] == 1 else 4
    header_bytes = int.from_bytes(_exactly(file, width), "little")
    header = ast.literal_eval(_exactly(file, header_bytes).decode("latin-1"))
    kind = header["descr"]
    if not isinstance(kind, str) or not kind[2:].isdigit() or kind[1] == "O":
        return
    item_bytes = int(kind[2:]) * (4 if kind[1] == "U" else 1)
    needed = 8 + width + header_bytes + item_bytes * math.prod(header["shape"])
    if size_bytes < needed:
        raise Torn(f"{needed} bytes, as the header says", f"{size_bytes} bytes")


_INSPECTORS: dict[str, Callable[[IO[bytes], int], None]] = {
    "safetensors": _inspect_safetensors,
    "json": _inspect_json,
    "jsonl": _inspect_jsonl,
    "arrow": _inspect_arrow,
    "parquet": _inspect_parquet,
    "gzip": _inspect_gzip,
    "bzip2": _inspect_bzip2,
    "xz": _inspect_xz,
    "zstd": _inspect_zstd,
    "tar": _inspect_tar,
    "zip": _inspect_zip,
    "checkpoint": _inspect_checkpoint,
    "bin": _inspect_bin,
    "npy": _inspect_npy,
}
