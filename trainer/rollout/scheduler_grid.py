"""The comparison of rollout policies over a grid of clusters: rows, the table, files."""

import csv
import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean

from trainer.rollout.simulate import Cluster, Policy, Result, Workload, make_router, simulate

KV_TOKENS = {"scarce": 64_000, "medium": 128_000, "ample": 512_000}  # an engine's; docs/decisions/scheduler.md
GROUPS_PER_ENGINE = 8  # of 32: the paper's 512 prompts x 32 rollouts on 64 GPUs
TOOL_S = (0.05, 0.3, 2.0)
TIMELINE_EVERY_S = 5.0


@dataclass(frozen=True, slots=True)
class Grid:
    engines: tuple[int, ...] = (8, 64)
    kv: tuple[str, ...] = tuple(KV_TOKENS)
    tool_s: tuple[float, ...] = TOOL_S
    seeds: int = 3
    first_seed: int = 0  # the scheduler was tuned on seeds below 100
    policies: tuple[Policy, ...] = tuple(Policy)

    def cells(self) -> Iterator[tuple[str, Cluster, Workload]]:
        for engines in self.engines:
            for kv in self.kv:
                for tool_s in self.tool_s:
                    cluster = Cluster(engines, KV_TOKENS[kv], tool_s)
                    yield kv, cluster, Workload(groups=GROUPS_PER_ENGINE * engines)


@dataclass(frozen=True, slots=True)
class GridRow:
    """Means over the seeds. Shares are of the generated tokens; `busy` of engine time."""

    engines: int
    kv: str
    tool_s: float
    policy: str
    seconds: float
    preemptions: float
    recomputed: float
    prefilled: float
    busy: float
    tokens_per_s: float  # policy tokens, of each engine


def run_grid(grid: Grid) -> Iterator[GridRow]:
    """Row by row, as they are done."""
    for kv, cluster, workload in grid.cells():
        for policy in grid.policies:
            results = []
            for seed in range(grid.first_seed, grid.first_seed + grid.seeds):
                router = make_router(policy, cluster, workload.groups * workload.group_size)
                results.append(simulate(router, cluster, workload, seed))
            yield _make_row(kv, cluster, policy, results)


def run_timeline(cluster: Cluster, workload: Workload, seed: int = 0) -> dict[str, Result]:
    """One seed of a cell, with what each engine carried every few seconds, by policy."""
    return {
        policy.value: simulate(
            make_router(policy, cluster, workload.groups * workload.group_size),
            cluster,
            workload,
            seed,
            sample_every_s=TIMELINE_EVERY_S,
        )
        for policy in Policy
    }


def _make_row(kv: str, cluster: Cluster, policy: Policy, results: Sequence[Result]) -> GridRow:
    return GridRow(
        engines=cluster.engines,
        kv=kv,
        tool_s=cluster.tool_s,
        policy=policy.value,
        seconds=fmean(r.makespan_s for r in results),
        preemptions=fmean(r.preemptions for r in results),
        recomputed=fmean(r.recomputed / r.generated for r in results),
        prefilled=fmean(r.prefilled / r.generated for r in results),
        busy=fmean(r.busy for r in results),
        tokens_per_s=fmean(r.tokens_per_s(cluster.engines) for r in results),
    )


@dataclass(frozen=True, slots=True)
class Comparison:
    """A cell: seconds of the others over ours, preemptions of ours over those of least requests."""

    engines: int
    kv: str
    tool_s: float
    seconds: dict[Policy, float]
    preemptions: dict[Policy, float]

    def speedup(self, over: Policy) -> float:
        return self.seconds[over] / self.seconds[Policy.OURS]

    @property
    def preemption_share(self) -> float:
        """0 where neither preempts."""
        least = self.preemptions[Policy.LEAST]
        return self.preemptions[Policy.OURS] / least if least else float(self.preemptions[Policy.OURS] > 0)


def compare(rows: Sequence[GridRow]) -> list[Comparison]:
    """One for each cell, in the order of the rows."""
    cells: dict[tuple[int, str, float], list[GridRow]] = {}
    for row in rows:
        cells.setdefault((row.engines, row.kv, row.tool_s), []).append(row)
    return [
        Comparison(
            *cell,
            {Policy(row.policy): row.seconds for row in found},
            {Policy(row.policy): row.preemptions for row in found},
        )
        for cell, found in cells.items()
    ]


HEADER = (
    "| engines | KV | tool s | barriers s | static s | least s | ours s | over static | over least "
    "| preemptions: static | least | ours |\n|---|---|---|---|---|---|---|---|---|---|---|---|"
)


def format_table(rows: Sequence[GridRow]) -> str:
    """Markdown."""
    lines = [HEADER]
    for cell in compare(rows):
        seconds = " | ".join(f"{cell.seconds[policy]:.0f}" for policy in Policy)
        counts = " | ".join(f"{cell.preemptions[p]:.0f}" for p in (Policy.STATIC, Policy.LEAST, Policy.OURS))
        lines.append(
            f"| {cell.engines} | {cell.kv} | {cell.tool_s:g} | {seconds} "
            f"| {cell.speedup(Policy.STATIC):.2f} | {cell.speedup(Policy.LEAST):.2f} | {counts} |"
        )
    return "\n".join(lines) + "\n"


def write_grid(rows: Sequence[GridRow], path: Path) -> None:
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(asdict(rows[0])))
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def write_timeline(results: dict[str, Result], path: Path) -> None:
    """JSON: policy -> columns of the samples."""
    path.write_text(
        json.dumps({policy: [asdict(sample) for sample in result.samples] for policy, result in results.items()})
    )
