"""Cases made for one danger each, where a random one would need luck to meet it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from tests.faults import store_faults as store
from tests.faults.plans import Plan, Step, make_plan

# Seeds of directed cases start here, so that every case has a number by which it can be run again.
FIRST_SEED = 1_000_000_000
SPAN = 1000
SMALL = [["ordinary", "empties"]]
Plans = Iterator[Plan]


def _one(*steps: Step, **more: object) -> Plan:
    return Plan(0, SMALL, steps=list(steps), **more)  # type: ignore[arg-type]


def _one_wrong(at: int) -> Callable[[], list[store.Fault]]:
    return lambda: [store.CorruptedUnchecked(start=at, count=1)]


def plain() -> Plans:
    """Nothing goes wrong."""
    yield Plan(
        0,
        [["ordinary", "odd_names", "many_files", "sparse_files", "hard_links", "xattrs", "modes", "times"]],
        steps=[Step()],
    )


def change_at_every_request() -> Plans:
    """One file gets other content of the same size just when one of the first 48 requests is made."""
    for at in range(1, 49):
        yield _one(Step(writes=[(at, "flip")]), Step())


def unseen_change_at_every_request() -> Plans:
    """The same under the old mtime, once in place and once as another file."""
    for at in range(1, 49):
        yield _one(Step(writes=[(at, ("flip_unseen", "replace")[at % 2])]), Step())


def link_at_every_request() -> Plans:
    """A symlink takes a file's name."""
    for at in range(1, 49):
        yield _one(Step(writes=[(at, "link_instead")]), Step())


def unseen_change_between_runs() -> Plans:
    """A file changes between two runs and keeps its size and mtime."""
    for kind in ("flip_unseen", "flip_older", "replace") * 2:
        yield _one(Step(), Step(between="writer", detail=kind))


def mapped() -> Plans:
    """A file is written to through a mapping, without an open descriptor."""
    for at in range(6, 46, 4):
        yield _one(Step(writes=[(at, "flip_mapped")]), Step())
        # Mapped and written to before the run, and again when the file has been read.
        yield _one(Step(between="writer", detail="flip_mapped", writes=[(at, "flip_again")]), Step())


def held_open() -> Plans:
    """A file is open for writing during the whole run."""
    for _ in range(4):
        yield _one(Step(holds=True))


def same_second() -> Plans:
    """On a file system that keeps whole seconds, a file changes in the second in which it was made."""
    for at in range(8, 48, 2):
        yield _one(Step(writes=[(at, "flip_unseen")]), coarse=True)


def unreadable() -> Plans:
    """A file cannot be read: once by nobody at all, once by the engine's user."""
    for _ in range(3):
        yield _one(Step(), Step(), unreadable=True)
        yield Plan(0, [["ordinary", "many_files", "modes"]], steps=[Step()], uid=65534)


def corrupted_uploads() -> Plans:
    """Bodies change on their way to an honest store, after it has been probed."""
    for _ in range(8):
        yield _one(Step(), more_faults=lambda: [store.CorruptedUpload(0.5, key="/data/", count=2)])


def careless_store() -> Plans:
    """A store ignores checksums and changes some of the bodies."""
    for _ in range(4):
        yield Plan(0, SMALL, "corrupts and ignores checksums", [Step()])
    for at in range(5, 20):
        yield Plan(0, SMALL, "ignores checksums", [Step()], more_faults=_one_wrong(at))


def one_wrong_upload() -> Plans:
    """A store that checks checksums fails to do so for one body, which is another one then."""
    for at in range(4, 34):
        yield _one(Step(), more_faults=_one_wrong(at))


def one_lost_upload() -> Plans:
    """A store acknowledges one object and has not kept it."""
    for at in range(4, 34):
        yield _one(Step(), more_faults=lambda at=at: [store.AcknowledgedButLost(start=at, count=1)])


def tampered_between_runs() -> Plans:
    """Somebody changes the archive between two runs."""
    for kind in ("flip", "shorten", "delete", "swap") * 4:
        yield _one(Step(), Step(between="tamper", detail=kind))


def emptied_between_runs() -> Plans:
    """The archive is gone at the second run."""
    for _ in range(2):
        yield _one(Step(), Step(between="empty the store"))


def old_state() -> Plans:
    """The node's own memory is the one of an earlier run."""
    for _ in range(6):
        yield _one(Step(), Step(between="writer", detail="flip"), Step(between="old state"))


def forgotten_tokens() -> Plans:
    """A listing says that there is more and not how to get it."""
    yield Plan(0, SMALL, "forgets tokens", [Step(), Step(between="tamper", detail="delete")])


def killed_while_changing() -> Plans:
    """A run that changes a proven archive is killed at each of its requests."""
    for at in range(1, 40, 2):
        yield _one(Step(), Step(between="writer", detail="flip", kill=(9, at)), Step(), doubts=True)


def tampered_at_the_end() -> Plans:
    """Somebody changes the archive after the verdict; verify has to notice."""
    for kind in ("flip", "shorten", "delete", "swap", "add", "side door") * 3:
        yield _one(Step(), tampers=kind)


def damaged_state() -> Plans:
    """Bits of the node's own memory are others at the next run, after a run that ended and after one that did not."""
    tree = [["ordinary", "many_files", "xattrs", "hard_links"]]
    for at in range(16, 48):
        yield Plan(0, tree, steps=[Step(), Step(between="damage state"), Step(between="damage state")])
        yield Plan(0, tree, steps=[Step(kill=(9, at)), Step(between="damage state"), Step()])


def change_while_read_back() -> Plans:
    """A file changes while an unchanged archive is read back, object by object."""
    for at in range(3, 9):
        yield _one(Step(), Step(writes=[(at, ("flip", "remode")[at % 2])]), reads_back=True)


def killed_after_tampering() -> Plans:
    """Somebody changes the archive, and the run that finds it is killed at one of its first requests."""
    for at in range(3, 33):
        detail = ("add", "delete", "flip")[at % 3]
        yield _one(Step(), Step(between="tamper", detail=detail, kill=(9, at)), Step(), doubts=True)


def unknown_objects_read_wrongly() -> Plans:
    """A killed run's pack is unknown to the next one, and is read wrongly twice, the same way."""
    for at in range(27, 43, 2):
        yield Plan(
            0,
            [["ordinary", "many_files"]],
            "honest" if at % 4 == 3 else "shows no checksums",
            steps=[Step(kill=(9, at)), Step(between="lose state")],
            more_faults=lambda: [store.CorruptedGet(key="/data/", count=2)],
            validates=True,
        )


ALL: dict[str, Callable[[], Plans]] = {
    made.__name__.replace("_", " "): made
    for made in (
        plain, change_at_every_request, unseen_change_at_every_request, link_at_every_request,
        unseen_change_between_runs, mapped, held_open, same_second, unreadable, corrupted_uploads, careless_store,
        one_wrong_upload, one_lost_upload, tampered_between_runs, emptied_between_runs, old_state, forgotten_tokens,
        killed_while_changing, tampered_at_the_end, damaged_state, change_while_read_back,
        killed_after_tampering, unknown_objects_read_wrongly,
    )
}  # fmt: skip


def directed_plans(name: str) -> list[Plan]:
    """The plans of one danger, each with its own seed."""
    first = FIRST_SEED + list(ALL).index(name) * SPAN
    plans = list(ALL[name]())
    for number, plan in enumerate(plans):
        plan.seed = first + number
    return plans


def plan_of(seed: int) -> Plan:
    """The plan of any seed, random or directed."""
    if seed < FIRST_SEED:
        return make_plan(seed)
    name = list(ALL)[(seed - FIRST_SEED) // SPAN]
    return directed_plans(name)[(seed - FIRST_SEED) % SPAN]
