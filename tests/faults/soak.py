"""Runs many random cases: `python -m tests.faults.soak --n 10000 --seed 1`; exits with 1 when a promise was broken.

Progress goes to stderr, a line every few seconds; the closing summary to stdout. A case that went wrong is printed
with its seed, its directory (tree, spec, state, log of every request) is kept, and `--only SEED` runs it alone.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import queue
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from tests.faults.cases import BUCKET, Case, Result, describe
from tests.faults.directed import ALL, directed_plans, plan_of
from tests.faults.engine_process import Engine
from tests.faults.plans import Plan
from tests.faults.proxy import FaultProxy
from tests.faults.seaweed import S3Server, SeaweedServer

CASE_TIMEOUT_S = 900
REPORT_EVERY_S = 5.0
JobQueue: TypeAlias = "multiprocessing.Queue[Any]"


@dataclass
class Summary:
    """What many cases showed together."""

    cases: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    wrong: list[Result] = field(default_factory=list)
    seconds: float = 0.0

    def add(self, result: Result) -> None:
        self.cases += 1
        self.verdicts.update(result.verdicts)
        self.faults.update(result.faults)
        if result.problems or result.stuck:
            self.wrong.append(result)

    @property
    def false_safe(self) -> int:
        return sum(result.false_safe for result in self.wrong)

    @property
    def broken(self) -> list[Result]:
        """Cases in which a promise was broken, SAFE or not."""
        return [result for result in self.wrong if result.problems]

    def __str__(self) -> str:
        runs = sum(self.verdicts.values())
        stuck = sum(bool(result.stuck) for result in self.wrong)
        kinds = Counter(text.split(":")[0] for result in self.wrong for text in result.problems)
        return "\n".join(
            [
                f"{self.cases} cases in {self.seconds:.0f} s, {runs} evacuations, SAFE: {self.verdicts['SAFE']}",
                f"false SAFE: {self.false_safe}; other broken promises: {len(self.broken) - self.false_safe}; "
                f"NOT SAFE without need: {stuck}",
                f"problems by kind: {dict(kinds)}",
                f"ends of runs: {dict(self.verdicts.most_common())}",
                f"faults that struck: {dict(self.faults.most_common())}",
            ]
        )


def _work(port: int, base: str, mutants: Sequence[str], seeds: JobQueue, results: JobQueue) -> None:
    """One worker: a proxy and an engine of its own, cases until there are no more."""
    # Ended early it still has mounts to take down, and an engine to stop.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    server = S3Server(port)
    with FaultProxy(port) as proxy, Engine(mutants) as engine:
        while (seed := seeds.get()) is not None:
            try:
                result = Case(plan_of(seed), server, proxy, engine, Path(base)).run()
            except Exception:  # a broken case must not end the others, and is told like a finding
                result = Result(seed, [f"HARNESS: {traceback.format_exc()}"])
            results.put(result)


def run_plans(
    plans: Sequence[Plan],
    port: int,
    base: Path,
    jobs: int = 2,
    mutants: Sequence[str] = (),
    report: Callable[[Summary, Result], bool | None] | None = None,
) -> Summary:
    """Carries the plans out in `jobs` processes against the store at a port; ends early when `report` returns True."""
    context = multiprocessing.get_context("spawn")
    waiting: JobQueue = context.Queue()
    results: JobQueue = context.Queue()
    for seed in [*(plan.seed for plan in plans), *[None] * jobs]:
        waiting.put(seed)
    arguments = (port, str(base), tuple(mutants), waiting, results)
    workers = [context.Process(target=_work, args=arguments, daemon=True) for _ in range(jobs)]
    summary, started = Summary(), time.monotonic()
    for worker in workers:
        worker.start()
    try:
        while summary.cases < len(plans):
            result = _next(results, workers)
            summary.add(result)
            if report is not None and report(summary, result):
                break
    finally:
        for worker in workers:
            worker.join(timeout=5 if summary.cases == len(plans) else 0)
            if worker.is_alive():
                worker.terminate()
                worker.join(timeout=30)
            if worker.is_alive():
                worker.kill()  # its store is gone, say, in the middle of a case
                worker.join(timeout=5)
    summary.seconds = time.monotonic() - started
    return summary


def _next(results: JobQueue, workers: Sequence[Any]) -> Result:
    for _ in range(CASE_TIMEOUT_S):
        with contextlib.suppress(queue.Empty):
            result: Result = results.get(timeout=1)
            return result
        if not any(worker.is_alive() for worker in workers):
            raise RuntimeError("the workers have ended before their work has")
    raise TimeoutError(f"no case ended within {CASE_TIMEOUT_S} s")


def make_base(directory: str = "") -> Path:
    """A directory for cases that engines running as another user can reach as well."""
    base = Path(directory or tempfile.mkdtemp(prefix="decamp-faults-")).resolve()
    base.mkdir(parents=True, exist_ok=True)
    base.chmod(0o755)
    return base


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.faults.soak", description="random cases against the engine")
    parser.add_argument("--n", type=int, default=1000, help="number of cases")
    parser.add_argument("--seed", type=int, default=1, help="seed of the first case; the others follow")
    parser.add_argument("--only", type=int, help="run the case of this seed alone and keep its directory")
    parser.add_argument(
        "--directed", choices=["all", *ALL], help="the cases made for one danger instead of random ones"
    )
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="cases at the same time")
    parser.add_argument("--directory", default="", help="where cases that went wrong are kept")
    parser.add_argument("--mutant", action="append", default=[], help="name of a defect that the engine is to have")
    arguments = parser.parse_args()
    seeds = [arguments.only] if arguments.only is not None else range(arguments.seed, arguments.seed + arguments.n)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and directories go
    base = make_base(arguments.directory)
    told = 0.0
    plans: list[Plan] = []

    def report(summary: Summary, result: Result) -> None:
        nonlocal told
        if result.problems or result.stuck:
            print(describe(result), file=sys.stderr, flush=True)
        if time.monotonic() - told > REPORT_EVERY_S:
            told = time.monotonic()
            counts = f"{summary.verdicts['SAFE']} SAFE, {summary.false_safe} false"
            print(f"{summary.cases}/{len(plans)} cases, {counts}", file=sys.stderr, flush=True)

    with SeaweedServer() as server:
        server.client().create_bucket(Bucket=BUCKET)
        plans = [plan_of(seed) for seed in seeds]
        if arguments.directed:
            names = list(ALL) if arguments.directed == "all" else [arguments.directed]
            plans = [plan for name in names for plan in directed_plans(name)]
        jobs = max(1, min(arguments.jobs, len(plans)))
        summary = run_plans(plans, server.port, base, jobs, arguments.mutant, report)
    print(summary)
    if not summary.wrong:
        shutil.rmtree(base, ignore_errors=True)
    else:
        (base / "summary.json").write_text(json.dumps([result.seed for result in summary.wrong]))
    return 1 if summary.broken else 0


if __name__ == "__main__":
    sys.exit(main())
