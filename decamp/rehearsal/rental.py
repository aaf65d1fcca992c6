"""A whole rental, a step at a time; each step says what it found or raises what was not as it should be."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from decamp.errors import EXIT_INTERRUPTED, DecampError, Interrupted
from decamp.playbook import PlaybookResult, run_playbook
from decamp.receipt import Receipt, read_receipt
from decamp.rehearsal import host
from decamp.rehearsal.engine import EngineFailure, Outcome, run_engine
from decamp.rehearsal.environment import STACK
from decamp.ssh import SshTarget, run_remote
from decamp.stack import CHECKOUT, StackOutputs, read_outputs
from decamp.store.client import Store
from decamp.store.location import StoreLocation
from decamp.verify import verify_bag

WORK_TIMEOUT_S = 240.0
JOB_UNIT = "job-completions.service"
SERVER_UNIT = "sglang.service"
WORKSPACE = "/workspace"
YES = ["--yes", "--skip-preview", "--stack", STACK]
# What the job has done: number of completions, of different ones, of finished training shards.
COUNT_WORK = (
    f"cd {WORKSPACE}/data && cat completions/shard_*.jsonl 2>/dev/null | python3 -c '"
    'import json, sys; ids = [json.loads(line)["id"] for line in sys.stdin if line.endswith("\\n")];'
    " print(len(ids), len(set(ids)))' && ls tokenized/*.arrow 2>/dev/null | wc -l"
)
HASH_WORK = f"cd {WORKSPACE} && find . -type f -print0 | sort -z | xargs -0 sha256sum"


class NotAsItShouldBe(DecampError):
    """A step of the rehearsal found something else than it must."""


@dataclass(frozen=True)
class Work:
    """What a node's job has done so far."""

    completions: int
    different: int
    shards: int


@dataclass
class Rental:
    """One run of the rehearsal on one stack.

    Args:
        directory: the rehearsal's directory.
        environment: its variables (rehearsal/environment.py).
        tell: gets each line of detail.
    """

    directory: Path
    environment: Mapping[str, str]
    tell: Callable[[str], None]
    outputs: StackOutputs | None = None
    machine_ids: dict[str, str] = field(default_factory=dict)
    evacuated: dict[str, Work] = field(default_factory=dict)
    hashes: dict[str, dict[str, str]] = field(default_factory=dict)
    runs: int = 0

    @property
    def stack(self) -> StackOutputs:
        if self.outputs is None:
            raise NotAsItShouldBe(STACK, "the stack is not up", run="pulumi up")
        return self.outputs

    def engine(self, *arguments: str) -> Outcome:
        self.runs += 1
        log = self.directory / "logs" / f"{self.runs:02d}-pulumi-{arguments[0]}.log"
        ended = run_engine(list(arguments), self.environment, log)
        for line in ended.output.splitlines():
            self.tell(line)
        return ended

    def playbook(self, name: str) -> PlaybookResult:
        result = run_playbook(name, tell=self.tell, stack=STACK, environment=self.environment)
        if result.exit_status == EXIT_INTERRUPTED:
            raise Interrupted(name, "interrupted", run="make rehearsal")
        result.raise_for_failure()
        return result

    def targets(self) -> dict[str, SshTarget]:
        key = self.stack.ssh_private_key_file
        return {
            node.name: SshTarget(node.name, node.host, node.port, node.user, node.host_key, key)
            for node in self.stack.nodes
        }

    def on_node(self, target: SshTarget, command: str, timeout_s: float = 60) -> str:
        ended = run_remote(target, command, timeout_s)
        if ended.exit_status != 0:
            raise NotAsItShouldBe(
                target.name, f"{command.split()[0]} failed", expected="exit 0", found=ended.stderr.strip()[-300:]
            )
        return ended.stdout

    def count_work(self, target: SshTarget) -> Work:
        return Work(*map(int, self.on_node(target, COUNT_WORK).split()))

    def store(self, node: str) -> Store:
        told = self.stack.store
        return Store(StoreLocation.parse(f"{told.url}/{node}"), told.endpoint, told.region)

    def host_directory(self, node: str) -> Path:
        return self.directory / "nodes" / node

    def marks(self) -> dict[str, str]:
        """What changes when a node is rebooted, made anew, or has its services touched."""
        units = f"{JOB_UNIT} {SERVER_UNIT}"
        command = f"cat /etc/machine-id; stat -c %Y /proc/1; systemctl show -p ActiveState,InvocationID {units}"
        return {name: self.on_node(target, command) for name, target in self.targets().items()}

    def resources(self) -> list[str]:
        state = self.engine("stack", "export", "--stack", STACK).check().output
        return sorted(entry["urn"] for entry in json.loads(state)["deployment"].get("resources", []))

    # The steps, in their order.

    def bring_up(self) -> str:
        self.engine("stack", "select", "--create", STACK).check()
        self.engine("up", *YES).check()
        self.outputs = read_outputs(STACK, CHECKOUT)
        for name, target in self.targets().items():
            there = host.status(self.host_directory(name))
            if there is None or not there.running or there.host_key != target.host_key:
                raise NotAsItShouldBe(name, "not the running host the outputs tell of", found=str(there))
            if self.machine_ids.get(name) == there.machine_id:
                raise NotAsItShouldBe(name, "has the machine id of a destroyed host", found=there.machine_id)
            self.machine_ids[name] = there.machine_id
        nodes = ", ".join(f"{node.name} on {node.host}:{node.port}" for node in self.stack.nodes)
        return f"{nodes}; store {self.stack.store.url} at {self.stack.store.endpoint}"

    def preview(self) -> str:
        self.engine("preview", "--expect-no-changes", "--stack", STACK).check()
        return "nothing to change"

    def set_up(self) -> str:
        changed = self.playbook("site.yml").changed
        return ", ".join(f"{name} changed={count}" for name, count in changed.items())

    def set_up_again(self) -> str:
        changed = self.playbook("site.yml").changed
        if any(changed.values()):
            raise NotAsItShouldBe("site.yml", "a second run changed something", expected="0", found=str(changed))
        return "changed=0"

    def work(self) -> str:
        """Lets the job finish a shard, kills it, and sees it continue without doing anything twice."""
        told = []
        for name, target in self.targets().items():
            before = self.wait_for_work(target, shards=1)
            self.on_node(target, f"systemctl kill --signal=SIGKILL --kill-whom=all {JOB_UNIT}")
            after = self.wait_for_work(target, completions=before.completions + 20)
            told.append(f"{name} {before.completions} completions, killed, {after.completions}")
        return "; ".join(told)

    def wait_for_work(self, target: SshTarget, *, completions: int = 0, shards: int = 0) -> Work:
        deadline = time.monotonic() + WORK_TIMEOUT_S
        while True:
            work = self.count_work(target)
            if work.different != work.completions:
                raise NotAsItShouldBe(target.name, "the job did something twice", found=str(work))
            if work.completions >= completions and work.shards >= shards:
                return work
            if time.monotonic() > deadline:
                log = self.on_node(target, f"tail -n 5 {WORKSPACE}/logs/completions.log")
                raise NotAsItShouldBe(target.name, "the job does not get on", found=f"{work}: {log}")
            time.sleep(1)

    def try_to_destroy(self) -> str:
        """Sees the guard refuse: nothing is touched, and the refusal says what would be lost and what to run."""
        before, resources = self.marks(), self.resources()
        refused = self.engine("destroy", *YES)
        if refused.exit_code == 0:
            raise NotAsItShouldBe("pulumi destroy", "went through without a receipt", expected="a refusal")
        silent = [word for word in (*before, "evacuate") if word not in refused.output]
        if silent:
            raise EngineFailure("pulumi destroy", f"its refusal does not tell {silent}", found=refused.last_words())
        if self.marks() != before or self.resources() != resources:
            raise NotAsItShouldBe("pulumi destroy", "its refusal changed something", expected=str(before))
        return f"refused with exit code {refused.exit_code}; hosts, services and {len(resources)} resources untouched"

    def evacuate(self) -> str:
        self.playbook("evacuate.yml")
        told = []
        for name, target in self.targets().items():
            receipt = self.check_receipt(name)
            self.evacuated[name] = self.count_work(target)
            self.hashes[name] = self.hash_work(target)
            told.append(
                f"{name} {receipt.verdict}, {self.evacuated[name].completions} completions in {receipt.store_url}"
            )
        return "; ".join(told)

    def check_receipt(self, name: str) -> Receipt:
        receipt = read_receipt(self.store(name))
        if receipt.verdict != "SAFE" or receipt.machine_id != self.machine_ids[name]:
            raise NotAsItShouldBe(
                receipt.store_url,
                "not a receipt of this node",
                expected=f"SAFE for machine {self.machine_ids[name]}",
                found=f"{receipt.verdict} for machine {receipt.machine_id}",
            )
        return receipt

    def hash_work(self, target: SshTarget) -> dict[str, str]:
        lines = self.on_node(target, HASH_WORK, 300).splitlines()
        return {path: digest for digest, path in (line.split("  ", 1) for line in lines)}

    def destroy(self) -> str:
        """Sees the stack go and the archive stay."""
        self.engine("destroy", *YES).check()
        told = []
        for node in self.stack.nodes:
            directory = self.host_directory(node.name)
            if host.status(directory) is not None or host.find_processes(directory) or directory.exists():
                raise NotAsItShouldBe(node.name, "something of the host is left", found=str(directory))
            verified = verify_bag(self.store(node.name))
            if verified.findings:
                raise NotAsItShouldBe(node.name, "its archive does not hold", found=str(verified.findings[0]))
            told.append(f"{node.name} is gone, its archive holds ({verified.objects} objects)")
        return "; ".join(told)

    def restore(self) -> str:
        """Sees the workspace come back bit by bit and the job continue where it was."""
        self.playbook("restore.yml")
        told = []
        for name, target in self.targets().items():
            past = self.evacuated[name]
            lost = self.find_lost(target, self.hashes[name])
            if lost:
                raise NotAsItShouldBe(name, f"{len(lost)} files did not come back as they were", found=lost[0])
            after = self.wait_for_work(target, completions=past.completions + 1)
            told.append(f"{name} continues from {past.completions} completions, now {after.completions}")
        return "; ".join(told)

    def find_lost(self, target: SshTarget, hashes: Mapping[str, str]) -> list[str]:
        """Names files that are not what they were; the job goes on writing, so only what it has finished counts."""
        finished = {
            path: digest for path, digest in hashes.items() if path.startswith(("./data/tokenized/", "./checkpoints/"))
        }
        if not finished:
            raise NotAsItShouldBe(target.name, "no finished shard was evacuated")
        paths = " ".join(shlex.quote(path) for path in finished)
        lines = self.on_node(target, f"cd {WORKSPACE} && sha256sum {paths}", 300).splitlines()
        found = {path: digest for digest, path in (line.split("  ", 1) for line in lines)}
        return [path for path, digest in finished.items() if found.get(path) != digest]
