"""Asynchronous mode: what may begin when, which version sampled which token, and what a stop or a kill leaves."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.events import Outcome
from contracts.trajectory import VersionSpan
from tests.trainer.killed_runs import Attempts
from tests.trainer.pipeline_run import RL, STAGES, TinyRun, assert_equal
from trainer import rl
from trainer.ahead import Ahead
from trainer.measure import measure_staleness
from trainer.rollout.trajectory import Problem, Trajectory
from trainer.store import iter_rows

STEPS, ROLLOUTS = 4, 12
LONG = {"max_response_tokens": 64, "max_turns": 3, "temperature": 1.0}
AHEAD = RL | {"steps": STEPS, "staleness": 1, "evaluate_every": 2, "sampling": LONG}
ASYNC_STAGES: list[dict[str, Any]] = [STAGES[0], AHEAD]


class Loop:
    """What `Ahead` asks of a sampler: a loop that runs only when it is waited for."""

    def __init__(self) -> None:
        self.runner = asyncio.Runner()

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    def begin(self, work: Any) -> Any:
        async def create() -> Any:
            return asyncio.create_task(work)

        return self.run(create())


@pytest.fixture
def loop() -> Iterator[Any]:
    made = Loop()
    yield made
    made.runner.close()


@pytest.mark.parametrize(
    ("staleness", "begun_at"),
    [
        (0, [[1], [1, 2], [1, 2, 3], [1, 2, 3, 4]]),
        (1, [[1, 2], [1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4]]),
        (2, [[1, 2, 3], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4]]),
    ],
)
def test_no_step_begins_more_than_staleness_steps_early(loop: Any, staleness: int, begun_at: list[list[int]]) -> None:
    begun: list[int] = []

    async def make(step: int) -> int:
        begun.append(step)
        return step * 10

    ahead = Ahead(loop, make, staleness=staleness, done=0, last=4)
    for step in range(1, 5):
        assert ahead.take(step) == step * 10
        assert begun == begun_at[step - 1]
    ahead.close()


def test_a_resumed_run_has_no_more_room_than_another(loop: Any) -> None:
    begun: list[int] = []

    async def make(step: int) -> None:
        begun.append(step)

    ahead = Ahead(loop, make, staleness=1, done=7, last=20)
    ahead.take(8)
    assert begun == [8, 9]
    ahead.close()


def test_what_nobody_takes_is_cancelled_and_waited_for(loop: Any) -> None:
    ended: list[int] = []

    async def make(step: int) -> None:
        try:
            await asyncio.sleep(0 if step == 1 else 3600)
        finally:
            await asyncio.sleep(0)
            ended.append(step)

    ahead = Ahead(loop, make, staleness=2, done=0, last=9)
    ahead.take(1)
    ahead.close()
    assert ended == [1, 2, 3]


def span(version: int, start: int, end: int) -> VersionSpan:
    return VersionSpan(version=version, start=start, end=end)


def test_spans_of_turns_become_those_of_the_response() -> None:
    """A tool response (tokens 4 to 6 and 9 to 10) goes with what is before it; equal versions are one span."""
    trajectory = Trajectory(Problem("p", "", ""), 0, [])
    trajectory.add_versions(0, [span(3, 0, 4)])
    trajectory.add_versions(7, [span(3, 0, 1), span(4, 1, 2)])
    trajectory.add_versions(11, [span(6, 0, 2)])
    assert trajectory.version_spans == [span(3, 0, 8), span(4, 8, 11), span(6, 11, 13)]


def test_staleness_counts_policy_tokens() -> None:
    """3 tokens of version 5 and 1 of version 3, seen by version 5: mean 2 / 4; the masked tokens count for nothing."""
    one = Trajectory(Problem("p", "", ""), 0, [], mask=[1, 0, 0, 1], version_spans=[span(3, 0, 3), span(5, 3, 4)])
    two = Trajectory(Problem("p", "", ""), 1, [], mask=[1, 1], version_spans=[span(5, 0, 2)])
    values = measure_staleness([one, two], 5)
    assert values == {"policy/staleness_mean": 0.5, "policy/staleness_max": 2.0, "policy/older_share": 0.25}
    none = measure_staleness([Trajectory(Problem("p", "", ""), 0, [])], 5)
    assert set(none.values()) == {0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ahead")


@pytest.fixture(scope="module")
def ahead(folder: Path) -> TinyRun:
    with pytest.MonkeyPatch.context() as patch:
        run = TinyRun(folder / "ahead", patch, with_calls=True, stages=ASYNC_STAGES)
        assert run.start() is Outcome.FINISHED
    return run


def test_an_asynchronous_run_learns_from_the_version_before(ahead: TinyRun) -> None:
    metrics = [p.values for p in ahead.payloads("metrics") if "policy/staleness_max" in p.values]
    assert [m["policy/staleness_max"] for m in metrics] == [0.0, 1.0, 1.0, 1.0]
    assert [m["policy/older_share"] > 0 for m in metrics] == [False, True, True, True]
    assert all(m["policy/logprob_gap_max"] > m["policy/logprob_gap_mean"] > 1e-5 for m in metrics[1:])
    assert metrics[0]["policy/logprob_gap_max"] < 1e-5


def test_every_rollout_of_an_asynchronous_run_is_there_once_with_its_versions(ahead: TinyRun) -> None:
    assert_whole(ahead)
    rows = [row for shard in sorted(ahead.out.glob("trajectories/*/step-*.parquet")) for row in iter_rows(shard)]
    for row in rows:
        spans = row.version_spans
        assert spans[0].start == 0 and spans[0].version == row.index.policy_version
        assert all(a.end == b.start and a.version < b.version for a, b in zip(spans, spans[1:], strict=False))
        assert spans[-1].end >= max(turn.end for turn in row.turns)
        assert row.index.step - 2 <= spans[0].version <= spans[-1].version <= row.index.step - 1


def assert_whole(run: TinyRun) -> None:
    """The shards hold each rollout of each step once, the prompts those of the order, and the index rows are these."""
    for step in range(1, STEPS + 1):
        rows = list(iter_rows(run.out / f"trajectories/stage-01/step-{step:05d}.parquet"))
        counts = Counter((row.index.prompt_id, row.index.sample) for row in rows)
        assert len(rows) == len(counts) == ROLLOUTS and len({prompt for prompt, _ in counts}) == 2
    reported = [row for p in run.payloads("trajectories") for row in p.rows if row.shard.endswith(".parquet")]
    assert {(r.shard, r.row) for r in reported} >= {
        (f"trajectories/stage-01/step-{step:05d}.parquet", row)
        for step in range(1, STEPS + 1)
        for row in range(ROLLOUTS)
    }


def test_the_machinery_alone_changes_no_bit(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Learning in a thread, but no step begun early: as the loop that has none of it."""
    lockstep = [STAGES[0], AHEAD | {"staleness": 0, "loss_terms": {"tis": 2.0}}]
    with monkeypatch.context() as patch:
        plain = TinyRun(folder / "plain", patch, with_calls=True, stages=lockstep)
        assert plain.start() is Outcome.FINISHED
    monkeypatch.setattr(rl, "_beside", lambda context, stage, work: context.sampler.run(asyncio.to_thread(work)))
    other = TinyRun(folder / "other", monkeypatch, with_calls=True, stages=lockstep)
    assert other.start() is Outcome.FINISHED
    assert_equal(plain, other)


def test_a_stop_while_the_next_step_is_begun_leaves_a_run_to_resume(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TinyRun(folder / "stopped", monkeypatch, with_calls=True, stages=ASYNC_STAGES)
    real = rl._learn

    def learn_then_stop(context: Any, *args: Any, **kwargs: Any) -> Any:
        if context.policy.version == 2 and run.reporter is not None:
            run.reporter.request_stop()
        return real(context, *args, **kwargs)

    monkeypatch.setattr(rl, "_learn", learn_then_stop)
    assert run.start() is Outcome.CANCELLED
    monkeypatch.setattr(rl, "_learn", real)
    assert run.start() is Outcome.FINISHED
    assert [p.resumed_from_step for p in run.payloads("run_started")] == [None, 3]
    assert_whole(run)


@pytest.fixture(scope="module")
def attempts() -> Iterator[Attempts]:
    started = Attempts()
    yield started
    started.close()


def test_a_kill_loses_and_doubles_no_trajectory(folder: Path, attempts: Attempts, ahead: TinyRun) -> None:
    """What was begun for the step to come is sampled again, by the same prompts and seeds and the newest weights."""
    with pytest.MonkeyPatch.context() as patch:
        run = TinyRun(folder / "killed", patch, with_calls=True, stages=ASYNC_STAGES)
    attempts.kill(run, before={"kind": "metrics", "stage": 1, "step": 2})
    attempts.kill(run, after={"kind": "metrics", "stage": 1, "step": 3})
    attempts.finish(run)
    assert_whole(run)
    assert run.prompts() == ahead.prompts()
    first = [p.values["policy/staleness_max"] for p in run.payloads("metrics") if "policy/staleness_max" in p.values]
    assert first[0] == 0.0 and max(first) == 1.0
