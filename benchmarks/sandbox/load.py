"""Drives a contestant: closed loop, open loop, burst. Measures at the caller; holds every answer to its oracle."""

import asyncio
import itertools
import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from benchmarks.sandbox.contestants import Contestant
from benchmarks.sandbox.machine import Usage
from benchmarks.sandbox.workload import Kind, Task
from contracts.execution import Execution
from sandbox.client import SandboxUnavailable

GRACE_S = 6.0  # after the end of a closed loop, for calls under way; many waiting callers are cut off instead
MANY_CALLERS = 64


@dataclass(frozen=True)
class Sample:
    """One answered call."""

    kind: Kind
    status: str
    ended_at: float
    latency_ms: float
    queue_ms: float
    exec_ms: float
    cpu_ms: float
    attempts: int
    fault: str = ""


@dataclass
class Measured:
    """What a contestant did in a window of time."""

    name: str
    window_s: float = 0.0
    usage: Usage = Usage(0.0, 0.0)
    samples: list[Sample] = field(default_factory=list)
    finished: int = 0  # within the window: what throughput and CPU are divided by
    sent: int = 0
    lost: int = 0
    duplicates: int = 0
    replaced: int = 0

    def add(self, other: "Measured") -> None:
        """Take a further round in."""
        self.window_s += other.window_s
        self.usage = Usage(self.usage.tree_s + other.usage.tree_s, self.usage.root_s + other.usage.root_s)
        self.samples += other.samples
        self.finished += other.finished
        self.sent += other.sent
        self.lost += other.lost
        self.duplicates += other.duplicates
        self.replaced += other.replaced

    @property
    def calls_per_s(self) -> float:
        return self.finished / self.window_s if self.window_s else math.nan

    @property
    def cpu_ms_per_call(self) -> float:
        """Of the whole tree of processes."""
        return self.usage.tree_s * 1000 / self.finished if self.finished else math.nan

    @property
    def calls_per_core_s(self) -> float:
        return self.finished / self.usage.tree_s if self.usage.tree_s else math.nan

    @property
    def front_ms_per_call(self) -> float:
        """CPU of the node's own process, without boxes."""
        return self.usage.root_s * 1000 / self.finished if self.finished else math.nan

    @property
    def faults(self) -> list[Sample]:
        """Answers that the oracle does not accept."""
        return [sample for sample in self.samples if sample.fault]

    def latencies(self, *, with_over_limit: bool = True) -> list[float]:
        """Milliseconds at the caller, sorted."""
        return sorted(s.latency_ms for s in self.samples if with_over_limit or not s.kind.is_over_limit)

    def overruns(self, wall_limit_s: float) -> list[float]:
        """By how many milliseconds programs that never end outlived their limit, sorted."""
        return sorted(s.exec_ms - wall_limit_s * 1000 for s in self.samples if s.kind.is_over_limit)


def quantile(ordered: Sequence[float], q: float) -> float:
    """The smallest value that at least the share `q` does not exceed."""
    return ordered[max(0, math.ceil(q * len(ordered)) - 1)] if ordered else math.nan


def mean(values: Sequence[float]) -> float:
    """NaN when there is nothing."""
    return sum(values) / len(values) if values else math.nan


class Recorder:
    """Counts answers by call id, so that a lost or a second one shows."""

    def __init__(self, name: str) -> None:
        self.measured = Measured(name)
        self._answers: Counter[str] = Counter()

    def sent(self) -> None:
        """A call goes out."""
        self.measured.sent += 1

    def answered(self, task: Task, sent_at: float, answer: Execution) -> None:
        """An answer came."""
        now = time.perf_counter()
        self._answers[task.call.id] += 1
        fault = task.expected.fault(answer) if answer.id == task.call.id else f"answer to {answer.id}"
        self.measured.samples.append(
            Sample(
                kind=task.kind,
                status=answer.status.value,
                ended_at=now,
                latency_ms=(now - sent_at) * 1000,
                queue_ms=answer.queue_ms,
                exec_ms=answer.exec_ms,
                cpu_ms=answer.cpu_ms,
                attempts=answer.attempts,
                fault=fault,
            )
        )

    def close(self, *, cut_off: int = 0) -> Measured:
        """The result; `cut_off` calls were taken back by us and are not lost."""
        self.measured.duplicates = sum(count - 1 for count in self._answers.values())
        self.measured.lost = self.measured.sent - len(self._answers) - cut_off
        return self.measured


async def closed_loop(contestant: Contestant, tasks: Iterator[Task], *, callers: int, seconds: float) -> Measured:
    """`callers` callers, each with one call at a time, for `seconds`. What ends later counts for latency only."""
    recorder = Recorder(contestant.name)
    end = time.perf_counter() + seconds

    async def call_on() -> None:
        while time.perf_counter() < end:
            await _one(contestant, next(tasks), recorder)

    replaced, usage, started = await contestant.replaced(), contestant.usage(), time.perf_counter()
    end = started + seconds
    calling = [asyncio.create_task(call_on()) for _ in range(callers)]
    await asyncio.sleep(max(0.0, end - time.perf_counter()))
    used, stopped = contestant.usage() - usage, time.perf_counter()
    _, late = await asyncio.wait(calling, timeout=GRACE_S if callers <= MANY_CALLERS else 0.01)
    await _cancel(late)
    _raise_first(set(calling) - late)
    measured = recorder.close(cut_off=len(late))
    measured.usage = used
    measured.window_s = stopped - started
    measured.finished = sum(sample.ended_at <= stopped for sample in measured.samples)
    measured.replaced = await contestant.replaced() - replaced
    return measured


async def open_loop(
    contestant: Contestant, tasks: Iterator[Task], *, calls_per_s: float, seconds: float, seed: int
) -> Measured:
    """Calls come at random times (Poisson), whatever became of the earlier ones; then wait for all."""
    recorder = Recorder(contestant.name)
    rng = random.Random(seed)
    replaced, usage, started = await contestant.replaced(), contestant.usage(), time.perf_counter()
    calling: list[asyncio.Task[None]] = []
    due = started + rng.expovariate(calls_per_s)
    while due < started + seconds:
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        calling.append(asyncio.create_task(_one(contestant, next(tasks), recorder)))
        due += rng.expovariate(calls_per_s)
    await asyncio.gather(*calling)
    measured = recorder.close()
    measured.usage = contestant.usage() - usage
    measured.window_s = time.perf_counter() - started
    measured.finished = len(measured.samples)
    measured.replaced = await contestant.replaced() - replaced
    return measured


async def burst(
    contestant: Contestant, tasks: Sequence[Task], *, senders: int, progress: Callable[[int], None] = lambda _: None
) -> Measured:
    """All of `tasks` wait from the start; `senders` of them are under way at a time. Latency counts from the start."""
    recorder = Recorder(contestant.name)
    waiting = iter(tasks)
    replaced, usage, started = await contestant.replaced(), contestant.usage(), time.perf_counter()

    async def send_on() -> None:
        for task in waiting:
            await _one(contestant, task, recorder, sent_at=started)
            progress(len(recorder.measured.samples))

    await asyncio.gather(*(send_on() for _ in range(senders)))
    measured = recorder.close()
    measured.usage = contestant.usage() - usage
    measured.window_s = time.perf_counter() - started
    measured.finished = len(measured.samples)
    measured.replaced = await contestant.replaced() - replaced
    return measured


async def _one(contestant: Contestant, task: Task, recorder: Recorder, sent_at: float | None = None) -> None:
    recorder.sent()
    started = time.perf_counter() if sent_at is None else sent_at
    try:
        answer = await contestant.run(task.call)
    except SandboxUnavailable as error:
        print(f"{contestant.name}: {task.call.id} was not answered: {error.reason}")
        return
    recorder.answered(task, started, answer)


async def _cancel(late: set[asyncio.Task[None]]) -> None:
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)


def _raise_first(done: set[asyncio.Task[None]]) -> None:
    for task in done:
        task.result()


def endless(tasks: Sequence[Task]) -> Iterator[Task]:
    """The tasks again and again, every time under new ids."""
    for turn in itertools.count():
        for task in tasks:
            call = task.call.model_copy(update={"id": f"{task.call.id}.{turn}"})
            yield Task(call, task.kind, task.expected)
