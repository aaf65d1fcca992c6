"""What happens in one case: its tree, spec, store, runs and their faults, all decided by one seed before it begins."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from tests.faults import listing_faults as listing
from tests.faults import store_faults as store
from tests.faults.exchange import BODY_WRITES, LISTS
from tests.faults.trees import random_features

Maker = Callable[[], list[store.Fault]]

# What a store is like in every run of a case. The honest one is by far the likeliest: most cases have to be able to
# end as SAFE, or nothing is shown.
CHARACTERS: dict[str, tuple[int, Maker]] = {
    "honest": (40, list),
    "small pages": (2, lambda: [listing.SmallPages()]),
    "ignores checksums": (2, lambda: [store.IgnoresChecksums()]),
    "shows no checksums": (2, lambda: [store.MissingChecksumAnswer()]),
    "shows wrong checksums": (1, lambda: [store.WrongChecksumAnswer(0.5)]),
    "corrupts and ignores checksums": (2, lambda: [store.IgnoresChecksums(), store.CorruptedUnchecked(0.2)]),
    "corrupts now and then": (3, lambda: [store.CorruptedUnchecked(0.15, start=6)]),
    "shortens now and then": (2, lambda: [store.ShortUpload(0.15, start=6)]),
    "refuses checksums": (1, lambda: [store.RefusesChecksums()]),
    "keeps trailers": (1, lambda: [store.KeepsTrailer()]),
    "keeps trailers now and then": (1, lambda: [store.KeepsTrailer(0.2, start=6)]),
    "loses what it has acknowledged": (2, lambda: [store.AcknowledgedButLost(0.2, start=6)]),
    "corrupts what it gives": (2, lambda: [store.CorruptedGet(0.4)]),
    "shortens what it gives": (1, lambda: [store.ShortGet(0.4)]),
    "cuts listings": (1, lambda: [listing.CutListing()]),
    "cuts some listings": (2, lambda: [listing.CutListing(0.5)]),
    "leaves keys out": (2, lambda: [listing.MissingKeys(0.5)]),
    "lists nothing": (2, lambda: [listing.EmptyListing(0.5)]),
    "lists what was": (2, lambda: [listing.StaleListing()]),
    "repeats pages": (1, lambda: [listing.RepeatingToken()]),
    "breaks tokens": (1, lambda: [listing.BrokenToken()]),
    "forgets tokens": (1, lambda: [listing.ForgottenToken()]),
    "denies lists": (1, lambda: [store.Denied(operations=LISTS)]),
    "denies heads": (1, lambda: [store.Denied(operations={"HeadObject"})]),
    "is 20 minutes ahead": (1, lambda: [store.ClockSkew()]),
}
# With these stores a run without other faults has to come to SAFE.
TRUSTWORTHY = frozenset({"honest", "small pages"})

TRANSIENT: dict[str, Maker] = {
    "server errors": lambda: [store.ServerError(0.2)],
    "unavailable": lambda: [store.Unavailable(0.2)],
    "slow down": lambda: [store.SlowDown(0.3)],
    "resets": lambda: [store.ResetBefore(0.15)],
    "lost responses": lambda: [store.LostResponse(0.2)],
    "errors after success": lambda: [store.ErrorAfterSuccess(0.2)],
    "delays": lambda: [store.Delay(0.3)],
    "truncated answers": lambda: [store.TruncatedResponse(0.3)],
    "broken uploads": lambda: [store.TruncatedRequest(0.2)],
    "corrupted uploads": lambda: [store.CorruptedUpload(0.2)],
    "corrupted gets": lambda: [store.CorruptedGet(0.3)],
    "puts denied midway": lambda: [store.Denied(start=4, operations=BODY_WRITES)],
    "lists denied midway": lambda: [store.Denied(start=1, operations=LISTS)],
    "heads denied midway": lambda: [store.Denied(start=1, operations={"HeadObject"})],
    "full midway": lambda: [store.StoreFull(start=5)],
    "gone midway": lambda: [store.ResetBefore(start=8)],
    "down": lambda: [store.Unavailable()],
    "one lost upload": lambda: [store.AcknowledgedButLost(start=7, count=1)],
    "one wrong upload": lambda: [store.CorruptedUnchecked(start=7, count=1)],
    "a gap in a listing": lambda: [listing.MissingKeys(start=1, count=2)],
}
BETWEEN = ("nothing", "writer", "tamper", "lose state", "damage state", "old state", "empty the store", "hide a root")


@dataclass
class Step:
    """One run of `decamp evacuate` and what is done before and during it.

    Attributes:
        between: what happens before the run (one of BETWEEN).
        detail: the kind of change or tampering before the run; "" is a random one.
        transient: names of TRANSIENT faults in force.
        kill: signal and the request at whose arrival it is sent, or None.
        kill_after_s: signal that many seconds after the start instead; 0 for none.
        writes: requests at whose arrival a writer makes a change, with the kind ("" is a random one).
        holds: a writer holds a file open during the whole run.
    """

    between: str = "nothing"
    detail: str = ""
    transient: list[str] = field(default_factory=list)
    kill: tuple[int, int] | None = None
    kill_after_s: float = 0.0
    writes: list[tuple[int, str]] = field(default_factory=list)
    holds: bool = False

    @property
    def calm(self) -> bool:
        return not (self.transient or self.kill or self.kill_after_s or self.writes or self.holds) and (
            self.between != "hide a root"
        )


@dataclass
class Plan:
    """One case. The same seed gives the same plan; a directed test changes a field.

    Attributes:
        seed: names the case; the tree and everything random in it follow from it.
        features: of each root's tree.
        character: name of the store's in CHARACTERS.
        steps: the runs.
        uid: user that the engine runs as, or None for the one of the test.
        prefers_existing: some of the content lies elsewhere in the store before.
        reads_back: `--read-back` is given.
        validates: bagit-python has to accept the downloaded bag.
        tampers: what is done to the bag after the last SAFE; verify has to notice.
        doubts: `verify` is asked after runs that did not end as SAFE as well.
        coarse: the workspace's file system keeps whole seconds.
        unreadable: one file of the workspace cannot be read, whoever tries.
        more_faults: faults of every run besides those of character and step.
    """

    seed: int
    features: list[list[str]]
    character: str = "honest"
    steps: list[Step] = field(default_factory=list)
    uid: int | None = None
    prefers_existing: bool = False
    reads_back: bool = False
    validates: bool = False
    tampers: str = ""
    doubts: bool = False
    coarse: bool = False
    unreadable: bool = False
    more_faults: Maker = list

    def faults(self, step: Step) -> list[store.Fault]:
        """The faults of a run, fresh ones each time; the transient ones are nearer to the client."""
        made = self.more_faults() + [fault for name in step.transient for fault in TRANSIENT[name]()]
        return made + CHARACTERS[self.character][1]()


def _random_step(rng: random.Random, first: bool) -> Step:
    step = Step()
    if not first and rng.random() < 0.6:
        step.between = rng.choices(BETWEEN, (4, 6, 3, 2, 1, 2, 1, 1))[0]
    step.transient = rng.sample(sorted(TRANSIENT), rng.choices((0, 1, 2, 3), (3, 5, 2, 1))[0])
    fate = rng.random()
    if fate < 0.30:
        step.kill = (rng.choice([9, 9, 15]), rng.randint(1, 40))
    elif fate < 0.40:
        step.kill_after_s = rng.uniform(0.02, 0.8)
    if rng.random() < 0.35:
        step.writes = [(rng.randint(1, 40), "") for _ in range(rng.randint(1, 3))]
    step.holds = rng.random() < 0.05
    return step


def make_plan(seed: int) -> Plan:
    """The case of a seed: one or two trees, a store, up to three troubled runs and then a calm one."""
    rng = random.Random(f"plan {seed}")
    features = [random_features(rng) for _ in range(rng.choices((1, 2), (4, 1))[0])]
    weights = [weight for weight, _ in CHARACTERS.values()]
    plan = Plan(seed, features, rng.choices(list(CHARACTERS), weights)[0])
    plan.steps = [_random_step(rng, first=number == 0) for number in range(rng.choices((0, 1, 2, 3), (2, 5, 3, 1))[0])]
    calm = Step()
    if plan.steps and rng.random() < 0.5:
        calm.between = rng.choices(BETWEEN[:7], (0, 6, 3, 2, 1, 2, 1))[0]
    plan.steps.append(calm)
    plan.uid = 65534 if rng.random() < 0.05 else None
    plan.prefers_existing = rng.random() < 0.15
    plan.reads_back = rng.random() < 0.1
    plan.validates = rng.random() < 0.25
    plan.doubts = rng.random() < 0.3
    plan.tampers = (
        rng.choice(["flip", "flip", "shorten", "delete", "swap", "add", "side door"]) if (rng.random() < 0.35) else ""
    )
    return plan
