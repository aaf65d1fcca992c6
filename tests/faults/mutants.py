"""Breaks the engine in known ways and shows that the cases notice: `python -m tests.faults.mutants [NAME ...]`.

A mutant is a change to the engine's source, made as the module is imported; the files stay as they are. The
table says which case caught it, by what, and after how many. A mutant that no case catches ends the command with 1;
so does one whose source is not there any more, because then it shows nothing.
"""

from __future__ import annotations

import argparse
import importlib.abc
import importlib.machinery
import importlib.util
import os
import shutil
import signal
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.faults.defects import MUTANTS, Mutant

GUARDED_CASES = 12


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the changed source; neither reads nor writes compiled files."""

    def __init__(self, mutants: list[Mutant], module: str, path: str) -> None:
        super().__init__(module, path)
        self._mutants = mutants

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        text = Path(path).read_text()
        for mutant in self._mutants:
            text = mutant.apply(text)
        return compile(text, path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutants: Sequence[Mutant]) -> None:
        self._mutants: dict[str, list[Mutant]] = {}
        for mutant in mutants:
            self._mutants.setdefault(mutant.place(), []).append(mutant)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if fullname not in self._mutants:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        if found is None or found.origin is None:
            return None
        loader = _Loader(self._mutants[fullname], fullname, found.origin)
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=loader)


def install(names: Sequence[str]) -> None:
    """Makes this process import the engine with the named defects; to be called before the engine is imported."""
    sys.meta_path.insert(0, _Finder([mutant for name in names for mutant in MUTANTS[name].together()]))


@dataclass(frozen=True)
class Caught:
    """How a mutant fared: the cases that were run, and the first problem, or what else guards."""

    mutant: str
    cases: int
    by: str
    problem: str

    def __str__(self) -> str:
        by = self.by or ("guarded twice" if self.problem else "NOT CAUGHT")
        return f"{self.mutant:<42} {by:<34} {self.cases:>5}  {self.problem[:110]}"


def hunt(mutant: Mutant, port: int, base: Path, seeds: int, jobs: int) -> Caught:
    """Runs the mutant's directed plans, then random ones, until one shows that a promise is broken."""
    from tests.faults.directed import directed_plans
    from tests.faults.plans import Plan, make_plan
    from tests.faults.soak import run_plans

    for part in mutant.together():
        part.place()
    tried = 0
    names: dict[int, str] = {}
    directed: list[Plan] = []
    for name in mutant.directed:
        plans = directed_plans(name)
        names |= {plan.seed: name for plan in plans}
        # A spread over the dangerous moments first, and then the moments between them.
        spread = [plan for start in (0, 4, 2, 6, 1, 3, 5, 7) for plan in plans[start::8]]
        directed += spread[: GUARDED_CASES // len(mutant.directed)] if mutant.guarded else spread
    # Random cases cannot show what is guarded twice either, so they are not spent on it.
    for chosen in (directed, [make_plan(seed) for seed in range(1, 1 if mutant.guarded else seeds + 1)]):
        if not chosen:
            continue
        summary = run_plans(chosen, port, base, jobs, [mutant.name], lambda found, _: bool(found.broken))
        tried += summary.cases
        for result in summary.wrong:
            if result.directory is not None:
                shutil.rmtree(result.directory, ignore_errors=True)
        if summary.broken:
            result = summary.broken[0]
            return Caught(mutant.name, tried, names.get(result.seed, f"random seed {result.seed}"), result.problems[0])
    return Caught(mutant.name, tried, "", mutant.guarded)


def main() -> int:
    from tests.faults.cases import BUCKET
    from tests.faults.seaweed import SeaweedServer
    from tests.faults.soak import make_base

    parser = argparse.ArgumentParser(prog="python -m tests.faults.mutants", description="shows that defects are caught")
    parser.add_argument("names", nargs="*", help="mutants; all of them when none is named")
    parser.add_argument("--seeds", type=int, default=150, help="random cases at most for a mutant")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2)
    arguments = parser.parse_args()
    unknown: list[Any] = [name for name in arguments.names if name not in MUTANTS]
    if unknown:
        parser.error(f"unknown: {unknown}; known: {', '.join(MUTANTS)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that servers and directories go
    base = make_base()
    caught_count = missed = 0
    print(f"{'mutant':<42} {'caught by':<34} {'cases':>5}  problem")
    with SeaweedServer() as server:
        server.client().create_bucket(Bucket=BUCKET)
        for name in arguments.names or MUTANTS:
            caught = hunt(MUTANTS[name], server.port, base, arguments.seeds, arguments.jobs)
            caught_count += bool(caught.by)
            missed += not (caught.by or caught.problem)
            print(caught, flush=True)
    shutil.rmtree(base, ignore_errors=True)
    guarded = len(arguments.names or MUTANTS) - caught_count - missed
    print(f"{caught_count} caught, {guarded} guarded twice, {missed} not caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
