"""Many trajectories at once, each graded as it ends."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from contracts.scoring import Graded, Ungraded, UngradedReason
from contracts.trajectory import StopReason
from trainer.reward.answer import extract_answer
from trainer.rollout.agent import OnLive, RolloutRequest, Rollouts, run_trajectory
from trainer.rollout.trajectory import Trajectory
from trainer.timeline import ROLLOUT

POLL_S = 0.2

_TRUNCATED = (StopReason.MAX_RESPONSE_TOKENS, StopReason.CONTEXT_OVERFLOW)


@dataclass(frozen=True, slots=True)
class Watch:
    """How a batch of rollouts is observed and stopped; called from the asyncio loop."""

    on_progress: Callable[[int, int], None] | None = None  # (ended, total)
    on_live: OnLive | None = None  # tokens of the requests marked `watched`
    should_stop: Callable[[], bool] | None = None  # polled several times a second


async def collect(
    requests: Sequence[RolloutRequest], rollouts: Rollouts, watch: Watch | None = None
) -> list[Trajectory]:
    """One trajectory a request, in the order of the requests, every one with a grade. All begin at once: which turns
    an engine has room for is the scheduler's word, and how many calls run at once the sandbox's.

    A failure of a part of ours marks its own trajectory `Ungraded` and never touches the siblings. After
    `should_stop` the unfinished ones come back at once: stop reason cancelled, `Ungraded(cancelled)`, no
    tokens. Any other exception is a bug: the rest is cancelled and it is raised.
    """
    watch = watch or Watch()
    ended = 0

    async def run_one(request: RolloutRequest) -> Trajectory:
        nonlocal ended
        ROLLOUT.set((request.problem.id, request.sample))
        trajectory = await run_trajectory(request, rollouts, watch.on_live)
        await grade(trajectory, rollouts)
        ended += 1
        if watch.on_progress is not None:
            watch.on_progress(ended, len(requests))
        return trajectory

    tasks = [asyncio.create_task(run_one(request)) for request in requests]
    try:
        await _wait(tasks, watch.should_stop)
    finally:
        for task in tasks:
            task.cancel()  # no effect on those that ended
        await asyncio.gather(*tasks, return_exceptions=True)
    return [
        _cancelled(request) if task.cancelled() else task.result()
        for request, task in zip(requests, tasks, strict=True)
    ]


async def grade(trajectory: Trajectory, rollouts: Rollouts) -> None:
    """Set the grade of an ended trajectory; a truncated one has no answer (2.2.1: the failing reward)."""
    if trajectory.grade is not None:
        return
    answer = None
    if trajectory.stop_reason not in _TRUNCATED and trajectory.turns:
        answer = extract_answer(rollouts.chat.turn_texts(trajectory)[-1])
    if answer is None:
        trajectory.grade = Graded(reward=0.0)
    else:
        trajectory.grade = await rollouts.grader.grade(answer, trajectory.problem.answer)


async def _wait(tasks: list[asyncio.Task[Trajectory]], should_stop: Callable[[], bool] | None) -> None:
    pending = set(tasks)
    while pending:
        if should_stop is not None and should_stop():
            return
        timeout = None if should_stop is None else POLL_S
        done, pending = await asyncio.wait(pending, timeout=timeout, return_when=asyncio.FIRST_EXCEPTION)
        if any(not task.cancelled() and task.exception() is not None for task in done):
            return


def _cancelled(request: RolloutRequest) -> Trajectory:
    return Trajectory(
        request.problem,
        request.sample,
        prompt_ids=[],
        stop_reason=StopReason.CANCELLED,
        grade=Ungraded(reason=UngradedReason.CANCELLED),
    )
