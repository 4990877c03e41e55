"""Rollout scheduling over the grid: the table, its bars, and a Plotly page of one cell over time.

    python -m benchmarks.scheduler [--seeds 3] [--first-seed 100] [--out DIR] [--check-engine]

`--check-engine` measures instead how a decode step of the real torch engine grows with the batch, against the line
that the simulator's engine assumes.
"""

import argparse
import asyncio
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import median

import numpy as np
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots

from trainer.policy.model import load_model
from trainer.rollout.engine import SamplingSpec
from trainer.rollout.scheduler_grid import (
    KV_TOKENS,
    Comparison,
    Grid,
    GridRow,
    compare,
    format_table,
    run_grid,
    run_timeline,
    write_grid,
    write_timeline,
)
from trainer.rollout.simulate import Cluster, Policy, Result
from trainer.rollout.torch_engine import TorchEngine

OVER_STATIC = 1.5  # at least, where KV is scarce or medium
OVER_LEAST = 0.97  # at least, everywhere
PREEMPTIONS = 0.1  # at most, of those of least requests
BATCHES = (1, 4, 16, 32, 64, 128)
TOKENS = 64
COLORS = {
    Policy.BARRIER: "#9ca3af",
    Policy.STATIC: "#b45309",
    Policy.LEAST: "#7c3aed",
    Policy.OURS: "#2563eb",
}

LEGEND = {"orientation": "h", "y": -0.07}  # below: the color bar is at the right
FOLLOW_THEME = """
if (matchMedia('(prefers-color-scheme: dark)').matches) {
  const page = document.getElementById('{plot_id}'), colors = {paper_bgcolor: '#111827', plot_bgcolor: '#111827'};
  for (const axis of Object.keys(page.layout).filter(name => /^[xy]axis/.test(name))) {
    colors[axis + '.gridcolor'] = colors[axis + '.zerolinecolor'] = '#374151';
  }
  document.body.style.background = '#111827';
  Plotly.relayout(page, {...colors, 'font.color': '#e5e7eb'});
}
"""


def check_bars(cells: Sequence[Comparison]) -> list[tuple[str, bool]]:
    """What is asked, with the worst cell's number, and whether it holds."""
    pressed = [cell for cell in cells if cell.kv != "ample"]
    static = min((cell.speedup(Policy.STATIC) for cell in pressed), default=float("inf"))
    least = min(cell.speedup(Policy.LEAST) for cell in cells)
    share = max(cell.preemption_share for cell in cells)
    return [
        (f"over a static split, KV scarce or medium: {static:.2f} >= {OVER_STATIC}", static >= OVER_STATIC),
        (f"over least requests, everywhere: {least:.3f} >= {OVER_LEAST}", least >= OVER_LEAST),
        (f"preemptions, of those of least requests: {share:.3f} <= {PREEMPTIONS}", share <= PREEMPTIONS),
    ]


def draw(results: dict[str, Result], title: str) -> go.Figure:
    """KV use of every engine over time, a row a policy, and how many turns run."""
    figure = make_subplots(
        rows=len(results) + 1,
        cols=1,
        shared_xaxes=True,
        vertical_spacing=0.04,
        subplot_titles=[f"{name}: KV use, an engine a line" for name in results] + ["turns that run, all engines"],
    )
    for row, (name, result) in enumerate(results.items(), start=1):
        times = sorted({sample.time_s for sample in result.samples})
        engines = sorted({sample.engine for sample in result.samples})
        use = {(sample.engine, sample.time_s): sample.kv_use for sample in result.samples}
        grid = [[use[engine, at] for at in times] for engine in engines]
        figure.add_trace(
            go.Heatmap(x=times, y=engines, z=grid, zmin=0, zmax=1, colorscale="Viridis", showscale=row == 1), row, 1
        )
        running: dict[float, int] = {}
        for sample in result.samples:
            running[sample.time_s] = running.get(sample.time_s, 0) + sample.running
        figure.add_trace(
            go.Scatter(x=times, y=[running[at] for at in times], name=name, line_color=COLORS[Policy(name)]),
            len(results) + 1,
            1,
        )
    figure.update_xaxes(title_text="seconds", row=len(results) + 1, col=1)
    figure.update_layout(template="plotly_white", height=230 * (len(results) + 1), title=title, legend=LEGEND)
    return figure


async def time_step(engine: TorchEngine, batch: int, tokens: int) -> float:
    """Seconds of a decode step with so many requests, prompts of 8 ids included as one step more."""
    rng = np.random.default_rng(batch)
    prompts = rng.integers(1, 200, (batch, 8)).tolist()
    started = time.perf_counter()
    await asyncio.gather(
        *(engine.generate(ids, SamplingSpec(tokens, 1.0, seed, ())) for seed, ids in enumerate(prompts))
    )
    return (time.perf_counter() - started) / tokens


def check_engine(model: Path, rounds: int = 3) -> str:
    """Step time against batch on the torch engine, beside the straight line fitted to it."""
    torch.set_num_threads(1)
    policy = load_model(model)

    async def measure() -> list[float]:
        engine = TorchEngine(policy, max_batch=max(BATCHES), max_context=256)
        await time_step(engine, 4, 8)
        return [median([await time_step(engine, batch, TOKENS) for _ in range(rounds)]) for batch in BATCHES]

    seconds = asyncio.run(measure())
    slope, start = np.polyfit(BATCHES, seconds, 1, w=1 / np.array(seconds))
    lines = [
        f"step = {start * 1e3:.2f} ms + batch x {slope * 1e3:.3f} ms",
        "| batch | step ms | line ms | off | tokens/s |\n|---|---|---|---|---|",
    ]
    for batch, measured in zip(BATCHES, seconds, strict=True):
        line = start + slope * batch
        lines.append(
            f"| {batch} | {measured * 1e3:.2f} | {line * 1e3:.2f} | {line / measured - 1:+.0%} "
            f"| {batch / measured:.0f} |"
        )
    return "\n".join(lines) + "\n"


def run(grid: Grid, out: Path) -> bool:
    out.mkdir(parents=True, exist_ok=True)
    rows: list[GridRow] = []
    for row in run_grid(grid):
        rows.append(row)
        print(f"{row.engines} engines, {row.kv}, tool {row.tool_s:g} s, {row.policy}: {row.seconds:.0f} s", flush=True)
    write_grid(rows, out / "grid.csv")
    print(format_table(rows))
    kv, cluster, workload = list(grid.cells())[len(grid.tool_s) // 2]
    timeline = run_timeline(cluster, workload, grid.first_seed)
    write_timeline(timeline, out / "timeline.json")
    draw(timeline, title_of(kv, cluster)).write_html(
        out / "scheduler.html", include_plotlyjs=True, post_script=FOLLOW_THEME
    )
    print(f"{out / 'scheduler.html'}: {title_of(kv, cluster)}")
    bars = check_bars(compare(rows))
    for text, holds in bars:
        print(f"{'ok  ' if holds else 'FAIL'}  {text}")
    return all(holds for _, holds in bars)


def title_of(kv: str, cluster: Cluster) -> str:
    return f"{cluster.engines} engines, KV {kv} ({cluster.kv_tokens:,} tokens each), tool calls of {cluster.tool_s:g} s"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scheduler")
    parser.add_argument("--engines", type=int, nargs="+", default=[8, 64])
    parser.add_argument("--kv", nargs="+", choices=list(KV_TOKENS), default=list(KV_TOKENS))
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=100, help="bars count on seeds it was not tuned on (>= 100)")
    parser.add_argument("--out", type=Path, default=Path("var/scheduler"))
    parser.add_argument("--check-engine", action="store_true")
    options = parser.parse_args(arguments)
    if options.check_engine:
        print(check_engine(Path("models/tiny-base")))
        return 0
    grid = Grid(tuple(options.engines), tuple(options.kv), seeds=options.seeds, first_seed=options.first_seed)
    return 0 if run(grid, options.out) else 1


if __name__ == "__main__":
    sys.exit(main())
