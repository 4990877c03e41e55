"""python -m benchmarks.sandbox: see --help and docs/scale.md."""

import argparse
import asyncio
import json
import os
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.sandbox.ablated import ABLATIONS
from benchmarks.sandbox.calibrate import calibrate
from benchmarks.sandbox.code_judge import CodeJudge
from benchmarks.sandbox.contestants import Contestant, FreshInterpreters, Node
from benchmarks.sandbox.machine import MachineFacts, read_machine
from benchmarks.sandbox.modes import OPEN_SHARES, Bench
from benchmarks.sandbox.report import table
from benchmarks.sandbox.two_nodes import compare
from sandbox.simulate import write_between_marks

MODES = ("closed", "open", "overrun", "replace", "burst")
ALONE = ("calibrate", "two-nodes")  # modes that run by themselves, when asked for
CONTESTANTS = ("ours", "plain", "code-judge")
EVERYBODY = (*CONTESTANTS, *ABLATIONS)


def main() -> int:
    """Run the modes asked for and print their tables; code 1 when a bar is missed."""
    options = _parser().parse_args()
    if options.quick:
        vars(options).update(_QUICK)
    machine = read_machine()
    print("\n".join(machine.lines()), flush=True)
    if options.modes[0] in ALONE:
        text = _run_alone(options, machine)
        print(f"\n### {options.modes[0]}\n\n{text}")
        if options.markdown:
            write_between_marks(options.markdown, options.modes[0], text)
        return 0
    with tempfile.TemporaryDirectory(prefix="sandbox-bench-") as folder:
        bench = Bench(options, _contestants(options, Path(folder)))
        asyncio.run(bench.run())
    bars = bench.check_bars()
    print(f"\n### Bars\n\n{table(('bar', 'promised', 'measured', 'met'), [bar.cells() for bar in bars])}")
    print(f"\nload average before {machine.load_before}, after {os.getloadavg()[0]:.2f}")
    summary = bench.summary(replace(machine, load_after=round(os.getloadavg()[0], 2)))
    if options.json:
        options.json.write_text(json.dumps(summary, indent=1) + "\n")
    if options.costs and summary["costs"]:
        options.costs.write_text(json.dumps(summary["costs"]) + "\n")
    elif options.costs:
        raise SystemExit(f"{options.costs} not written: boxes were replaced meanwhile, take fewer --seconds")
    return 1 if any(bar.is_met is False for bar in bars) else 0


def _run_alone(options: argparse.Namespace, machine: MachineFacts) -> str:
    if options.modes[0] == "calibrate":
        return calibrate(options.seed)
    with tempfile.TemporaryDirectory(prefix="sandbox-bench-") as folder:
        return asyncio.run(compare(options, Path(folder), machine))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.sandbox", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="everything, but short: about two minutes")
    parser.add_argument("--modes", type=_names(MODES + ALONE), default=list(MODES), metavar=",".join(MODES + ALONE))
    parser.add_argument("--only", type=_names(EVERYBODY), default=list(CONTESTANTS), metavar=",".join(EVERYBODY))
    parser.add_argument("--c", type=int, nargs="+", help="callers of the closed loop; default: 1, cores, 4 cores, 1000")
    parser.add_argument("--seconds", type=float, default=20.0, help="closed loop: of each contestant at each --c")
    parser.add_argument("--rounds", type=int, default=2, help="turns into which those seconds are divided")
    parser.add_argument("--shares", type=float, nargs="+", default=list(OPEN_SHARES), help="open loop: of saturation")
    parser.add_argument("--open-seconds", type=float, default=40.0, help="open loop: at each share")
    parser.add_argument("--burst-calls", type=int, default=45_000)
    parser.add_argument("--burst-load", choices=("trivial", "mix"), default="trivial")
    parser.add_argument("--senders", type=int, default=64, help="calls of the burst under way at a time")
    parser.add_argument("--repeats", type=int, default=2, help="of each program that outlives its limit")
    parser.add_argument("--boxes", type=int, default=0, help="of each node; default: the node's own choice")
    parser.add_argument("--code-judge", type=Path, metavar="DIR", help="a checkout of 0xWJ/code-judge with a .venv")
    parser.add_argument("--judge-workers", type=int, default=2 * (os.cpu_count() or 1))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything here")
    parser.add_argument("--costs", type=Path, metavar="FILE", help="write what the simulator reads: costs of a call")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="calibrate, two-nodes: put it between its marks")
    return parser


_QUICK = {
    "c": [4 * (os.cpu_count() or 1)], "seconds": 8.0, "rounds": 1, "shares": [0.2, 0.5], "open_seconds": 12.0,
    "burst_calls": 300, "repeats": 1,
}  # fmt: skip


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
        "code-judge": _judge(options, folder / "code-judge"),
    }
    for name in ABLATIONS:
        made[name] = Node(name, folder / name, boxes=options.boxes, module=("benchmarks.sandbox.ablated", name))
    return [made[name] for name in options.only]


def _judge(options: argparse.Namespace, folder: Path) -> Contestant:
    if options.code_judge is None:
        return FreshInterpreters(options.judge_workers)
    return CodeJudge(options.code_judge, folder, workers=options.judge_workers)


if __name__ == "__main__":
    sys.exit(main())
