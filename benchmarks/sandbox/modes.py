"""The modes of the benchmark: which load, on whom, in what order, and the tables they print."""

import argparse
import asyncio
import contextlib
import os
import random
import signal
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from benchmarks.sandbox import bars, report
from benchmarks.sandbox.contestants import Contestant, Node, settle
from benchmarks.sandbox.costs import measured_costs
from benchmarks.sandbox.load import Measured, burst, closed_loop, endless, open_loop
from benchmarks.sandbox.machine import MachineFacts
from benchmarks.sandbox.workload import BLOCK_CALLS, MIX_LIMITS, WALL_LIMIT_S, Task, mixed_load, trivial_load
from contracts.execution import ExecutionCall

LOAD_CALLS = 10 * BLOCK_CALLS
WARM_UP_S = 2.0
OPEN_SHARES = (0.2, 0.3, 0.5, 0.7, 0.9)
KILLS = 6
REPLACE_GIVE_UP_S = 30.0
STUBBORN = {
    "loop": "while True:\n    pass\n",
    "loop in C": "sum(range(10**12))\n",
    "loop that catches everything": "while True:\n    try:\n        while True:\n            pass\n"
    "    except BaseException:\n        pass\n",
    "sleep": "import time\ntime.sleep(100)\n",
    "sleep deaf to signals": "import signal, time\nfor n in range(1, 32):\n    try:\n"
    "        signal.signal(n, signal.SIG_IGN)\n    except OSError:\n        pass\nwhile True:\n    time.sleep(100)\n",
}


class Bench:
    """One run over started contestants. The first of them is the one whose bars are checked."""

    def __init__(self, options: argparse.Namespace, contestants: list[Contestant]) -> None:
        self._options = options
        self._contestants = contestants
        self._tasks = mixed_load(LOAD_CALLS, options.seed)
        self.cores = len(os.sched_getaffinity(0))
        self.closed: dict[int, list[Measured]] = {}
        self.opened: dict[float, Measured] = {}
        self.burst: Measured | None = None
        self.replacements: list[float] = []
        self.overruns: dict[str, list[float]] = {}

    async def run(self) -> None:
        """Start everybody, run the modes, end everybody."""
        async with contextlib.AsyncExitStack() as stack:
            for contestant in self._contestants:
                stack.push_async_callback(contestant.stop)
                await contestant.start()
                await closed_loop(contestant, endless(self._tasks), callers=2, seconds=WARM_UP_S)
            modes = {
                "closed": self.run_closed,
                "open": self.run_open,
                "overrun": self.run_overrun,
                "replace": self.run_replace,
                "burst": self.run_burst,
            }
            for name in self._options.modes:
                await modes[name]()

    @property
    def node(self) -> Node:
        """Our node."""
        node = self._contestants[0]
        if not isinstance(node, Node):
            raise SystemExit("this mode needs `ours` among --only")
        return node

    async def run_closed(self) -> None:
        """Every contestant at every number of callers, turn by turn so that a neighbour disturbs all alike."""
        for callers in self._options.c or (1, self.cores, 4 * self.cores, 1000):
            self.closed[callers] = await self._closed(callers)
            self._print(f"Closed loop, {callers} callers", self.closed[callers])

    async def _closed(self, callers: int) -> list[Measured]:
        streams = {contestant.name: endless(self._tasks) for contestant in self._contestants}
        results = {contestant.name: Measured(contestant.name) for contestant in self._contestants}
        seconds = self._options.seconds / self._options.rounds
        for _ in range(self._options.rounds):
            for contestant in self._contestants:
                await settle(contestant)
                stream = streams[contestant.name]
                results[contestant.name].add(await closed_loop(contestant, stream, callers=callers, seconds=seconds))
        return list(results.values())

    async def run_open(self) -> None:
        """Our node under Poisson arrivals at shares of what it does in a closed loop with four callers a core."""
        if 4 * self.cores not in self.closed:
            contestants, self._contestants = self._contestants, self._contestants[:1]
            self.closed[4 * self.cores] = await self._closed(4 * self.cores)
            self._contestants = contestants
        saturation = self.closed[4 * self.cores][0].calls_per_s
        stream: Iterator[Task] = endless(self._tasks)
        for share in self._options.shares:
            await settle(self.node)
            rate = share * saturation
            seconds = self._options.open_seconds
            seed = self._options.seed
            self.opened[share] = await open_loop(self.node, stream, calls_per_s=rate, seconds=seconds, seed=seed)
        labels = {share: f"{share:.0%} = {share * saturation:.2f}/s" for share in self.opened}
        rows = [report.row(measured, labels[share]) for share, measured in self.opened.items()]
        title = f"Open loop, shares of {saturation:.1f} calls/s"
        print(f"\n### {title}\n\n{report.table(('load', *report.HEADER[1:]), rows)}", flush=True)
        for measured in self.opened.values():
            self._print_faults(measured)

    async def run_overrun(self) -> None:
        """How long programs that will not end outlive their limit, one kind after the other on an idle node."""
        await settle(self.node)
        for name, code in STUBBORN.items():
            call = ExecutionCall(id=f"overrun-{name}", code=code, limits=MIX_LIMITS)
            answers = [await self.node.run(call) for _ in range(self._options.repeats)]
            self.overruns[name] = [answer.exec_ms - WALL_LIMIT_S * 1000 for answer in answers]
        rows = [[name, min(spent), max(spent), len(spent)] for name, spent in self.overruns.items()]
        print(f"\n### Past a limit of {WALL_LIMIT_S:g} s (ms)\n")
        print(report.table(("program", "least", "most", "calls"), rows), flush=True)

    async def run_replace(self) -> None:
        """kill -9 a sentry of the idle node; the time until every box of the pool answers again."""
        rng = random.Random(self._options.seed)
        for _ in range(KILLS if self._options.repeats > 1 else 3):
            await settle(self.node)
            before = await self.node.health()
            os.kill(rng.choice(sorted(self.node.sentries())), signal.SIGKILL)
            killed = time.perf_counter()
            while True:
                health = await self.node.health()
                spent = time.perf_counter() - killed
                if health.replaced > before.replaced and health.ready >= before.ready:
                    break
                if spent > REPLACE_GIVE_UP_S:
                    raise SystemExit(f"a killed box was not replaced within {REPLACE_GIVE_UP_S:g} s: {health}")
                await asyncio.sleep(0.01)
            self.replacements.append(spent)
        shown = ", ".join(f"{spent:.2f}" for spent in self.replacements)
        print(f"\n### Replacement of a killed box (s)\n\n{shown}; median {statistics.median(self.replacements):.2f}")

    async def run_burst(self) -> None:
        """All calls at once, by few senders: none may be lost, none answered twice."""
        make = trivial_load if self._options.burst_load == "trivial" else mixed_load
        tasks = make(self._options.burst_calls, self._options.seed)
        await settle(self.node)
        served = (await self.node.health()).served
        self.burst = await burst(self.node, tasks, senders=self._options.senders, progress=_progress(len(tasks)))
        title = f"Burst of {len(tasks)} {self._options.burst_load} calls, {self._options.senders} senders"
        self._print(title, [self.burst])
        print(f"\nthe node counts {(await self.node.health()).served - served} answers", flush=True)

    def _print(self, title: str, results: list[Measured]) -> None:
        print(f"\n### {title}\n\n{report.table(report.HEADER, [report.row(one) for one in results])}")
        for one in results:
            self._print_faults(one)
        if results and results[0].name == "ours":
            print(f"\nours by kind of program (ms):\n\n{report.by_kind(results[0])}", flush=True)

    def _print_faults(self, measured: Measured) -> None:
        for sample in measured.faults[:3]:
            print(f"\nwrong, {measured.name}, {sample.kind.value}: {sample.fault}")

    def check_bars(self) -> list[bars.Bar]:
        """Every bar of the issue, those of modes that were not run included."""
        return bars.check(
            saturated=self.closed.get(4 * self.cores, []),
            opened=self.opened,
            burst=self.burst,
            replacements=self.replacements,
            overruns=[spent for several in self.overruns.values() for spent in several],
        )

    def summary(self, machine: MachineFacts) -> dict[str, Any]:
        """Everything, for a file; `costs` is what `python -m sandbox simulate --costs FILE` reads.

        None where boxes were replaced meanwhile: the CPU time of what died with them is in no count.
        """

        def rows(results: list[Measured]) -> list[dict[str, object]]:
            return [dict(zip(report.HEADER, report.row(one), strict=True)) for one in results]

        ours = {callers: results[0] for callers, results in self.closed.items() if results[0].name == "ours"}
        busy = ours.get(4 * self.cores) or ours.get(max(ours, default=0))
        return {
            "machine": asdict(machine),
            "closed": {callers: rows(results) for callers, results in self.closed.items()},
            "open": {share: rows([measured])[0] for share, measured in self.opened.items()},
            "burst": rows([self.burst])[0] if self.burst else None,
            "replacements_s": self.replacements,
            "overruns_ms": self.overruns,
            "bars": [asdict(bar) for bar in self.check_bars()],
            "costs": measured_costs(ours[min(ours)], busy, machine) if busy and not busy.replaced else None,
        }


def _progress(total: int):
    step = max(1, total // 10)

    def show(done: int) -> None:
        if done % step == 0:
            print(f"{done} of {total} answered", flush=True)

    return show
