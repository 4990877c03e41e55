"""python -m benchmarks.sandbox: see --help and docs/scale.md."""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.sandbox.contestants import Contestant, FreshInterpreters, Node
from benchmarks.sandbox.machine import read_machine
from benchmarks.sandbox.modes import Bench

MODES = ("closed",)
CONTESTANTS = ("ours", "plain", "code-judge")


def main() -> int:
    """Run the modes asked for and print their tables; code 1 when a bar is missed."""
    options = _parser().parse_args()
    machine = read_machine()
    print("\n".join(machine.lines()), flush=True)
    with tempfile.TemporaryDirectory(prefix="sandbox-bench-") as folder:
        bench = Bench(options, _contestants(options, Path(folder)))
        asyncio.run(bench.run())
    print(f"\nload average before {machine.load_before}, after {os.getloadavg()[0]:.2f}")
    if options.json:
        machine = replace(machine, load_after=round(os.getloadavg()[0], 2))
        options.json.write_text(json.dumps(bench.summary(machine), indent=1))
    return 0 if bench.is_good else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="everything short: at most two minutes")
    parser.add_argument("--modes", type=_names(MODES), default=["closed"], metavar=",".join(MODES))
    parser.add_argument("--only", type=_names(CONTESTANTS), default=list(CONTESTANTS), metavar=",".join(CONTESTANTS))
    parser.add_argument("--c", type=int, nargs="+", help="callers of the closed loop; default: 1, cores, 4 cores, 1000")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each contestant at each load")
    parser.add_argument("--rounds", type=int, default=2, help="turns into which those seconds are divided")
    parser.add_argument("--boxes", type=int, default=0, help="of each node; default: the node's own choice")
    parser.add_argument("--judge-workers", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything here")
    return parser


def _names(allowed: tuple[str, ...]):
    def parse(text: str) -> list[str]:
        names = text.split(",")
        if unknown := set(names) - set(allowed):
            raise argparse.ArgumentTypeError(f"{', '.join(sorted(unknown))}: choose from {', '.join(allowed)}")
        return names

    return parse


def _contestants(options: argparse.Namespace, folder: Path) -> list[Contestant]:
    made: dict[str, Contestant] = {
        "ours": Node("ours", folder / "ours", boxes=options.boxes),
        "plain": Node("plain", folder / "plain", boxes=options.boxes, is_isolated=False),
        "code-judge": FreshInterpreters(options.judge_workers),
    }
    return [made[name] for name in options.only]


if __name__ == "__main__":
    sys.exit(main())
