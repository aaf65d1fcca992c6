"""Breaks the engine in known ways and shows that the cases notice: `python -m tests.faults.mutants [NAME ...]`.

A mutant is a change to the source of one module, made as the module is imported; the files stay as they are. The
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
import sys
import types
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent.parent


@dataclass(frozen=True)
class Mutant:
    """A defect: in `module`, `old` (found exactly once) becomes `new`.

    Attributes:
        directed: names of the directed plans that are about this defect; tried before the random ones.
        also: names of mutants that come with it: the other guards of something that is guarded more than once.
    """

    name: str
    what: str
    module: str
    old: str
    new: str
    directed: tuple[str, ...] = ()
    also: tuple[str, ...] = ()

    def apply(self, text: str) -> str:
        """The module's source with the defect in it.

        Raises:
            LookupError: the place is not there, or more than once.
        """
        if text.count(self.old) != 1:
            raise LookupError(f"mutant {self.name}: {text.count(self.old)} places in {self.module}, expected 1")
        return text.replace(self.old, self.new)

    def check(self) -> None:
        """Raises LookupError unless the defect, and those that come with it, can be made in the engine as it is."""
        for mutant in (self, *(MUTANTS[name] for name in self.also)):
            mutant.apply((REPOSITORY / f"{mutant.module.replace('.', '/')}.py").read_text())


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the changed source; neither reads nor writes compiled files."""

    def __init__(self, mutants: list[Mutant], path: str) -> None:
        super().__init__(mutants[0].module, path)
        self._mutants = mutants

    def get_code(self, fullname: str) -> types.CodeType:
        path = self.get_filename(fullname)
        text = Path(path).read_text()
        for mutant in self._mutants:
            text = mutant.apply(text)
        return compile(text, path, "exec")


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, mutants: Sequence[Mutant]) -> None:
        self._mutants = mutants

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, _: types.ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        mutants = [mutant for mutant in self._mutants if mutant.module == fullname]
        if not mutants:
            return None
        found = importlib.machinery.PathFinder.find_spec(fullname, path)
        if found is None or found.origin is None:
            return None
        return importlib.util.spec_from_file_location(fullname, found.origin, loader=_Loader(mutants, found.origin))


def install(names: Sequence[str]) -> None:
    """Makes this process import the engine with the named defects; to be called before the engine is imported."""
    chosen = [MUTANTS[name] for name in names]
    sys.meta_path.insert(0, _Finder([*chosen, *(MUTANTS[name] for mutant in chosen for name in mutant.also)]))


_ALL = [
    Mutant(
        "no closing look",
        "the walk after the copy is not compared with the one before",
        "decamp.evacuate",
        "if closing.sha256 != census.sha256 or closing.findings != census.findings:",
        "if False:",
        ("change at every request",),
    ),
    Mutant(
        "no look at the open file",
        "a file's identity, size and times are not checked before and after it is read",
        "decamp.reading",
        "        if (status.st_ctime_ns != entry.ctime_ns or status.st_mtime_ns != entry.mtime_ns\n"
        "                or status.st_size != entry.size or inode != entry.ino):\n"
        "            raise EntryChanged",
        "        return None",
        ("change at every request",),
    ),
    Mutant(
        "census by size and mtime",
        "a change is one of size or mtime; ctime is not looked at",
        "decamp.census",
        "status.st_gid, status.st_mtime_ns, status.st_ctime_ns, status.st_ino))",
        "status.st_gid, status.st_mtime_ns, 0, 0))",
        ("unseen change at every request",),
    ),
    Mutant(
        "rerun by size and mtime",
        "a rerun takes a file for unchanged when size and mtime are",
        "decamp.reconcile",
        "and known[7] == status.st_ctime_ns and known[1] == kind",
        "and known[1] == kind",
        ("unseen change between runs",),
    ),
    Mutant(
        "no checksum is sent",
        "uploads carry no checksum although the store was seen to check it",
        "decamp.store.client",
        "Body=body,\n                                            ChecksumSHA256=base64_digest(digest))",
        "Body=body, **({'ChecksumSHA256': base64_digest(digest)} if '/.probe/' in key else {}))",
        ("corrupted uploads",),
    ),
    Mutant(
        "the store is taken at its word",
        "what an untrustworthy store took is not read back",
        "decamp.sending",
        "        if not is_attested:\n            found, found_size",
        "        if False:\n            found, found_size",
        ("careless store",),
    ),
    Mutant(
        "an entry is dropped from the census",
        "the walk leaves out one name in every directory of four or more",
        "decamp.census",
        "        names.sort()\n        return names",
        "        names.sort()\n        return names[:-1] if len(names) > 3 else names",
        ("plain",),
    ),
    Mutant(
        "writers are ignored",
        "nobody looks for processes that have files open for writing",
        "decamp.evacuate",
        "        writers = find_writers()\n",
        "        from decamp.host import Writers\n        writers = Writers({}, 0)\n",
        ("held open", "mapped"),
    ),
    Mutant(
        "mappings are ignored",
        "a shared mapping whose descriptor is closed is nobody's business",
        "decamp.host",
        "            _add_mappings(name, found)\n",
        "",
        ("mapped",),
    ),
    Mutant(
        "a read error is ignored",
        "a file that cannot be read is named nowhere",
        "decamp.evacuate",
        'for entry in self._index.entries(f"state={int(State.UNREADABLE)}")]',
        "for entry in ()]",
        ("unreadable",),
    ),
    Mutant(
        "no wait for the tick",
        "a file is read in the same tick of the clock in which the walk saw it",
        "decamp.evacuate",
        "        time.sleep(_COARSE_TICK_S if coarse else _TICK_S)",
        "        time.sleep(0)",
        ("same second",),
    ),
    Mutant(
        "a stale index is trusted",
        "an index of another time is not held against the bag",
        "decamp.memory",
        "    if receipt is not None and index.fact(RECEIPT_FACT) == receipt.sha256:\n        return receipt",
        "    if receipt is not None and index.fact(RECEIPT_FACT) is not None:\n        return receipt",
        ("old state",),
    ),
    Mutant(
        "the listing is not held against the index",
        "what the index says is in the store is in the store",
        "decamp.agreement",
        "            if record.url is not None or not _is_same(store, index, record, item):",
        "            if False:",
        ("tampered between runs",),
    ),
    Mutant(
        "a missing object is not missed",
        "an object that the listing does not show is taken to be there",
        "decamp.agreement",
        "    if stored is None or not _holds(record, stored):\n        outcome.dropped",
        "    if False:\n        outcome.dropped",
        ("emptied between runs", "tampered between runs", "one lost upload"),
    ),
    Mutant(
        "a cut listing is complete",
        "a page that promises another one without a token for it ends the listing",
        "decamp.store.client",
        "            if not token or token in tokens:\n                raise",
        "            if not token:\n                return\n            if token in tokens:\n                raise",
        ("forgotten tokens",),
    ),
    Mutant(
        "links are followed",
        "files are opened through symlinks, and their identity is not checked",
        "decamp.reading",
        "os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)",
        "os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)",
        ("link at every request",),
    ),
    Mutant(
        "the receipt comes early",
        "the receipt is written while files are still pending",
        "decamp.evacuate",
        "                if self._pending()[0] == 0:\n",
        "                if True:\n",
        ("change at every request",),
    ),
    Mutant(
        "the old receipt stays",
        "the receipt of the last run stays in place while the bag is changed",
        "decamp.evacuate",
        "            self._store.delete(RECEIPT)\n        has_earlier",
        "            pass\n        has_earlier",
        ("killed while changing",),
    ),
]
MUTANTS = {mutant.name: mutant for mutant in _ALL}


@dataclass(frozen=True)
class Caught:
    """How a mutant fared: the cases that were run, and the first problem, or why there is none."""

    mutant: str
    cases: int
    by: str
    problem: str

    def __str__(self) -> str:
        return f"{self.mutant:<42} {self.by or 'NOT CAUGHT':<34} {self.cases:>5}  {self.problem[:110]}"


def hunt(mutant: Mutant, port: int, base: Path, seeds: int, jobs: int) -> Caught:
    """Runs the mutant's directed plans, then random ones, until one shows that a promise is broken."""
    from tests.faults.directed import directed_plans
    from tests.faults.plans import make_plan
    from tests.faults.soak import run_plans

    mutant.check()
    tried = 0
    names = {}
    directed = []
    for name in mutant.directed:
        for plan in directed_plans(name):
            names[plan.seed] = name
            directed.append(plan)
    for plans in (directed, [make_plan(seed) for seed in range(1, seeds + 1)]):
        if not plans:
            continue
        summary = run_plans(plans, port, base, jobs, [mutant.name], lambda found, _: bool(found.broken))
        tried += summary.cases
        for result in summary.wrong:
            if result.directory is not None:
                shutil.rmtree(result.directory, ignore_errors=True)
        if summary.broken:
            result = summary.broken[0]
            return Caught(mutant.name, tried, names.get(result.seed, f"random seed {result.seed}"), result.problems[0])
    return Caught(mutant.name, tried, "", mutant.what)


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
    base = make_base()
    missed = 0
    print(f"{'mutant':<42} {'caught by':<34} {'cases':>5}  problem")
    with SeaweedServer() as server:
        server.client().create_bucket(Bucket=BUCKET)
        for name in arguments.names or MUTANTS:
            caught = hunt(MUTANTS[name], server.port, base, arguments.seeds, arguments.jobs)
            missed += not caught.by
            print(caught, flush=True)
    shutil.rmtree(base, ignore_errors=True)
    print(f"{len(arguments.names or MUTANTS) - missed} caught, {missed} not caught")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
