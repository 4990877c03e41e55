"""Where a step's time goes, by a clock that the test moves."""

import asyncio
from contextlib import nullcontext

import pytest

from contracts.events import SpanKind, StepTimeline
from contracts.trajectory import EntropyKind
from trainer.rollout.engine import EngineError, EngineLoad, SamplingSpec
from trainer.rollout.turn_queue import WHILE_WAITING
from trainer.timeline import BINS, ROLLOUT, SLOWEST, TimedEngine, Timeline


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def timeline(clock: Clock) -> Timeline:
    return Timeline(clock)


def spend(timeline: Timeline, clock: Clock, kind: SpanKind, seconds: float, rollout: tuple[str, int]) -> None:
    ROLLOUT.set(rollout)
    with timeline.span(kind):
        clock.now += seconds


def test_what_is_in_flight_is_a_mean_over_each_bin(timeline: Timeline, clock: Clock) -> None:
    ROLLOUT.set(("a", 0))
    with timeline.span(SpanKind.GENERATE):
        clock.now += 6.0
        ROLLOUT.set(("b", 0))
        with timeline.span(SpanKind.TOOL):
            clock.now += 6.0
    report = timeline.report(2, 7)
    assert (report.stage, report.step, report.seconds, report.bins) == (2, 7, 12.0, BINS)
    assert report.in_flight[SpanKind.GENERATE] == [1.0] * BINS
    assert report.in_flight[SpanKind.TOOL] == [0.0] * (BINS // 2) + [1.0] * (BINS // 2)


def test_a_span_shorter_than_a_bin_fills_its_share(timeline: Timeline, clock: Clock) -> None:
    spend(timeline, clock, SpanKind.TOOL, 0.25, ("a", 0))
    clock.now += BINS - 0.25  # bins of one second
    assert timeline.report(0, 1).in_flight[SpanKind.TOOL] == [0.25] + [0.0] * (BINS - 1)


def test_the_slowest_rollouts_are_those_that_end_last(timeline: Timeline, clock: Clock) -> None:
    for number in range(SLOWEST + 3):
        spend(timeline, clock, SpanKind.GENERATE, 1.0, (f"p{number}", 1))
    spend(timeline, clock, SpanKind.GRADE, 0.5, ("p0", 1))
    slowest = timeline.report(0, 1).slowest
    assert len(slowest) == SLOWEST
    assert [one.prompt_id for one in slowest[:2]] == ["p0", f"p{SLOWEST + 2}"]
    assert [(span.kind, span.start_s, span.end_s) for span in slowest[0].spans] == [
        (SpanKind.GENERATE, 0.0, 1.0),
        (SpanKind.GRADE, 27.0, 27.5),
    ]


def test_seconds_in_which_any_call_runs_are_counted_once(timeline: Timeline, clock: Clock) -> None:
    with timeline.span(SpanKind.TOOL):
        clock.now += 1
        with timeline.span(SpanKind.TOOL):
            clock.now += 2
    clock.now += 5
    spend(timeline, clock, SpanKind.TOOL, 1, ("a", 0))
    with timeline.phase(SpanKind.SYNC):
        clock.now += 0.5
    assert timeline.metrics() == {"time/tool_s": 4.0, "time/grade_s": 0.0, "time/sync_s": 0.5}


def test_engines_by_their_newest_look(timeline: Timeline, clock: Clock) -> None:
    timeline.see({"e0": EngineLoad(1000, 100, 2, 0, preemptions=5), "e1": EngineLoad(1000, 0, 0, 0)})
    clock.now += 3
    timeline.see({"e0": EngineLoad(1000, 900, 4, 6, preemptions=7), "e1": EngineLoad(1000, 200, 2, 0)})
    timeline.generated("e0", 64)
    clock.now += 3
    first, second = timeline.report(0, 1).engines
    assert (first.name, first.kv_capacity, first.preemptions, first.tokens) == ("e0", 1000, 2, 64)
    assert first.kv_used == [100.0] * (BINS // 2 - 1) + [900.0] * (BINS // 2 + 1)
    assert second.running == [0.0] * (BINS // 2 - 1) + [2.0] * (BINS // 2 + 1)
    values = timeline.metrics()
    assert values["engine/kv_use_mean"] == pytest.approx((0.1 + 0.9 + 0.0 + 0.2) / 4)
    assert values["engine/kv_use_max"] == 0.9
    assert values["engine/running_mean"] == 2.0
    assert values["engine/waiting_mean"] == 3.0  # 6 in one look of two, at one of two engines: 1.5 an engine
    assert values["engine/preemptions"] == 2.0


def test_an_engine_that_was_rebuilt_counts_from_zero(timeline: Timeline) -> None:
    timeline.see({"e0": EngineLoad(10, 0, 0, 0, preemptions=5)})
    timeline.see({"e0": EngineLoad(10, 0, 0, 0, preemptions=1)})
    assert timeline.metrics()["engine/preemptions"] == 1.0


def test_a_new_step_forgets_the_last_one(timeline: Timeline, clock: Clock) -> None:
    spend(timeline, clock, SpanKind.TOOL, 1, ("a", 0))
    timeline.begin()
    clock.now += 2
    report = timeline.report(0, 2)
    assert (report.seconds, report.in_flight, report.slowest, report.engines) == (2.0, {}, [], [])


class Queued:
    """An engine whose turn waits 2 s of the clock, is begun for 1 s, waits 3 s again, and takes 4 s."""

    max_context, entropy_kind, policy_version = 10, EntropyKind.FULL, 0

    def __init__(self, clock: Clock, fails: bool = False) -> None:
        self._clock = clock
        self._fails = fails

    async def generate(self, *_: object) -> None:
        for wait, then in ((2, 1), (3, 4)):
            with WHILE_WAITING.get()():
                self._clock.now += wait
                if self._fails:
                    raise EngineError("closed")
            self._clock.now += then


async def test_a_turn_that_waits_for_an_engine_is_not_generated_meanwhile(timeline: Timeline, clock: Clock) -> None:
    ROLLOUT.set(("a", 0))
    await TimedEngine(Queued(clock), timeline).generate([], SamplingSpec(1, 1.0, 0, ()))
    (rollout,) = timeline.report(0, 1).slowest
    assert [(span.kind.value, span.start_s, span.end_s) for span in rollout.spans] == [
        ("queue", 0, 2),
        ("generate", 2, 3),
        ("queue", 3, 6),
        ("generate", 6, 10),
    ]
    assert sum(timeline.report(0, 1).in_flight[SpanKind.QUEUE]) == pytest.approx(BINS / 2)


async def test_a_turn_that_fails_in_the_queue_only_waited(timeline: Timeline, clock: Clock) -> None:
    with pytest.raises(EngineError, match="closed"):
        await TimedEngine(Queued(clock, fails=True), timeline).generate([], SamplingSpec(1, 1.0, 0, ()))
    (rollout,) = timeline.report(0, 1).slowest
    assert [span.kind for span in rollout.spans] == [SpanKind.QUEUE]
    assert WHILE_WAITING.get() is nullcontext


async def test_engines_are_looked_at_while_rollouts_run_and_at_the_end(timeline: Timeline) -> None:
    loads = iter([EngineLoad(10, 1, 1, 0), EngineLoad(10, 2, 1, 0)])
    async with timeline.watching(lambda: {"e0": next(loads)}):
        await asyncio.sleep(0)
    assert timeline.report(0, 1).engines[0].kv_used[-1] == 2.0


def test_a_report_survives_the_journal(timeline: Timeline, clock: Clock) -> None:
    spend(timeline, clock, SpanKind.GENERATE, 1.0, ("<script>", 3))
    report = timeline.report(0, 1)
    assert StepTimeline.model_validate_json(report.model_dump_json()) == report
