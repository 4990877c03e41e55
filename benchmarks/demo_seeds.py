"""The bars of the demo recipe for several seeds: `make demo-seeds`.

Runs the real trainer against a sandbox node of its own, one seed after the other, and reads the
journals. Prints a table and ends with code 1 when a bar is missed.
"""

import argparse
import json
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.runs import sandbox_node, train
from contracts.events import EvaluationFinished, Event, RunEnded

MIN_FINAL = 0.90
MIN_GAIN = 0.25
MAX_RATIO_LEFT = 1 / 3


@dataclass(frozen=True)
class Row:
    """What one seed came to. avg: held-out avg@k; errors: tool-error ratio of right trajectories."""

    seed: int
    sft_avg: float
    final_avg: float
    final_half_width: float
    sft_errors: float
    final_errors: float
    minutes: float

    @property
    def passed(self) -> bool:
        gained = self.final_avg - self.sft_avg >= MIN_GAIN
        cleaner = self.final_errors <= self.sft_errors * MAX_RATIO_LEFT
        return self.final_avg >= MIN_FINAL and gained and cleaner


def run_seed(recipe: str, seed: int, out: Path, extra: list[str]) -> Row:
    """Train once; the row of the first and the last evaluation."""
    return read_row(seed, train(recipe, out, ["--seed", str(seed), *extra]))


def read_row(seed: int, events: list[Event]) -> Row:
    """The row of a finished run, from its journal."""
    boards = [e.payload for e in events if isinstance(e.payload, EvaluationFinished) and e.payload.board]
    first, *_, last = boards
    ended = next(e.time for e in events if isinstance(e.payload, RunEnded))
    if first.avg is None or last.avg is None:
        raise SystemExit(f"seed {seed}: nothing could be graded")
    return Row(
        seed=seed,
        sft_avg=first.avg.value,
        final_avg=last.avg.value,
        final_half_width=last.avg.half_width,
        sft_errors=first.tool_error_ratio_right or 0.0,
        final_errors=last.tool_error_ratio_right or 0.0,
        minutes=(ended - events[0].time).total_seconds() / 60,
    )


def print_table(rows: list[Row]) -> None:
    print("| seed | SFT avg@4 | final avg@4 | gain | tool errors, right: SFT | final | left | minutes | bars |")
    print("|---|---|---|---|---|---|---|---|---|")
    for r in rows:
        left = r.final_errors / r.sft_errors if r.sft_errors else float("nan")
        print(
            f"| {r.seed} | {r.sft_avg:.3f} | {r.final_avg:.3f} ± {r.final_half_width:.3f} "
            f"| {r.final_avg - r.sft_avg:+.3f} | {r.sft_errors:.3f} | {r.final_errors:.3f} "
            f"| {left:.2f} | {r.minutes:.1f} | {'met' if r.passed else 'MISSED'} |"
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--recipe", default="recipes/demo.yaml")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--out", type=Path, default=Path("var/demo-seeds"))
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="passed on to the trainer")
    parser.add_argument("--go-on", type=Path, metavar="DIR", help="an earlier benchmark's folder: finish and print it")
    options = parser.parse_args()
    out = options.go_on or options.out / time.strftime("%Y%m%d-%H%M%S")
    extra = [part for item in options.set for part in ("--set", item)]
    with sandbox_node(out / "sandbox"):
        rows = [run_seed(options.recipe, seed, out / f"seed-{seed}", extra) for seed in options.seeds]
    print_table(rows)
    (out / "table.json").write_text(json.dumps([r.__dict__ for r in rows], indent=1))
    return 0 if all(r.passed for r in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
