"""SAFE is never false: strange trees, troubled stores, kills and writers, and a restore to judge every SAFE.

The seeds are fixed; `make soak N=10000` goes further, and `python -m tests.faults.soak --only SEED` runs one again.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.cases import describe
from tests.faults.directed import ALL, directed_plans
from tests.faults.plans import Plan, make_plan
from tests.faults.seaweed import SeaweedServer
from tests.faults.soak import Summary, make_base, run_plans

CASES = int(os.environ.get("FAULT_CASES") or 120)
JOBS = min(4, os.cpu_count() or 2)


@pytest.fixture(scope="module")
def base() -> Iterator[Path]:
    """Where cases leave what went wrong; kept when anything is in it, because that is what one looks at then."""
    directory = make_base()
    yield directory
    if not any(directory.iterdir()):
        shutil.rmtree(directory)


def judge(summary: Summary) -> None:
    print(summary)
    assert not summary.wrong, "\n".join([str(summary), *map(describe, summary.wrong)])


def test_random_cases(seaweed: SeaweedServer, base: Path) -> None:
    summary = run_plans([make_plan(seed) for seed in range(1, CASES + 1)], seaweed.port, base, JOBS)
    judge(summary)
    # A test in which nothing comes to SAFE, or no fault strikes, shows nothing.
    assert summary.verdicts["SAFE"] >= CASES // 2
    assert len(summary.faults) >= 20 and min(summary.verdicts["exit -9"], summary.verdicts["exit 3"]) > CASES // 20


@pytest.mark.parametrize("name", ALL)
def test_directed_cases(seaweed: SeaweedServer, base: Path, name: str) -> None:
    plans: list[Plan] = directed_plans(name)
    # All of them are run by `python -m tests.faults.soak --directed all`; here a spread of each kind.
    chosen = plans[:: max(1, len(plans) // 4)]
    judge(run_plans(chosen, seaweed.port, base, min(JOBS, len(chosen))))


def test_the_same_seed_makes_the_same_plan() -> None:
    for seed in range(50):
        assert repr(make_plan(seed)) == repr(make_plan(seed))
    assert len({repr(make_plan(seed)) for seed in range(50)}) == 50
