"""Data that is not good is found by one rule, with the figures that show why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from decamp.checks import CheckResult, applies, run_check
from decamp.rules import Check
from tests.unit.format_samples import (
    arrow_file,
    arrow_stream,
    arrow_table,
    parquet_file,
    safetensors_file,
)


def good(directory: Path, name: str, content: bytes, kind: str, **parameters: Any) -> CheckResult:
    path = directory / name
    path.write_bytes(content)
    return run_check(Check(kind, parameters), bytes(path))


FORMATS = {"arrow": arrow_file, "parquet": parquet_file}


@pytest.mark.parametrize("kind", ["arrow", "parquet", "stream"])
def test_a_dataset_whose_loss_masks_are_far_too_small_is_caught(tmp_path: Path, kind: str) -> None:
    """What began this project: every shard whole, every sample nearly empty."""
    write = {"arrow": arrow_file, "parquet": parquet_file, "stream": arrow_stream}[kind]
    kind = "arrow" if kind == "stream" else kind
    name = f"a.{kind}"
    healthy = arrow_table([[1.0] * 100 for _ in range(50)])
    broken = arrow_table([[1.0] * 3 + [0.0] * 97 for _ in range(50)])
    rule = {"column": "loss_mask", "min_mean_sum": 64}
    assert good(tmp_path, name, write(healthy), kind, **rule).passed
    result = good(tmp_path, name, write(broken), kind, **rule)
    assert not result.passed
    assert (result.expected, result.found) == ("mean_sum of loss_mask of at least 64", "3")
    assert result.measures["rows"] == 50
    assert result.measures["median"] == 3
    assert sum(item["rows"] for item in result.measures["histogram"]) == 50


TABLE = arrow_table([[1.0, 2.0], [3.0], None, []])
LINES = b'{"id": 1, "v": 2}\n{"id": 2, "v": 4.5}\n\n{"id": 3, "v": null}\n'


@pytest.mark.parametrize(
    ("parameters", "passed"),
    [
        ({"min_rows": 4}, True),
        ({"min_rows": 5}, False),
        ({"max_rows": 4}, True),
        ({"max_rows": 3}, False),
        ({"column": "loss_mask"}, True),
        ({"column": "none"}, False),
        ({"column": "loss_mask", "min_sum": 6}, True),
        ({"column": "loss_mask", "min_sum": 6.1}, False),
        ({"column": "loss_mask", "max_sum": 6}, True),
        ({"column": "loss_mask", "max_sum": 5.9}, False),
        ({"column": "loss_mask", "min_mean": 2}, True),
        ({"column": "loss_mask", "min_mean": 2.1}, False),
        ({"column": "loss_mask", "max_mean": 1.9}, False),
        ({"column": "loss_mask", "min_mean_sum": 2}, True),
        ({"column": "loss_mask", "min_mean_sum": 2.1}, False),
        ({"column": "loss_mask", "max_mean_sum": 1.9}, False),
        ({"column": "loss_mask", "max_null_fraction": 0.25}, True),
        ({"column": "loss_mask", "max_null_fraction": 0.2}, False),
    ],
)
@pytest.mark.parametrize("kind", FORMATS)
def test_limits_of_tables(tmp_path: Path, kind: str, parameters: dict[str, Any], passed: bool) -> None:
    result = good(tmp_path, f"a.{kind}", FORMATS[kind](TABLE), kind, **parameters)
    assert result.passed is passed, result


@pytest.mark.parametrize(
    ("parameters", "passed"),
    [
        ({}, True),
        ({"min_rows": 3}, True),
        ({"min_rows": 4}, False),
        ({"required": ["id", "v"]}, True),
        ({"required": ["id", "w"]}, False),
        ({"column": "v", "min_sum": 6.5}, True),
        ({"column": "v", "max_sum": 6}, False),
        ({"column": "w"}, False),
        ({"column": "v", "max_null_fraction": 0.3}, False),
    ],
)
def test_limits_of_lines(tmp_path: Path, parameters: dict[str, Any], passed: bool) -> None:
    result = good(tmp_path, "a.jsonl", LINES, "jsonl", **parameters)
    assert result.passed is passed, result


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ('{"v": NaN}', "finite numbers in v"),
        ('{"v": Infinity}', "finite numbers"),
        ('{"v": [1, NaN]}', "finite numbers"),
        ('{"v": [Infinity, -Infinity]}', "readable jsonl"),
        ('{"v": [1e308, 1e308]}', "readable jsonl"),
        ('{"v": "word"}', "readable jsonl"),
        ('{"v": [[1]]}', "readable jsonl"),
        ('{"v": {"a": 1}}', "readable jsonl"),
        ("[1]", "readable jsonl"),
        ("broken", "readable jsonl"),
    ],
)
def test_values_that_are_no_numbers_fail_the_check(tmp_path: Path, line: str, complaint: str) -> None:
    content = f'{{"v": 1}}\n{line}\n{{"v": 2}}\n'.encode()
    result = good(tmp_path, "a.jsonl", content, "jsonl", column="v")
    assert not result.passed
    assert complaint in result.expected


def test_nan_in_a_table_fails_the_check(tmp_path: Path) -> None:
    table = arrow_table([[1.0], [float("nan")]])
    for kind, write in FORMATS.items():
        assert not good(tmp_path, f"a.{kind}", write(table), kind, column="loss_mask", min_mean=0).passed


def test_a_text_column_fails_the_check(tmp_path: Path) -> None:
    table = pa.table({"loss_mask": ["a", "b"]})
    assert not good(tmp_path, "a.arrow", arrow_file(table), "arrow", column="loss_mask").passed


def test_a_torn_table_fails_its_rule_too(tmp_path: Path) -> None:
    for kind, write in FORMATS.items():
        assert not good(tmp_path, f"a.{kind}", write(TABLE)[:-9], kind, min_rows=1).passed


def test_fields_of_json(tmp_path: Path) -> None:
    assert good(tmp_path, "a.json", b'{"a": 1, "b": null}', "json", required=["a", "b"]).passed
    result = good(tmp_path, "a.json", b'{"a": 1}', "json", required=["a", "b"])
    assert (result.passed, result.found) == (False, "none named b")
    assert not good(tmp_path, "a.json", b"[]", "json", required=["a"]).passed
    assert good(tmp_path, "a.json", b"[]", "json").passed


def test_tensors_are_counted(tmp_path: Path) -> None:
    assert good(tmp_path, "a.safetensors", safetensors_file(), "safetensors", min_tensors=2).passed
    result = good(tmp_path, "a.safetensors", safetensors_file(), "safetensors", min_tensors=3)
    assert (result.passed, result.measures) == (False, {"tensors": 2})


def test_results_are_json(tmp_path: Path) -> None:
    result = good(tmp_path, "a.jsonl", LINES, "jsonl", column="v", min_sum=100)
    assert json.loads(json.dumps(result.document())) == result.document()
    assert result.document()["passed"] is False


@pytest.mark.parametrize(
    ("kind", "name", "expected"),
    [
        ("arrow", "a.arrow", True),
        ("arrow", "state.json", False),
        ("arrow", "shard-0", True),
        ("arrow", "a.custom", True),
        ("jsonl", "README.md", False),
        ("command", "README.md", True),
        ("jsonl", "a.ndjson", True),
    ],
)
def test_a_check_leaves_files_of_other_formats_alone(kind: str, name: str, expected: bool) -> None:
    assert applies(kind, b"/w/" + name.encode()) is expected
