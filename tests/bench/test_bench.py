"""The benchmark measures the command and its descendants, and judges its figures by the bars."""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path

import pytest

from bench.bars import judge, table
from bench.measure import measure
from bench.tools import TOOLS, Place, all_tools
from bench.workloads import _fill as fill
from bench.workloads import tree_totals

GRANDCHILD = """
import time
held = bytearray(70_000_000)
start = time.process_time()
while time.process_time() - start < 0.6: pass
"""
PARENT = f"import subprocess, sys; held = bytearray(50_000_000); subprocess.run([sys.executable, '-c', {GRANDCHILD!r}])"


def test_a_run_counts_its_descendants_and_not_its_parent(tmp_path: Path) -> None:
    held_here = bytearray(300_000_000)
    figures = measure([sys.executable, "-c", PARENT], dict(os.environ), tmp_path, 30)
    assert figures.returncode == 0 and held_here
    assert 0.6 <= figures.cpu_s < 3
    assert 120 < figures.peak_mb < 250


def test_a_run_over_its_limit_is_killed(tmp_path: Path) -> None:
    figures = measure(["sleep", "60"], dict(os.environ), tmp_path, 0.5)
    assert figures.returncode == -9 and figures.wall_s < 10


def test_a_failure_keeps_its_output(tmp_path: Path) -> None:
    figures = measure(["sh", "-c", "echo why >&2; exit 7"], dict(os.environ), tmp_path, 10)
    assert figures.returncode == 7 and figures.output == "why\n"


def figure(wall_s: float, cpu_s: float = 1.0, peak_mb: float = 100.0) -> dict[str, float]:
    return {"wall_s": wall_s, "cpu_s": cpu_s, "peak_mb": peak_mb}


@pytest.mark.parametrize(("wall_s", "met"), [(10.0, True), (10.1, False)])
def test_small_files_are_held_to_a_sixth_of_s5cmd(wall_s: float, met: bool) -> None:
    (bar,) = judge({"small": {"decamp": figure(wall_s), "s5cmd": figure(60), "rclone": figure(1)}})
    assert bar.met is met


def test_other_bars_take_the_best_peer_and_growth_counts_per_file() -> None:
    results = {
        "large": {"decamp": figure(10), "s5cmd": figure(20), "rclone": figure(8)},
        "growth_100k": {"decamp": figure(10)},
        "growth_1m": {"decamp": figure(121, peak_mb=251)},
    }
    assert [round(bar.reached, 2) for bar in judge(results)] == [1.25, 251.0, 1.21]
    assert not any(bar.met for bar in judge(results))
    assert "1.25" in table(results)


def test_every_tool_has_its_commands(tmp_path: Path) -> None:
    place = Place(tmp_path / "tree", "run-1", "http://127.0.0.1:1", tmp_path)
    tools = all_tools({name: tmp_path / name for name in TOOLS})
    for tool in tools.values():
        assert tool.upload(place) and tool.unchanged(place) and tool.restore(place, tmp_path / "back")
        assert all(str(value) for value in tool.environment(place).values())
    assert tools["decamp"].verify(place) and tools["s5cmd"].verify(place) is None


def test_trees_have_the_files_they_promise(tmp_path: Path) -> None:
    fill(tmp_path / "one", 250, 10, 90, ".txt", random.Random(1), fan=100)
    fill(tmp_path / "two", 250, 10, 90, ".txt", random.Random(1), fan=100)
    assert tree_totals(tmp_path / "one")[0] == 250 and tree_totals(tmp_path / "one") == tree_totals(tmp_path / "two")
    assert len({path.read_bytes() for path in (tmp_path / "one").rglob("*.txt")}) == 250
