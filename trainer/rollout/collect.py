"""Many trajectories at once, each graded as it ends."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from trainer.rollout.agent import OnLive, RolloutRequest, Rollouts
from trainer.rollout.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class Watch:
    """How a batch of rollouts is observed and stopped; called from the asyncio loop."""

    on_progress: Callable[[int, int], None] | None = None  # (ended, total)
    on_live: OnLive | None = None  # tokens of the requests marked `watched`
    should_stop: Callable[[], bool] | None = None  # polled several times a second


async def collect(
    requests: Sequence[RolloutRequest], rollouts: Rollouts, watch: Watch | None = None, *, concurrency: int = 256
) -> list[Trajectory]:
    """One trajectory a request, in the order of the requests, every one with a grade.

    A failure of one never touches its siblings. After `should_stop` the unfinished ones come back at
    once, stop reason cancelled, `Ungraded(cancelled)`.
    """
    raise NotImplementedError
