"""Is data good? Rows are counted and a column is measured, so that a backup of broken data is found in time."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator
from typing import Any

from decamp.checks.result import CheckResult
from decamp.checks.wholeness import inspect_wholeness, is_about_data

_HISTOGRAM_BINS = 12


def inspect_goodness(kind: str, path: bytes, parameters: dict[str, Any]) -> CheckResult:
    """Returns whether the file is whole and within every limit of the parameters, with what was measured.

    Args:
        kind: jsonl, json, arrow, parquet or safetensors.
        path: the file.
        parameters: limits such as `min_rows`, or `column` with `min_mean_sum`; see docs/operations.md.
    """
    whole = inspect_wholeness(kind, path)
    if not whole.passed:
        return CheckResult(kind, False, whole.expected, whole.found)
    try:
        if kind == "safetensors":
            measures = {"tensors": _count_tensors(path)}
            broken = _beyond("tensors", measures["tensors"], parameters.get("min_tensors"), None)
            return _result(kind, [broken], measures)
        if kind == "json":
            with open(path, "rb") as file:
                missing = _missing_fields(json.load(file), parameters.get("required", []))
            return _result(kind, [missing], {})
        return _inspect_rows(kind, path, parameters)
    except Exception as error:  # readers of four formats raise what they like for bad data; it is bad data
        if isinstance(error, OSError) and not is_about_data(error):
            raise
        return CheckResult(kind, False, f"readable {kind}", " ".join(str(error).split())[:300])


def _result(kind: str, problems: list[tuple[str, str] | None], measures: dict[str, Any]) -> CheckResult:
    real = [problem for problem in problems if problem is not None]
    return CheckResult(
        kind, not real, "; ".join(expected for expected, _ in real), "; ".join(found for _, found in real), measures
    )


def _beyond(name: str, value: float, low: float | None, high: float | None) -> tuple[str, str] | None:
    if low is not None and not value >= low:
        return f"{name} of at least {low:g}", f"{value:g}"
    if high is not None and not value <= high:
        return f"{name} of at most {high:g}", f"{value:g}"
    return None


def _count_tensors(path: bytes) -> int:
    with open(path, "rb") as file:
        header = json.loads(file.read(int.from_bytes(file.read(8), "little")))
    return sum(name != "__metadata__" for name in header)


def _missing_fields(value: Any, required: list[str]) -> tuple[str, str] | None:
    missing = [name for name in required if not isinstance(value, dict) or name not in value]
    return (f"fields {', '.join(required)}", f"none named {', '.join(missing)}") if missing else None


def _inspect_rows(kind: str, path: bytes, parameters: dict[str, Any]) -> CheckResult:
    """Measures a table row by row: bounded memory whatever its length (the sums of the rows are kept as floats)."""
    column = parameters.get("column")
    required = parameters.get("required", [])
    rows = nulls = elements = 0
    total = 0.0
    sums: list[float] = []
    problem: tuple[str, str] | None = None
    for number, values in enumerate(_batches(kind, path, column, required)):
        if isinstance(values, int):
            rows += values
            continue
        rows += len(values)
        for value in values:
            if value is None:
                nulls += 1
                continue
            items = value if isinstance(value, list) else [value]
            numbers = [float(item) for item in items if item is not None]
            elements += len(numbers)
            row_sum = math.fsum(numbers)
            if not math.isfinite(row_sum):
                problem = problem or (f"finite numbers in {column}", f"{row_sum} in batch {number}")
                continue
            total += row_sum
            sums.append(row_sum)
    measures: dict[str, Any] = {"rows": rows}
    problems = [problem, _beyond("rows", rows, parameters.get("min_rows"), parameters.get("max_rows"))]
    if column is not None:
        mean = total / elements if elements else 0.0
        mean_sum = total / len(sums) if sums else 0.0
        null_fraction = nulls / rows if rows else 0.0
        measures.update(
            column=column, mean=mean, mean_sum=mean_sum, sum=total, null_fraction=null_fraction, **_distribution(sums)
        )
        for name, value in (("mean", mean), ("mean_sum", mean_sum), ("sum", total), ("null_fraction", null_fraction)):
            problems.append(
                _beyond(f"{name} of {column}", value, parameters.get(f"min_{name}"), parameters.get(f"max_{name}"))
            )
    return _result(kind, problems, measures)


def _batches(kind: str, path: bytes, column: str | None, required: list[str]) -> Iterator[list[Any] | int]:
    """Yields a column's values batch by batch, or just the batch's rows where no column is asked for."""
    if kind == "jsonl":
        yield from _jsonl_batches(path, column, required)
        return
    import pyarrow as pa

    if kind == "parquet":
        import pyarrow.parquet as parquet

        file = parquet.ParquetFile(os.fsdecode(path))
        _require_column(column, file.schema_arrow.names)
        if column is None:
            yield int(file.metadata.num_rows)
            return
        for batch in file.iter_batches(columns=[column]):
            yield batch.column(0).to_pylist()
        return
    with open(path, "rb") as source:
        is_file = source.read(6) == b"ARROW1"
        source.seek(0)
        if is_file:
            reader = pa.ipc.open_file(source)
            _require_column(column, reader.schema.names)
            batches = (reader.get_batch(number) for number in range(reader.num_record_batches))
        else:
            stream = pa.ipc.open_stream(source)
            _require_column(column, stream.schema.names)
            batches = iter(stream)
        for batch in batches:
            yield batch.num_rows if column is None else batch.column(column).to_pylist()


def _require_column(column: str | None, names: list[str]) -> None:
    if column is not None and column not in names:
        raise ValueError(f"no column {column}; there are {', '.join(names)}")


def _jsonl_batches(path: bytes, column: str | None, required: list[str]) -> Iterator[list[Any] | int]:
    with open(path, "rb") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise ValueError(f"line {number} is no JSON: {error}") from error
            missing = _missing_fields(row, required)
            if missing is not None:
                raise ValueError(f"line {number} has {missing[1]}")
            if column is None:
                yield 1
            elif not isinstance(row, dict) or column not in row:
                raise ValueError(f"line {number} has no field {column}")
            else:
                yield [row[column]]


def _distribution(sums: list[float]) -> dict[str, Any]:
    """The spread of the rows' sums: what a person needs to see that a mean hides empty samples."""
    if not sums:
        return {"histogram": []}
    ordered = sorted(sums)
    low, high = ordered[0], ordered[-1]
    width = (high - low) / _HISTOGRAM_BINS or 1.0
    counts = [0] * (_HISTOGRAM_BINS if high > low else 1)
    for value in ordered:
        counts[min(int((value - low) / width), len(counts) - 1)] += 1
    histogram = [
        {"from": low + width * number, "to": min(low + width * (number + 1), high), "rows": count}
        for number, count in enumerate(counts)
    ]
    return {
        "min": low,
        "p10": ordered[len(ordered) // 10],
        "median": ordered[len(ordered) // 2],
        "p90": ordered[len(ordered) * 9 // 10],
        "max": high,
        "zeros": ordered.count(0.0),
        "histogram": histogram,
    }
