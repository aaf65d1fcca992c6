"""The cases notice when the engine is broken: a few defects here, all of them by `python -m tests.faults.mutants`."""

from __future__ import annotations

import pytest

from tests.faults.defects import MUTANTS, REPOSITORY, Mutant
from tests.faults.directed import ALL
from tests.faults.mutants import hunt
from tests.faults.seaweed import SeaweedServer
from tests.faults.soak import make_base

HUNTED = ["an entry is dropped from the census", "no closing look", "the store is taken at its word",
          "the listing is not held against the index", "writers are ignored"]  # fmt: skip


@pytest.mark.parametrize("name", HUNTED)
def test_a_defect_is_caught(seaweed: SeaweedServer, tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    caught = hunt(MUTANTS[name], seaweed.port, make_base(str(tmp_path_factory.mktemp("mutants"))), seeds=0, jobs=2)
    assert caught.by, f"no case noticed: {caught.problem}"


@pytest.mark.parametrize("name", MUTANTS)
def test_every_defect_can_be_made_in_the_engine_as_it_is(name: str) -> None:
    for mutant in MUTANTS[name].together():
        assert mutant.place().startswith("decamp.")
    assert set(MUTANTS[name].directed) <= set(ALL)


def test_a_defect_that_has_no_place_or_two_is_an_error() -> None:
    for old in ("nothing of the kind", "import"):
        with pytest.raises(LookupError):
            Mutant("none", "", old, "").place()


@pytest.mark.parametrize("name", MUTANTS)
def test_every_defect_leaves_a_program(name: str) -> None:
    for mutant in MUTANTS[name].together():
        path = REPOSITORY / f"{mutant.place().replace('.', '/')}.py"
        changed = mutant.apply(path.read_text())
        assert changed != path.read_text()
        compile(changed, str(path), "exec")
