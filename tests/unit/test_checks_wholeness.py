"""A file that is cut off anywhere is found, and no nonsense in a file ends the run."""

from __future__ import annotations

import gzip
import os
import random
import stat
from pathlib import Path

import pytest

from decamp.checks import CheckResult, check_whole
from tests.unit.format_samples import (
    WHOLE,
    safetensors_file,
    truncated_safetensors_header,
    zip_file,
)


def whole(directory: Path, name: str, content: bytes) -> CheckResult | None:
    path = directory / name
    path.write_bytes(content)
    return check_whole(bytes(path))


@pytest.mark.parametrize("name", WHOLE)
def test_a_whole_file_passes(tmp_path: Path, name: str) -> None:
    assert WHOLE[name]
    result = whole(tmp_path, name, WHOLE[name])
    assert result is not None
    assert result.passed, result
    assert result.kind.startswith("whole:")


@pytest.mark.parametrize("name", sorted(set(WHOLE) - {"a.jsonl"}))
def test_a_file_that_is_cut_off_anywhere_is_found(tmp_path: Path, name: str) -> None:
    content = WHOLE[name]
    lengths = {*range(min(len(content), 40)), *range(0, len(content), max(len(content) // 60, 1))}
    lengths |= {len(content) - left for left in range(1, 12)} | set(range(0, len(content), 512))
    passed = [kept for kept in sorted(lengths) if whole(tmp_path, name, content[:kept]).passed]  # type: ignore[union-attr]
    assert passed == []


def test_a_torn_last_line_is_found(tmp_path: Path) -> None:
    content = WHOLE["a.jsonl"]
    for kept in (*range(100), *range(100, len(content), 7)):
        result = whole(tmp_path, "a.jsonl", content[:kept])
        is_whole = content[:kept].endswith((b"\n", b"}")) or not kept
        assert result is not None
        assert result.passed is is_whole, (kept, result)


@pytest.mark.parametrize(
    ("content", "passed"),
    [
        (b"", True),
        (b"\n", True),
        (b"1\n", True),
        (b"1", False),
        (b"1\n2\n", True),
        (b'"a"', True),
        (b"true\n", True),
        (b"tru", False),
        (b"{}\n" + bytes(4096), False),
        (b"{}\r\n", True),
        (b"not json\n{}\n", True),
        (b"{}\n\n", True),
        (b'{"a": "' + b"x" * 300_000 + b'"}\n', True),
        (b'{"a": "' + b"x" * 300_000, False),
        (b"{}\nnull", True),
    ],
)
def test_lines_of_json(tmp_path: Path, content: bytes, passed: bool) -> None:
    result = whole(tmp_path, "a.jsonl", content)
    assert result is not None
    assert result.passed is passed, result


def test_a_tensor_file_that_grew_is_found(tmp_path: Path) -> None:
    result = whole(tmp_path, "a.safetensors", safetensors_file() + b"x")
    assert result is not None
    assert not result.passed
    assert (result.expected, result.found) == (
        f"{len(safetensors_file())} bytes, as the header says", f"{len(safetensors_file()) + 1} bytes",
    )  # fmt: skip


BROKEN = {
    "a.safetensors": [
        b"\xff" * 8,
        truncated_safetensors_header([]),
        truncated_safetensors_header({"a": {}}),
        truncated_safetensors_header({"a": 3}),
        truncated_safetensors_header({"a": {"data_offsets": ["x", "y"]}}),
        truncated_safetensors_header(None),
        b"\x04\0\0\0\0\0\0\0\xff\xfe\xff\xff",
    ],
    "a.json": [b"[" * 200_000, b"{'a': 1}", b"\xff", b"\0"],
    "a.npy": [
        b"\x93NUMPY\x01\x00\x05\x00{}   ",
        b"\x93NUMPY\x01\x00\x05\x00{{{{{",
        b"\x93NUMPY\x01\x00\x01\x00(",
        b"\x93NUMPY\x01\x00\x30\x00" + b"{'descr': '<f4', 'shape': ['x'], 'f': 1}".ljust(48),
        b"no array",
    ],
    "a.parquet": [b"PAR1" + bytes(100) + b"PAR1", b"PAR1PAR1PAR1"],
    "a.arrow": [b"ARROW1\0\0ARROW1", b"ARROW1" + b"\xff" * 100 + b"ARROW1", b"\xff\xff\xff\xff\0\0\0\0" * 2],
    "a.gz": [gzip.compress(b"x") + b"junk", b"\x1f\x8b" + bytes(30), b"text"],
    "a.zst": [b"\x28\xb5\x2f\xfd" + b"\xff" * 20, b"text", b"\x28\xb5\x2f\xfd\x00\x00\x06\0\0"],
    "a.tar": [b"x" * 512, b"x" * 2048],
    "a.zip": [b"PK\x03\x04" + bytes(100)],
}


@pytest.mark.parametrize(
    ("name", "number"), [(name, number) for name, items in BROKEN.items() for number in range(len(items))]
)
def test_nonsense_is_found_and_ends_nothing(tmp_path: Path, name: str, number: int) -> None:
    result = whole(tmp_path, name, BROKEN[name][number])
    assert result is not None
    assert not result.passed
    assert result.expected
    assert result.found


@pytest.mark.parametrize("name", WHOLE)
def test_flipped_bytes_end_nothing(tmp_path: Path, name: str) -> None:
    rng = random.Random(name)
    for _ in range(60):
        content = bytearray(WHOLE[name])
        for _ in range(rng.choice((1, 1, 3, 20))):
            content[rng.choice((rng.randrange(len(content)), rng.randrange(min(len(content), 80))))] = rng.randrange(
                256
            )
        assert isinstance(whole(tmp_path, name, bytes(content)), CheckResult)


def test_zip_files_that_cannot_be_opened_here_are_not_torn(tmp_path: Path) -> None:
    content = bytearray(zip_file({"x": b"secret"}))
    central = content.index(b"PK\x01\x02")
    content[6] |= 1  # the encryption flags of the local and the central header
    content[central + 8] |= 1
    result = whole(tmp_path, "a.zip", bytes(content))
    assert result is not None
    assert result.passed, result


@pytest.mark.parametrize("name", ["a.bin", "model.pt", "x.ckpt", "w.pth"])
def test_checkpoints_that_are_no_zip_files_pass(tmp_path: Path, name: str) -> None:
    result = whole(tmp_path, name, b"\x80\x02some older format")
    assert result is not None
    assert result.passed


def test_an_empty_file_can_be_binary_data_and_no_checkpoint(tmp_path: Path) -> None:
    told = {name: whole(tmp_path, name, b"") for name in ("a.bin", "a.pt", "a.pth", "a.ckpt", "a.zip", "a.npz")}
    assert [name for name, result in told.items() if result is not None and result.passed] == ["a.bin"]


@pytest.mark.parametrize("name", ["README.md", "a.log", "noext", ".json", "a.py", "x.json.bak", "a.tmp"])
def test_formats_that_are_not_known_are_not_checked(tmp_path: Path, name: str) -> None:
    assert whole(tmp_path, name, b"\xff{") is None


def test_names_are_bytes_and_case_does_not_matter(tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/\xff\n.JSON"
    Path(os.fsdecode(path)).write_bytes(b"{")
    result = check_whole(path)
    assert result is not None
    assert not result.passed


def test_a_fifo_that_takes_the_name_hangs_nothing(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.json")
    assert stat.S_ISFIFO((tmp_path / "a.json").lstat().st_mode)
    result = check_whole(bytes(tmp_path / "a.json"))
    assert result is not None
    assert not result.passed


def test_a_file_that_cannot_be_read_is_an_error_not_a_result(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        check_whole(bytes(tmp_path / "none.json"))
