"""Runs the benchmark: `python -m bench [--only small,mixed] [--rounds 3]`; ONLY and ROUNDS in the environment as well.

What is done and not done, so that the figures can be judged:
- One SeaweedFS of the benchmark's own on free loopback ports, on the same machine; a fresh one for each tree, its
  data in a scratch directory that is removed afterwards. Its CPU and memory are nobody's.
- The tools alternate, and each round starts with another one. Each run has a prefix of its own, except the jobs
  that are about an existing upload (unchanged, restore, verify), which use the last upload of that tool.
- The tree is written to disk and read once before the first run: all tools read it from the page cache. Before each
  run the disk is synchronised, so that no run pays for writes of the one before; no cache is dropped.
- A figure is the median of the rounds; the growth workloads run once.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench.bars import Results, judge, table
from bench.measure import Figures, measure
from bench.peers import ensure_peers, versions
from bench.tools import BUCKET, TOOLS, Place, Tool, all_tools
from bench.workloads import TREES, tree_totals, warm
from tests.faults.seaweed import SeaweedServer, find_weed

WORKLOADS = ("small", "mixed", "large", "unchanged", "restore", "verify", "growth_100k", "growth_1m")
OF_MIXED = ("unchanged", "restore", "verify")
OUT = Path(__file__).with_name("out")
TIMEOUT_S = 3600.0


class BenchmarkError(Exception):
    """A tool failed, so that its time means nothing."""


class Session:
    """Runs jobs of several tools on one tree against one server, and keeps the figures."""

    def __init__(self, tools: dict[str, Tool], server: SeaweedServer, tree: Path, scratch: Path) -> None:
        self.tools = tools
        self.server = server
        self.tree = tree
        self.scratch = scratch
        self.places: dict[str, Place] = {}
        self.runs = 0

    def run(self, workload: str, name: str) -> Figures | None:
        """One run; None when the tool has no such job.

        Raises:
            BenchmarkError: the tool ended with anything but 0.
        """
        tool, self.runs = self.tools[name], self.runs + 1
        destination = self.scratch / f"restored-{self.runs}"
        if workload in OF_MIXED:
            place = self.places[name]
        else:
            state = self.scratch / f"state-{self.runs}"
            state.mkdir()
            place = Place(self.tree, f"{workload}-{name}-{self.runs}", self.server.endpoint_url, state)
            self.places[name] = place
        command = self._command(tool, workload, place, destination)
        if command is None:
            return None
        environment = {key: os.environ[key] for key in ("PATH", "HOME", "LANG") if key in os.environ}
        environment |= {"PYTHONPATH": str(OUT.parent.parent)}
        environment |= self.server.credentials() | tool.environment(place)
        os.sync()
        figures = measure(command, environment, place.state, TIMEOUT_S)
        if figures.returncode != 0:
            raise BenchmarkError(f"{name} on {workload} ended with {figures.returncode}: {figures.output}")
        if workload == "restore":
            self._check_restored(name, destination)
        told = f"{figures.wall_s:7.2f} s wall, {figures.cpu_s:7.2f} s CPU, {figures.peak_mb:6.0f} MB"
        print(f"  {workload:<12} {name:<8} {told}", file=sys.stderr, flush=True)
        return figures

    @staticmethod
    def _command(tool: Tool, workload: str, place: Place, destination: Path) -> list[str] | None:
        if workload == "unchanged":
            return tool.unchanged(place)
        if workload == "verify":
            return tool.verify(place)
        if workload == "restore":
            destination.mkdir()
            return tool.restore(place, destination)
        return tool.upload(place)

    def _check_restored(self, name: str, destination: Path) -> None:
        expected, found = tree_totals(self.tree), tree_totals(destination)
        shutil.rmtree(destination)
        if expected != found:
            raise BenchmarkError(f"{name} restored {found[0]} files of {found[1]} bytes, expected {expected}")


def _median(runs: list[Figures]) -> dict[str, float]:
    return {
        "wall_s": round(statistics.median(run.wall_s for run in runs), 3),
        "cpu_s": round(statistics.median(run.cpu_s for run in runs), 3),
        "peak_mb": round(statistics.median(run.peak_mb for run in runs), 1),
    }


def run_tree(name: str, wanted: list[str], tools: dict[str, Tool], rounds: int) -> Results:
    """All wanted workloads that are about one tree."""
    results: Results = {}
    with tempfile.TemporaryDirectory(prefix="decamp-bench-") as text:
        scratch = Path(text)
        tree = scratch / "tree"
        print(f"{name}: making the tree", file=sys.stderr, flush=True)
        TREES[name](tree)
        warm(tree)
        files, size_bytes = tree_totals(tree)
        print(f"{name}: {files} files, {size_bytes / 1e6:.0f} MB", file=sys.stderr, flush=True)
        growth = name.startswith("growth")
        chosen = {"growth_100k": ("decamp", "s5cmd"), "growth_1m": ("decamp",)}.get(name, TOOLS)
        names = [tool for tool in chosen if tool in tools]
        with SeaweedServer(scratch / "seaweed") as server:
            server.client().create_bucket(Bucket=BUCKET)
            session = Session(tools, server, tree, scratch)
            if name not in wanted:  # only jobs on an existing upload are wanted: make it, unmeasured
                for tool in names:
                    session.run(name, tool)
            for workload in wanted:
                figures: dict[str, list[Figures]] = {tool: [] for tool in names}
                for turn in range(1 if growth else rounds):
                    for tool in names[turn % len(names) :] + names[: turn % len(names)]:
                        run = session.run(workload, tool)
                        if run is not None:
                            figures[tool].append(run)
                results[workload] = {tool: _median(runs) for tool, runs in figures.items() if runs}
    return results


def describe_host(peers: dict[str, Path]) -> dict[str, object]:
    """What the figures were measured on."""
    cpu_lines, memory_lines = (Path(name).read_text().splitlines() for name in ("/proc/cpuinfo", "/proc/meminfo"))
    model = next((line.split(":")[1].strip() for line in cpu_lines if "model name" in line), "")
    memory = next(line.split()[1] for line in memory_lines if line.startswith("MemTotal"))
    weed = subprocess.run([find_weed(), "version"], capture_output=True, text=True, check=True).stdout.splitlines()[0]
    commit = subprocess.run(
        ["git", "-C", str(OUT.parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    return {
        "cores": os.cpu_count(),
        "processor": model,
        "memory_gb": round(int(memory) / 1e6, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "server": weed,
        "peers": versions(peers),
        "decamp_commit": commit.stdout.strip(),
        "measured_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench", description="decamp against s5cmd, rclone and aws-cli")
    parser.add_argument("--only", default=os.environ.get("ONLY", ""), help="workloads, separated by commas")
    parser.add_argument("--tools", default=os.environ.get("TOOLS", ""), help="tools, separated by commas")
    parser.add_argument("--rounds", type=int, default=int(os.environ.get("ROUNDS") or 3))
    parser.add_argument("--strict", action="store_true", help="exit with 1 when a bar is missed")
    arguments = parser.parse_args()
    wanted = [name for name in arguments.only.split(",") if name] or list(WORKLOADS)
    chosen = [name for name in arguments.tools.split(",") if name] or list(TOOLS)
    unknown = [name for name in wanted if name not in WORKLOADS] + [name for name in chosen if name not in TOOLS]
    if unknown or arguments.rounds < 1:
        parser.error(f"unknown: {', '.join(unknown)}; workloads: {', '.join(WORKLOADS)}; tools: {', '.join(TOOLS)}")
    peers = ensure_peers()
    tools = {name: tool for name, tool in all_tools(peers).items() if name in chosen}
    groups = [(name, [name]) for name in ("small", "large", "growth_100k", "growth_1m") if name in wanted]
    of_mixed = [name for name in ("mixed", *OF_MIXED) if name in wanted]
    if of_mixed:
        groups.insert(1, ("mixed", of_mixed))
    results: Results = {}
    try:
        for tree, workloads in groups:
            results |= run_tree(tree, workloads, tools, arguments.rounds)
    except BenchmarkError as error:
        print(f"bench: {error}", file=sys.stderr)
        return 1
    results = {name: results[name] for name in WORKLOADS if name in results}
    OUT.mkdir(exist_ok=True)
    (OUT / "latest.json").write_text(json.dumps(results, indent=1) + "\n")
    (OUT / "host.json").write_text(json.dumps(describe_host(peers), indent=1) + "\n")
    bars = judge(results)
    print(table(results), *bars, f"written: {OUT / 'latest.json'}, {OUT / 'host.json'}", sep="\n")
    return 1 if arguments.strict and not all(bar.met for bar in bars) else 0


if __name__ == "__main__":
    sys.exit(main())
