"""Plain GRPO against GRPO-RoC on the demo task: does resample on correct keep lowering tool errors (paper 5.3)?

    python -m benchmarks.roc_ablation [--seeds 1 2 3] [--steps 30] [--go-on DIR]

For each seed the demo recipe's curation and SFT run once; then both arms start from that checkpoint with the same
problems, the same number of rollouts generated and learned from, and the same updates. Only the rule differs by which
half of a group is kept. Prints a table and writes a Plotly page beside the runs.
"""

import argparse
import html
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

import plotly.graph_objects as go
import yaml
from plotly.subplots import make_subplots

from benchmarks.runs import sandbox_node, train
from contracts.events import Event, Metrics

DEMO = Path("recipes/demo.yaml")
ARMS = {"GRPO": "none", "GRPO-RoC": "paper"}
COLORS = {"GRPO": "#b45309", "GRPO-RoC": "#2563eb"}
SHOWN = {
    "tools/error_ratio_right": "tool-error ratio, right rollouts",
    "response/tokens_mean": "response length (tokens)",
    "eval/avg": "held-out avg@k",
}
BUCKET = 5  # steps that are averaged: a step has some hundred tool calls


@dataclass(frozen=True)
class Arm:
    """One run: its metrics by name, each a value by step."""

    name: str
    seed: int
    values: dict[str, dict[int, float]]


def recipes(seed: int, steps: int, prompts: int, start: str) -> dict[str, dict[str, Any]]:
    """The start and both arms as recipes; `start` is the checkpoint the arms begin with."""
    demo = yaml.safe_load(DEMO.read_text())
    curate, sft, rl = demo["stages"][:3]
    rl |= {"steps": steps, "prompts_per_step": prompts, "mini_batch": rl["group_size"] * prompts // 4}
    rl |= {"evaluate_every": BUCKET, "checkpoint_every": BUCKET}
    found = {"start": demo | {"name": "ablation start", "seed": seed, "stages": [curate, sft]}}
    for arm, rule in ARMS.items():
        stages = [curate, rl | {"resample": rule}]
        found[arm] = demo | {"name": f"ablation {arm}", "seed": seed, "model": start, "stages": stages}
    return found


def run_seed(seed: int, out: Path, steps: int, prompts: int) -> list[Arm]:
    """SFT once, then both arms."""
    start = out / f"seed-{seed}" / "start"
    _run(recipes(seed, steps, prompts, "")["start"], start)
    checkpoint = max(
        path for path in (start / "checkpoints").iterdir() if path.is_dir() and not path.name.startswith(".")
    )
    made = recipes(seed, steps, prompts, str(checkpoint.resolve()))
    return [read_arm(arm, seed, _run(made[arm], out / f"seed-{seed}" / arm)) for arm in ARMS]


def _run(recipe: Mapping[str, Any], out: Path) -> list[Event]:
    out.parent.mkdir(parents=True, exist_ok=True)
    path = out.with_suffix(".yaml")
    path.write_text(yaml.safe_dump(dict(recipe), sort_keys=False))
    return train(path, out)


def read_arm(name: str, seed: int, events: Sequence[Event]) -> Arm:
    """The shown metrics of a finished run."""
    values: dict[str, dict[int, float]] = {metric: {} for metric in SHOWN}
    for event in events:
        if isinstance(event.payload, Metrics):
            for metric in SHOWN.keys() & event.payload.values.keys():
                values[metric][event.payload.step] = float(event.payload.values[metric])
    return Arm(name, seed, values)


def bucket_means(values: Mapping[int, float]) -> dict[int, float]:
    """Mean over each BUCKET steps, by the last step of the bucket. NaN (no right rollout called a tool) is left out."""
    grouped: dict[int, list[float]] = {}
    for step, value in values.items():
        if value == value:
            grouped.setdefault(-(-step // BUCKET) * BUCKET, []).append(value)
    return {end: fmean(found) for end, found in sorted(grouped.items())}


def format_table(arms: Sequence[Arm]) -> str:
    """By bucket of steps: mean over the seeds, and the seeds' own values."""
    lines = ["| steps | " + " | ".join(f"{label}: {arm}" for label in SHOWN.values() for arm in ARMS) + " |"]
    lines.append("|---" * (1 + len(SHOWN) * len(ARMS)) + "|")
    buckets = sorted({end for arm in arms for end in bucket_means(arm.values["response/tokens_mean"])})
    for end in buckets:
        cells = [
            _cell([bucket_means(a.values[m]).get(end) for a in arms if a.name == name]) for m in SHOWN for name in ARMS
        ]
        lines.append(f"| {end - BUCKET + 1}-{end} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _cell(found: Sequence[float | None]) -> str:
    there = [value for value in found if value is not None]
    if not there:
        return ""
    digits = 0 if max(there) > 10 else 3
    own = ", ".join(f"{value:.{digits}f}" for value in there)
    return f"**{fmean(there):.{digits}f}** ({own})"


def draw(arms: Sequence[Arm]) -> go.Figure:
    """One panel a metric: each seed thin, the mean of the seeds thick."""
    figure = make_subplots(
        rows=len(SHOWN), cols=1, shared_xaxes=True, vertical_spacing=0.07, subplot_titles=list(SHOWN.values())
    )
    for row, metric in enumerate(SHOWN, 1):
        for name in ARMS:
            curves = [bucket_means(arm.values[metric]) for arm in arms if arm.name == name]
            for curve in curves:
                figure.add_scatter(
                    x=list(curve), y=list(curve.values()), row=row, col=1, showlegend=False, hoverinfo="skip",
                    line={"color": COLORS[name], "width": 1}, opacity=0.35,
                )  # fmt: skip
            ends = sorted({end for curve in curves for end in curve})
            means = [fmean(curve[end] for curve in curves if end in curve) for end in ends]
            figure.add_scatter(
                x=ends, y=means, row=row, col=1, name=name, legendgroup=name, showlegend=row == 1,
                line={"color": COLORS[name], "width": 3},
            )  # fmt: skip
    figure.update_xaxes(title_text=f"step (mean of {BUCKET})", row=len(SHOWN), col=1)
    figure.update_yaxes(rangemode="tozero")
    seeds = len({arm.seed for arm in arms})
    figure.update_layout(
        template="plotly_white", height=900, title=f"GRPO and GRPO-RoC on the demo task, {seeds} seeds"
    )
    return figure


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--steps", type=int, default=30, help="RL steps of an arm")
    parser.add_argument("--prompts", type=int, default=8, help="prompts a step")
    parser.add_argument("--out", type=Path, default=Path("var/roc-ablation"))
    parser.add_argument("--go-on", type=Path, metavar="DIR", help="an earlier benchmark's folder: finish and print it")
    options = parser.parse_args()
    out = options.go_on or options.out / time.strftime("%Y%m%d-%H%M%S")
    arms: list[Arm] = []
    with sandbox_node(out / "sandbox"):
        for seed in options.seeds:
            arms += run_seed(seed, out, options.steps, options.prompts)
            report(arms, out)
    return 0


def report(arms: Sequence[Arm], out: Path) -> None:
    """Print the table; write it, the page and the numbers."""
    table = format_table(arms)
    print(table, flush=True)
    note = f"<pre>{html.escape(table)}</pre>"
    page = draw(arms).to_html(include_plotlyjs=True, full_html=True).replace("</body>", f"{note}</body>")
    (out / "roc-ablation.html").write_text(page)
    (out / "roc-ablation.json").write_text(json.dumps([arm.__dict__ for arm in arms], indent=1))


if __name__ == "__main__":
    sys.exit(main())
