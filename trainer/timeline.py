"""Where the time of a step goes: phases, what is in flight, what the engines hold, the slowest rollouts.

The stage marks its phases; the sampler hands rollouts an engine, a tool and a grader that say when they work for which
rollout. Nothing here waits or changes a result. One step is in memory at a time.
"""

import asyncio
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from contracts.events import EngineLine, RolloutSpans, Span, SpanKind, StepTimeline
from contracts.scoring import Grade
from contracts.trajectory import EntropyKind, ToolCallRow
from trainer.rollout.engine import EngineLoad, Generation, OnTokens, SamplingSpec
from trainer.rollout.turn_queue import WHILE_WAITING

BINS = 120
SLOWEST = 24
SHORTEST_S = 1e-3  # of a turn, on one side of a wait
SAMPLE_S = 0.25  # between two looks at the engines
ROLLOUT: ContextVar[tuple[str, int]] = ContextVar("rollout")  # (prompt id, sample) of the task that is running

_Interval = tuple[float, float]


@dataclass(slots=True)
class _EngineSeen:
    """Looks at one engine in this step, and what it generated."""

    first: EngineLoad | None = None
    looks: list[tuple[float, EngineLoad]] = field(default_factory=list)
    tokens: int = 0


class Timeline:
    """One step after another; `begin` forgets the last one."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self.begin()

    def begin(self) -> None:
        """A step begins now."""
        self._zero = self._clock()
        self._phases: list[tuple[SpanKind, float, float]] = []
        self._spans: dict[tuple[str, int], list[tuple[SpanKind, float, float]]] = defaultdict(list)
        self._engines: dict[str, _EngineSeen] = defaultdict(_EngineSeen)

    def _now(self) -> float:
        return self._clock() - self._zero

    @contextmanager
    def phase(self, kind: SpanKind) -> Iterator[None]:
        """A part of the step that nothing else of the driver runs beside."""
        started = self._now()
        try:
            yield
        finally:
            self._phases.append((kind, started, self._now()))

    @contextmanager
    def span(self, kind: SpanKind) -> Iterator[None]:
        """A part of the rollout whose task this is; of one that a step before began, what falls into this step."""
        started = self._clock()
        try:
            yield
        finally:
            self._add(kind, started)

    def _add(self, kind: SpanKind, started: float) -> None:
        self._spans[ROLLOUT.get(("", 0))].append((kind, max(0.0, started - self._zero), self._now()))

    @contextmanager
    def turn(self) -> Iterator[None]:
        """A turn of the rollout whose task this is: generated but for the time in which it waits for an engine."""
        started = self._clock()

        def generated() -> None:
            if self._clock() - started >= SHORTEST_S:
                self._add(SpanKind.GENERATE, started)

        @contextmanager
        def wait() -> Iterator[None]:
            nonlocal started
            generated()
            try:
                with self.span(SpanKind.QUEUE):
                    yield
            finally:
                started = self._clock()

        token = WHILE_WAITING.set(wait)
        try:
            yield
        finally:
            WHILE_WAITING.reset(token)
            generated()

    def generated(self, engine: str, tokens: int) -> None:
        """The engine has sampled so many more tokens."""
        self._engines[engine].tokens += tokens

    @asynccontextmanager
    async def watching(self, loads: Callable[[], Mapping[str, EngineLoad]]) -> Any:
        """Look at the engines several times a second while the block runs."""

        async def look() -> None:
            while True:
                self.see(loads())
                await asyncio.sleep(SAMPLE_S)

        looking = asyncio.create_task(look())
        try:
            yield
        finally:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)
            self.see(loads())

    def see(self, loads: Mapping[str, EngineLoad]) -> None:
        """One look at the engines, by name."""
        for name, load in loads.items():
            seen = self._engines[name]
            seen.first = seen.first or load
            seen.looks.append((self._now(), load))

    # What came of it

    def report(self, stage: int, step: int) -> StepTimeline:
        """The step until now."""
        seconds = max(self._now(), 1e-9)
        by_kind: dict[SpanKind, list[_Interval]] = defaultdict(list)
        for kind, start, end in (span for spans in self._spans.values() for span in spans):
            by_kind[kind].append((start, end))
        longest = sorted(self._spans.items(), key=lambda item: -max(end for _, _, end in item[1]))
        return StepTimeline(
            stage=stage,
            step=step,
            seconds=seconds,
            bins=BINS,
            phases=[_span(one) for one in self._phases],
            in_flight={kind: _per_bin(spans, seconds) for kind, spans in by_kind.items()},
            engines=[_line(name, seen, seconds) for name, seen in sorted(self._engines.items())][:128],
            slowest=[
                RolloutSpans(prompt_id=prompt, sample=sample, spans=[_span(one) for one in spans])
                for (prompt, sample), spans in longest[:SLOWEST]
            ],
        )

    def metrics(self) -> dict[str, float]:
        """`time/tool_s`, `time/grade_s`, `time/sync_s` and `engine/*` of the step until now."""
        values = {
            f"time/{kind}_s": _covered([(s, e) for spans in self._spans.values() for k, s, e in spans if k is kind])
            for kind in (SpanKind.TOOL, SpanKind.GRADE)
        }
        values["time/sync_s"] = sum(e - s for k, s, e in self._phases if k is SpanKind.SYNC)
        looks = [look for seen in self._engines.values() for _, look in seen.looks]
        if not looks:
            return values
        uses = [look.kv_used / max(1, look.kv_capacity) for look in looks]
        engines = [seen for seen in self._engines.values() if seen.looks]
        return values | {
            "engine/kv_use_mean": sum(uses) / len(uses),
            "engine/kv_use_max": max(uses),
            "engine/running_mean": sum(look.running for look in looks) / len(looks),
            "engine/waiting_mean": sum(look.waiting for look in looks) / len(looks) * len(engines),
            "engine/preemptions": float(sum(_preempted(seen) for seen in engines)),
        }


def _span(one: tuple[SpanKind, float, float]) -> Span:
    kind, start, end = one
    return Span(kind=kind, start_s=round(start, 4), end_s=round(end, 4))


def _per_bin(spans: Sequence[_Interval], seconds: float) -> list[float]:
    """How many of the spans are open, mean over each bin: (BINS,)."""
    width = seconds / BINS
    filled = [0.0] * BINS
    for start, end in spans:
        first, last = int(start / width), int(end / width)
        for number in range(max(0, first), min(last, BINS - 1) + 1):
            filled[number] += max(0.0, min(end, (number + 1) * width) - max(start, number * width))
    return [round(value / width, 3) for value in filled]


def _covered(spans: Sequence[_Interval]) -> float:
    """Seconds in which at least one of the spans is open."""
    total, until = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, until))
        until = max(until, end)
    return total


def _line(name: str, seen: _EngineSeen, seconds: float) -> EngineLine:
    """An engine's looks, the newest before the end of each bin."""
    width, number = seconds / BINS, 0
    now = seen.first or EngineLoad(0, 0, 0, 0)
    kept: list[EngineLoad] = []
    for end in range(1, BINS + 1):
        while number < len(seen.looks) and seen.looks[number][0] <= end * width:
            now = seen.looks[number][1]
            number += 1
        kept.append(now)
    return EngineLine(
        name=name,
        kv_capacity=now.kv_capacity,
        kv_used=[float(load.kv_used) for load in kept],
        running=[float(load.running) for load in kept],
        waiting=[float(load.waiting) for load in kept],
        preemptions=_preempted(seen),
        tokens=seen.tokens,
    )


def _preempted(seen: _EngineSeen) -> int:
    """Of this step: an engine that was rebuilt counts from zero again."""
    first = seen.first.preemptions if seen.first else 0
    last = seen.looks[-1][1].preemptions if seen.looks else first
    return last - first if last >= first else last


class TimedEngine:
    """An engine of which the timeline knows when it generates, for whom, and who waits for it."""

    def __init__(self, engine: Any, timeline: Timeline) -> None:
        self._engine = engine
        self._timeline = timeline
        self.max_context: int = engine.max_context
        self.entropy_kind: EntropyKind = engine.entropy_kind

    @property
    def policy_version(self) -> int:
        return int(self._engine.policy_version)

    async def generate(self, ids: Sequence[int], spec: SamplingSpec, on_tokens: OnTokens | None = None) -> Generation:
        """As the engine does."""
        with self._timeline.turn():
            generation: Generation = await self._engine.generate(ids, spec, on_tokens)
        return generation

    def end_trajectory(self, trajectory: int) -> None:
        """As the engine does."""
        self._engine.end_trajectory(trajectory)

    def load(self) -> EngineLoad:
        """As the engine says."""
        load: EngineLoad = self._engine.load()
        return load


class TimedTool:
    """A tool of which the timeline knows when it runs and for whom."""

    def __init__(self, tool: Any, timeline: Timeline) -> None:
        self._tool = tool
        self._timeline = timeline

    async def respond(self, call: Any, call_id: str, seed: int, earlier: Sequence[ToolCallRow] = ()) -> Any:
        """As the tool does."""
        with self._timeline.span(SpanKind.TOOL):
            return await self._tool.respond(call, call_id, seed, earlier)


class TimedGrader:
    """A grader of which the timeline knows when it works and for whom."""

    def __init__(self, grader: Any, timeline: Timeline) -> None:
        self._grader = grader
        self._timeline = timeline

    async def grade(self, answer: str | None, reference: str) -> Grade:
        """As the grader does."""
        with self._timeline.span(SpanKind.GRADE):
            grade: Grade = await self._grader.grade(answer, reference)
        return grade
