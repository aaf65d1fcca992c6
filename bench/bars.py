"""The bars that decamp is held to against its peers, and how far a set of figures is from each."""

from __future__ import annotations

from dataclasses import dataclass

Results = dict[str, dict[str, dict[str, float]]]
PEERS = ("s5cmd", "rclone", "awscli")


@dataclass(frozen=True)
class Bar:
    """One bar with what was reached; `reached` at most `limit` is met."""

    name: str
    limit: float
    reached: float

    @property
    def met(self) -> bool:
        return self.reached <= self.limit

    def __str__(self) -> str:
        return f"{'met   ' if self.met else 'MISSED'} {self.name}: {self.reached:.3f} (at most {self.limit:.3f})"


def _ratio(results: Results, workload: str, peers: tuple[str, ...], unit: str = "wall_s") -> float | None:
    """decamp's figure over the best of the peers'; None where one is missing."""
    tools = results.get(workload, {})
    figures = [tools[peer][unit] for peer in peers if peer in tools]
    if "decamp" not in tools or not figures:
        return None
    return tools["decamp"][unit] / min(figures)


def judge(results: Results) -> list[Bar]:
    """Every bar for which the figures are there."""
    ratios = [
        ("small: wall, of s5cmd's", 1 / 6, _ratio(results, "small", ("s5cmd",))),
        ("mixed: wall, of the best peer's", 0.67, _ratio(results, "mixed", PEERS)),
        ("mixed: CPU, of s5cmd's", 0.6, _ratio(results, "mixed", ("s5cmd",), "cpu_s")),
        ("large: wall, of the best peer's", 1.05, _ratio(results, "large", PEERS)),
        ("unchanged: wall, of the best peer's", 0.5, _ratio(results, "unchanged", PEERS)),
        ("restore: wall, of rclone's", 0.7, _ratio(results, "restore", ("rclone",))),
    ]
    bars = [Bar(name, limit, reached) for name, limit, reached in ratios if reached is not None]
    less = results.get("growth_100k", {}).get("decamp")
    more = results.get("growth_1m", {}).get("decamp")
    if more:
        bars.append(Bar("growth: peak MB at 1,000,000 files", 250.0, more["peak_mb"]))
    if less and more:
        per_file = (more["wall_s"] / 1_000_000) / (less["wall_s"] / 100_000)
        bars.append(Bar("growth: wall per file at 1,000,000, of that at 100,000", 1.2, per_file))
    return bars


def table(results: Results) -> str:
    """The figures in columns, with decamp's wall over each peer's."""
    lines = [f"{'workload':<13}{'tool':<9}{'wall s':>9}{'CPU s':>9}{'peak MB':>9}{'decamp/this':>13}"]
    for workload, tools in results.items():
        for tool, figures in tools.items():
            ratio = tools["decamp"]["wall_s"] / figures["wall_s"] if "decamp" in tools and tool != "decamp" else None
            told = f"{ratio:.2f}" if ratio is not None else ""
            row = f"{workload:<13}{tool:<9}{figures['wall_s']:>9.2f}{figures['cpu_s']:>9.2f}{figures['peak_mb']:>9.0f}"
            lines.append(f"{row}{told:>13}")
    return "\n".join(lines)
