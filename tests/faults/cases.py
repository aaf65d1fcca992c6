"""Carries a case out against the real engine and a real store, and judges every SAFE by a restore."""

from __future__ import annotations

import functools
import json
import os
import random
import re
import shutil
import time
import uuid
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.faults import bags
from tests.faults.comparison import Difference, Node, Picture, compare, take_picture
from tests.faults.engine_process import Engine, Outcome
from tests.faults.exchange import Request
from tests.faults.mounts import CoarseFileSystem, Mounted, UnreadableFile
from tests.faults.plans import TRUSTWORTHY, Plan, Step
from tests.faults.proxy import FaultProxy, Schedule
from tests.faults.seaweed import S3Server
from tests.faults.specs import Spec, random_spec
from tests.faults.store_faults import Action
from tests.faults.trees import DIRECTORIES, SUFFIXES, Tree, make_tree
from tests.faults.writers import Writer

BUCKET = "cases"
RUN_TIMEOUT_S = 90.0
SAFE, NOT_SAFE, STORE, DAMAGED, INTERRUPTED = 0, 3, 4, 5, 130
# A change that comes when the receipt is on its way is after the last look, and is the guard's to find.
RECEIPT, TAG_MANIFEST = (rf"^[^/]+/node-1/{name}$" for name in (r"decamp/receipt\.json", r"tagmanifest-sha256\.txt"))


@dataclass
class Result:
    """What a case showed. `problems` break a promise; a false SAFE is one whose text begins with FALSE SAFE."""

    seed: int
    problems: list[str] = field(default_factory=list)
    verdicts: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    stuck: list[str] = field(default_factory=list)
    seconds: float = 0.0
    directory: Path | None = None

    @property
    def false_safe(self) -> bool:
        return any(problem.startswith("FALSE SAFE") for problem in self.problems)


class Case:
    """One case in a directory of its own below `base`, which is removed unless something was wrong."""

    def __init__(self, plan: Plan, seaweed: S3Server, proxy: FaultProxy, engine: Engine, base: Path) -> None:
        self.plan = plan
        self.seaweed = seaweed
        self.proxy = proxy
        self.engine = engine
        self.rng = random.Random(f"case {plan.seed}")
        self.result = Result(plan.seed)
        self.directory = base / f"case-{plan.seed}-{uuid.uuid4().hex[:6]}"
        self.state = self.directory / "state"
        self.old_states: list[Path] = []
        self.prefix = f"{self.directory.name}/node-1"
        self.url = f"s3://{BUCKET}/{self.prefix}"
        self.client = seaweed.client()
        self.lines: list[str] = []
        self.late: list[Picture] | None = None
        self.proven: list[Picture] | None = None
        # Workspaces as they were when a receipt was on its way: if it arrived, it proves them, whatever the run said.
        self.sealed: list[list[Picture]] = []
        self.mounts: list[Mounted] = []
        self.writer = Writer(self.rng, [])
        self.restores = 0

    # --- set-up ---
    def note(self, text: str) -> None:
        self.lines.append(text)

    def prepare(self) -> None:
        self.directory.mkdir(parents=True)
        self.trees: list[Tree] = []
        for number, features in enumerate(self.plan.features):
            root = os.fsencode(self.directory / f"ws{number}")
            if self.plan.coarse:
                self.mounts.append(CoarseFileSystem(self.directory, os.fsdecode(root)))
            self.trees.append(make_tree(self.rng, root, features))
        if self.plan.unreadable:
            self.mounts.append(UnreadableFile(os.fsdecode(self.trees[0].root) + "/unreadable"))
        self.roots = [tree.root for tree in self.trees]
        names = [name for name in DIRECTORIES if self.rng.random() < 0.7]
        self.spec: Spec = random_spec(self.rng, [os.fsdecode(root) for root in self.roots], names, SUFFIXES)
        if self.plan.prefers_existing:
            self._place_existing()
        (self.directory / "spec.yml").write_text(self.spec.text())
        self.state.mkdir(mode=0o700)
        self.writer = Writer(self.rng, self.roots)
        if self.plan.uid is not None:
            self._hand_over(self.plan.uid)
        self.note(f"plan: {self.plan}")
        self.note(f"spec: {self.spec.text()}")

    def _hand_over(self, uid: int) -> None:
        """Gives most of the workspace to the user that the engine runs as; the rest stays out of reach or not."""
        self.directory.chmod(0o755)
        os.chown(self.state, uid, uid)
        for tree in self.trees:
            for path, node in take_picture(tree.root).items():
                place = os.path.join(tree.root, path) if path else tree.root
                if len(place) < 4000 and (not path or self.rng.random() < 0.97) and node.kind != "symlink":
                    stamp = node.mtime_ns
                    os.chown(place, uid, uid)
                    os.utime(place, ns=(stamp, stamp))

    def _place_existing(self) -> None:
        """Puts some of the workspace's content into another place of the store, with checksums."""
        place = f"{self.directory.name}-elsewhere/"
        found = [(root, node) for root in self.roots for node in take_picture(root).values() if node.kind == "file"]
        for number, (root, node) in enumerate(found):
            path = os.path.join(root, node.path)
            if self.rng.random() < 0.4 and len(path) < 4000:
                with open(path, "rb") as file:
                    bags.put(self.client, BUCKET, f"{place}{number}", file.read())
        self.spec.more["prefer_existing"] = [f"s3://{BUCKET}/{place}"]

    @property
    def environment(self) -> dict[str, str]:
        wanted = {"PATH": os.environ["PATH"], "HOME": str(self.directory), "LANG": "C.UTF-8"}
        return wanted | {"DECAMP_STATE_DIR": str(self.state)} | self.seaweed.credentials()

    # --- before a run ---
    def _do_between(self, step: Step) -> None:
        if step.between == "writer":
            for _ in range(self.rng.randint(1, 4)):
                self.writer.change(step.detail)
            if step.detail != "flip_mapped":  # a mapping made on purpose stays for the run
                self.writer.release()
        elif step.between == "tamper":
            self.note(f"tampered: {bags.tamper(self.client, BUCKET, self.prefix, self.rng, step.detail)}")
        elif step.between == "lose state":
            shutil.rmtree(self.state)
            self.state.mkdir(mode=0o700)
        elif step.between == "damage state":
            self._damage_state()
        elif step.between == "old state" and self.old_states:
            shutil.rmtree(self.state)
            shutil.copytree(self.rng.choice(self.old_states), self.state)
        elif step.between == "empty the store":
            bags.delete_all(self.client, BUCKET, self.prefix + "/")
        elif step.between == "hide a root":
            os.rename(self.roots[0], self.roots[0] + b".away")
        if self.plan.uid is not None:
            for path in (self.state, *self.state.rglob("*")):
                os.chown(path, self.plan.uid, self.plan.uid)

    def _damage_state(self) -> None:
        """Bits of one or more of the index's files become others, as on a disk that loses them."""
        files = [path for path in sorted(self.state.rglob("*")) if path.is_file() and path.stat().st_size]
        for path in self.rng.sample(files, self.rng.randint(1, len(files))) if files else ():
            body = bytearray(path.read_bytes())
            for _ in range(self.rng.choice([1, 20, 2000])):
                body[self.rng.randrange(len(body))] ^= 1 << self.rng.randrange(8)
            path.write_bytes(bytes(body))

    # --- a run ---
    def _schedule(self, number: int, step: Step) -> Schedule:
        faults: list[Any] = []
        if step.kill is not None:
            signal_number, at = step.kill
            faults.append(Action(lambda _: self.engine.kill(signal_number), start=at - 1, count=1))
        for at, kind in step.writes:
            faults.append(Action(functools.partial(self._write, kind), start=at - 1, count=1))
        if step.writes or self.plan.doubts:
            faults.insert(0, Action(self._look_last, operations={"PutObject"}, key=RECEIPT))
            faults.insert(0, Action(self._look_again, operations={"PutObject"}, key=TAG_MANIFEST))
        return Schedule(self.plan.seed * 100 + number, [*faults, *self.plan.faults(step)])

    def _look_again(self, _: Request) -> None:
        self.late = None  # another round: the picture is to be the one of the receipt that ends it

    def _look_last(self, _: Request) -> None:
        if self.late is None:
            self.late = [take_picture(root) for root in self.roots]
            self.sealed.append(self.late)

    def _write(self, kind: str, request: Request) -> None:
        self.writer.change(kind)
        self.note(f"  at request {request.ordinal} ({request.operation} {request.key!r}): {self.writer.changes[-1:]}")

    def _evacuate(self, number: int, step: Step) -> Outcome:
        self.late = None
        self.proxy.schedule = self._schedule(number, step)
        held = self.writer.hold() if step.holds else b""
        arguments = ["evacuate", "spec.yml", "--store", self.url, "--endpoint-url", self.proxy.endpoint_url, "--json"]
        arguments += ["--read-back"] if self.plan.reads_back else []
        if self.plan.coarse:
            self._touch_in_a_fresh_second()
        self.engine.start(arguments, self.environment, self.directory, self.plan.uid)
        if step.kill_after_s:
            time.sleep(step.kill_after_s)
            self.engine.kill(9)
        outcome = self.engine.wait(RUN_TIMEOUT_S)
        schedule, self.proxy.schedule = self.proxy.schedule, Schedule()
        self.result.faults.update(schedule.hits)
        self.note(
            f"run {number} of {step}: exit {outcome.code} after {outcome.seconds:.2f} s, {len(schedule.log)} requests"
        )
        self.lines += [f"  {line}" for line in schedule.log]
        self.note(f"  stdout: {outcome.stdout[-3000:]}\n  stderr: {outcome.stderr[-3000:]}")
        self._judge_run(step, outcome, held)
        return outcome

    def _touch_in_a_fresh_second(self) -> None:
        """Gives every file the ctime of a second that has just begun, so that the run has most of it before it."""
        time.sleep(1.0 - time.time() % 1.0)
        for tree in self.trees:
            for path, node in take_picture(tree.root).items():
                os.utime(os.path.join(tree.root, path), ns=(node.mtime_ns, node.mtime_ns), follow_symlinks=False)

    def _judge_run(self, step: Step, outcome: Outcome, held: bytes) -> None:
        code, problems = outcome.code, self.result.problems
        verdict = outcome.document.get("verdict", "")
        self.result.verdicts["SAFE" if code == SAFE else f"exit {code}"] += 1
        if outcome.hung:
            problems.append(f"HANG: no end after {RUN_TIMEOUT_S} s")
        if outcome.left_behind and code != -9:
            problems.append("LEFT BEHIND: a process of the run outlived it")
        if code < 0 and not (step.kill or step.kill_after_s or outcome.hung):
            problems.append(f"CRASH: ended by signal {-code}")
        if code >= 0 and code not in (SAFE, NOT_SAFE, STORE, DAMAGED, INTERRUPTED):
            problems.append(f"EXIT: {code} is no documented end of an evacuation: {outcome.stderr[-300:]}")
        if "Traceback (most recent call last)" in outcome.stderr:
            problems.append(f"TRACEBACK: {outcome.stderr[-600:]}")
        if (code == SAFE) != (verdict == "SAFE") and code >= 0:
            problems.append(f"CONTRADICTION: exit {code} with verdict {verdict!r}")
        if code == NOT_SAFE and not outcome.document.get("reasons"):
            problems.append("NO REASON: NOT SAFE without one")
        if code == SAFE and held and self._is_kept(held) and os.path.lexists(held):
            problems.append(f"FALSE SAFE: {held!r} was open for writing all the time")
        if code == SAFE and self.plan.unreadable and self.spec.keeps(b"unreadable", "file"):
            problems.append("FALSE SAFE: a file could not be read")
        if code == SAFE and step.between == "hide a root":
            problems.append("FALSE SAFE: a root was missing")

    # --- judging ---
    def _is_kept(self, path: bytes) -> bool:
        for root in self.roots:
            if path.startswith(root + b"/"):
                return self.spec.keeps(path[len(root) + 1 :], "file")
        return True

    def _keeps(self, node: Node) -> bool:
        return self.spec.keeps(node.path, node.kind)

    def restore(
        self, endpoint_url: str = "", pictures: list[Picture] | None = None
    ) -> tuple[Outcome, list[Difference]]:
        """Restores into a new directory and compares with what the workspace was when the verdict fell."""
        self.restores += 1
        destination = self.directory / f"restored{self.restores}"
        destination.mkdir()
        arguments = ["restore", self.url, str(destination), "--endpoint-url", endpoint_url or self.seaweed.endpoint_url]
        outcome = self.engine.run(arguments, self.environment, self.directory, timeout_s=RUN_TIMEOUT_S)
        pictures = pictures or self.late or [take_picture(root) for root in self.roots]
        found: list[Difference] = []
        for root, source in zip(self.roots, pictures, strict=True):
            found += compare(source, take_picture(os.fsencode(destination) + root), self._keeps)
        shutil.rmtree(destination, ignore_errors=True)
        return outcome, found

    def _judge_safe(self) -> None:
        """A verdict of SAFE: the restore has to bring everything back, and the bag has to verify."""
        self.proven = self.late if self.late is not None else [take_picture(root) for root in self.roots]
        outcome, found = self.restore()
        if outcome.code != 0:
            self.result.problems.append(f"FALSE SAFE: restore ended with {outcome.code}: {outcome.stderr[-500:]}")
        for difference in found[:10]:
            self.result.problems.append(f"FALSE SAFE: {difference}")
        verified = self._verify()
        if verified.code != 0:
            self.result.problems.append(f"FALSE SAFE: verify ended with {verified.code}: {verified.stderr[-500:]}")

    def _judge_unproven(self) -> None:
        """After a run without SAFE: an archive that verifies all the same has to be the last one proven, whole."""
        if self._verify().code != 0:
            return
        believed = [pictures for pictures in (self.proven, *self.sealed[-1:]) if pictures]
        if not believed:
            self.result.problems.append("FALSE PROOF: an archive verifies that was never proven")
            return
        outcomes = [self.restore(pictures=pictures) for pictures in believed]
        if not any(outcome.code == 0 and not found for outcome, found in outcomes):
            outcome, found = outcomes[-1]
            self.result.problems.append(f"FALSE PROOF: it verifies, restore ended with {outcome.code}: {found[:3]}")

    def _verify(self, *more: str, endpoint_url: str = "") -> Outcome:
        arguments = ["verify", self.url, "--endpoint-url", endpoint_url or self.seaweed.endpoint_url, *more]
        return self.engine.run(arguments, self.environment, self.directory, timeout_s=RUN_TIMEOUT_S)

    def _can_be_safe(self) -> bool:
        """Whether nothing in the workspace stands in the way of SAFE."""
        for tree in self.trees:
            formats = {"known_formats", "our_names"} & set(tree.features)  # ours end in .json and .jsonl
            if self.writer.changes and (tree.specials or tree.torn or formats):
                return False
            picture = take_picture(tree.root)
            for path in (*tree.specials, *tree.torn):
                if path in picture and self.spec.keeps(path, picture[path].kind):
                    return False
            if len(picture) < 2 or any(len(path) + len(tree.root) > 3900 for path in picture):
                return False
        return self.plan.uid is None and not self.plan.unreadable and self.plan.character in TRUSTWORTHY

    # --- the whole ---
    def run(self) -> Result:
        """Carries the plan out; the result says what was wrong, and then the directory is kept for looking at it."""
        started = time.monotonic()
        try:
            self.prepare()
            self._run_steps()
        finally:
            self.writer.release()
            self.result.seconds = time.monotonic() - started
            for mount in self.mounts:
                mount.remove()
            bags.delete_all(self.client, BUCKET, self.directory.name)
            if self.result.problems or self.result.stuck:
                self.result.directory = self.directory
                self.lines += self.result.problems + [f"STUCK: {text}" for text in self.result.stuck]
                (self.directory / "case.log").write_text("\n".join(self.lines), errors="surrogateescape")
            else:
                shutil.rmtree(self.directory, ignore_errors=True)
        return self.result

    def _run_steps(self) -> None:
        code = -1
        for number, step in enumerate(self.plan.steps):
            self._do_between(step)
            kept_before = (
                bags.keys(self.client, BUCKET, f"{self.prefix}/data/") if step.between == "hide a root" else []
            )
            code = self._evacuate(number, step).code
            if step.between == "hide a root":
                if lost := set(kept_before) - set(bags.keys(self.client, BUCKET, f"{self.prefix}/data/")):
                    self.result.problems.append(f"SHRUNK: a missing root took {sorted(lost)[:3]} out of the archive")
                os.rename(self.roots[0] + b".away", self.roots[0])
            elif code == SAFE:
                self._judge_safe()
            elif self.plan.doubts:
                self._judge_unproven()
            self.writer.release()
            if any(self.state.iterdir()):
                self.old_states.append(self.directory / f"state{number}")
                shutil.copytree(self.state, self.old_states[-1])
        if code == SAFE:
            self._finish_safe()
        elif self.plan.steps[-1].calm and self._can_be_safe():
            self.result.stuck.append(f"the last, calm run ended with {code}")

    def _finish_safe(self) -> None:
        if self.plan.validates:
            wrong = bags.validate(self.client, BUCKET, self.prefix, self.directory / "bag")
            if wrong:
                self.result.problems.append(f"BAG: bagit-python says: {wrong}")
        if self.plan.tampers == "side door":
            self._judge_side_door()
        elif self.plan.tampers:
            told = bags.tamper(self.client, BUCKET, self.prefix, self.rng, self.plan.tampers)
            self.note(f"tampered at the end: {told}")
            outcome, found = self.restore()
            if outcome.code == 0 and found:
                self.result.problems.append(f"UNNOTICED by restore: {told}: {found[0]}")
            verified = self._verify()
            if verified.code == 0 and told:
                self.result.problems.append(f"UNNOTICED by verify: {told}")

    def _judge_side_door(self) -> None:
        """Content changed behind the store's back: every listing, ETag and checksum stays as it was."""
        key = bags.choose(self.client, BUCKET, self.prefix, self.rng)
        if not key:
            return
        self.proxy.schedule = Schedule(0, [bags.Altered(key=f"^{re.escape(key)}$")])
        verified = self._verify("--read-back", endpoint_url=self.proxy.endpoint_url)
        outcome, found = self.restore(self.proxy.endpoint_url)
        self.proxy.schedule = Schedule()
        if verified.code == 0:
            self.result.problems.append(f"UNNOTICED by verify --read-back: {key} changed through a side door")
        if outcome.code == 0 and found:
            self.result.problems.append(f"UNNOTICED by restore: {key} changed through a side door: {found[0]}")


def describe(result: Result) -> str:
    """One line a problem, with what is needed to run the case again."""
    again = f"python -m tests.faults.soak --only {result.seed}"
    told = [f"seed {result.seed}: {problem}" for problem in (*result.problems, *map("STUCK: {}".format, result.stuck))]
    return "\n".join([*told, f"  again: {again}", f"  kept: {json.dumps(str(result.directory))}"])
