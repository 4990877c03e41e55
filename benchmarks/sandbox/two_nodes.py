"""Two real nodes, each on a core of its own, under an open loop; beside it what the simulator says of the same calls.

Costs come from the same run: one caller on the first node for execution, both saturated for the rest. The driver runs
on the same two cores, so its CPU per call is added to the front's.
"""

import argparse
import os
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.sandbox import report
from benchmarks.sandbox.contestants import Node, settle
from benchmarks.sandbox.costs import measured_costs
from benchmarks.sandbox.load import Measured, closed_loop, endless, mean, open_loop, quantile
from benchmarks.sandbox.machine import MachineFacts, Usage
from benchmarks.sandbox.workload import BLOCK_CALLS, mixed_load
from contracts.execution import Execution, ExecutionCall
from sandbox.client import SandboxClient
from sandbox.simulate import Costs, Layout, Outcome, Simulation

BOXES = 3  # one of each tier
LOADS = (0.3, 0.5, 0.7)
CALLERS = 8


class Pair:
    """Two nodes behind one client."""

    name = "two nodes"

    def __init__(self, first: Node, second: Node) -> None:
        self.nodes = (first, second)
        self._client: SandboxClient | None = None

    async def start(self) -> None:
        """Start both."""
        for node in self.nodes:
            await node.start()
        self._client = SandboxClient([node.url for node in self.nodes], "benchmark", give_up_after_s=600)

    async def run(self, call: ExecutionCall) -> Execution:
        """On one of the two, as the client chooses."""
        assert self._client is not None  # noqa: S101 - started
        return await self._client.run(call)

    def usage(self) -> Usage:
        """Of both."""
        first, second = (node.usage() for node in self.nodes)
        return Usage(first.tree_s + second.tree_s, first.root_s + second.root_s)

    async def replaced(self) -> int:
        """Of both."""
        return sum([await node.replaced() for node in self.nodes])

    async def stop(self) -> None:
        """End both."""
        if self._client is not None:
            await self._client.aclose()
        for node in self.nodes:
            await node.stop()


async def compare(options: argparse.Namespace, folder: Path, machine: MachineFacts) -> str:
    """Run it; a markdown table, measured and simulated side by side."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        raise SystemExit("two-nodes needs two cores")
    first, second = (Node(f"node {core}", folder / f"core-{core}", boxes=BOXES, cores={core}) for core in cores)
    pair = Pair(first, second)
    stream = endless(mixed_load(10 * BLOCK_CALLS, options.seed))
    rows = []
    try:
        await pair.start()
        await settle(pair)
        quiet = await closed_loop(first, stream, callers=1, seconds=options.seconds)
        await settle(pair)
        busy = await closed_loop(pair, stream, callers=CALLERS, seconds=options.seconds)
        costs = Costs.of(measured_costs(quiet, busy, machine))
        for load in LOADS:
            await settle(pair)
            rate, driver = load * busy.calls_per_s, time.process_time()
            seconds = options.open_seconds
            measured = await open_loop(pair, stream, calls_per_s=rate, seconds=seconds, seed=options.seed)
            driver_ms = (time.process_time() - driver) * 1000 / max(1, len(measured.samples))
            rows += _rows(f"{load:.0%} = {rate:.1f}/s", measured, _simulate(costs, measured, driver_ms))
    finally:
        await pair.stop()
    title = f"Two nodes of one core and {BOXES} boxes; saturated {busy.calls_per_s:.1f} calls/s"
    header = ("load", "", "calls/s", "mean ms", "p50", "p90", "p99", "calls")
    return f"{title}\n\n{report.table(header, rows)}"


def _simulate(costs: Costs, measured: Measured, driver_ms: float) -> Outcome:
    """The same calls at the same times."""
    known = [sample for sample in measured.samples if sample.kind in costs.kinds]
    sent = sorted((sample.ended_at - sample.latency_ms / 1000, sample.kind.value) for sample in known)
    costs = replace(costs, front_ms=costs.front_ms + driver_ms)
    layout = Layout(nodes=2, cores=1, boxes=1)
    return Simulation(costs, layout).run([at for at, _ in sent], [kind for _, kind in sent])


def _rows(load: str, measured: Measured, simulated: Outcome) -> list[list[object]]:
    every = measured.latencies()
    ms = [1000 * simulated.quantile_s(q) for q in (0.5, 0.9, 0.99)]
    return [
        [
            load,
            "measured",
            measured.calls_per_s,
            mean(every),
            *(quantile(every, q) for q in (0.5, 0.9, 0.99)),
            len(every),
        ],
        ["", "simulated", simulated.calls_per_s, 1000 * simulated.mean_s, *ms, len(simulated.latencies)],
    ]
