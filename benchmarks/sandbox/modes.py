"""The modes of the benchmark: which load, on whom, in what order, and the tables they print."""

import argparse
import contextlib
import os
from dataclasses import asdict
from typing import Any

from benchmarks.sandbox import report
from benchmarks.sandbox.contestants import Contestant, settle
from benchmarks.sandbox.load import Measured, closed_loop, endless
from benchmarks.sandbox.machine import MachineFacts
from benchmarks.sandbox.workload import BLOCK_CALLS, mixed_load

LOAD_CALLS = 10 * BLOCK_CALLS
WARM_UP_S = 2.0


class Bench:
    """One run over started contestants."""

    def __init__(self, options: argparse.Namespace, contestants: list[Contestant]) -> None:
        self._options = options
        self._contestants = contestants
        self._tasks = mixed_load(LOAD_CALLS, options.seed)
        self.closed: dict[int, list[Measured]] = {}
        self.bars: list[report.Bar] = []

    @property
    def is_good(self) -> bool:
        """No bar was missed."""
        return all(bar.is_met is not False for bar in self.bars)

    async def run(self) -> None:
        """Start everybody, run the modes, end everybody."""
        async with contextlib.AsyncExitStack() as stack:
            for contestant in self._contestants:
                stack.push_async_callback(contestant.stop)
                await contestant.start()
                await closed_loop(contestant, endless(self._tasks), callers=2, seconds=WARM_UP_S)
            await self.run_closed()

    async def run_closed(self) -> None:
        """Every contestant at every number of callers, turn by turn so that a neighbour disturbs all alike."""
        cores = len(os.sched_getaffinity(0))
        for callers in self._options.c or (1, cores, 4 * cores, 1000):
            streams = {contestant.name: endless(self._tasks) for contestant in self._contestants}
            results = {contestant.name: Measured(contestant.name) for contestant in self._contestants}
            seconds = self._options.seconds / self._options.rounds
            for _ in range(self._options.rounds):
                for contestant in self._contestants:
                    await settle(contestant)
                    stream = streams[contestant.name]
                    results[contestant.name].add(
                        await closed_loop(contestant, stream, callers=callers, seconds=seconds)
                    )
            self.closed[callers] = list(results.values())
            self._print(f"Closed loop, {callers} callers", self.closed[callers])

    def _print(self, title: str, results: list[Measured]) -> None:
        print(f"\n### {title}\n\n{report.table(report.HEADER, [report.row(one) for one in results])}")
        for one in results:
            for sample in one.faults[:3]:
                print(f"\nwrong, {one.name}, {sample.kind.value}: {sample.fault}")
        if results and results[0].name == "ours":
            print(f"\nours by kind of program (ms):\n\n{report.by_kind(results[0])}", flush=True)

    def summary(self, machine: MachineFacts) -> dict[str, Any]:
        """Everything, for a file."""
        return {
            "machine": asdict(machine),
            "closed": {
                callers: [dict(zip(report.HEADER, report.row(one), strict=True)) for one in results]
                for callers, results in self.closed.items()
            },
            "bars": [asdict(bar) for bar in self.bars],
        }
