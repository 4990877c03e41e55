"""The rollouts of steps to come: begun while the steps before them are still being learned from, or not at all."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, Generic, TypeVar

from trainer.sampler import Sampler

T = TypeVar("T")


async def _wait(task: "asyncio.Task[T]") -> T:
    return await task


class Ahead(Generic[T]):
    """`make(step)` is all sampling of a step, one coroutine. `close` it at the end: what was begun is dropped then.

    Admission as in AReaL (arXiv 2505.24298, 5.1): when n steps have been learned from, at most
    (staleness + n + 1) * batch rollouts may have begun. A step's rollouts begin together, so steps are counted. Each
    turn starts with the newest weights there are, and a step makes one version at most: nothing that a step learns
    from is more than `staleness` versions older than its policy. `done` steps count as begun when a run is resumed.
    """

    def __init__(
        self, sampler: Sampler, make: Callable[[int], Coroutine[Any, Any, T]], *, staleness: int, done: int, last: int
    ) -> None:
        self._sampler = sampler
        self._make = make
        self._staleness = staleness
        self._begun = done
        self._last = last
        self._tasks: dict[int, asyncio.Task[T]] = {}

    def take(self, step: int) -> T:
        """Wait for the sampling of `step`. The steps before it have been learned from, and the engines told so."""
        learned = step - 1
        while self._begun < min(self._last, self._staleness + learned + 1):
            self._begun += 1
            self._tasks[self._begun] = self._sampler.begin(self._make(self._begun))
        return self._sampler.run(_wait(self._tasks.pop(step)))

    def close(self) -> None:
        """Cancel what nobody will take, and wait until it has let go of engine and tools."""
        left = list(self._tasks.values())
        self._tasks.clear()
        for task in left:
            task.cancel()

        async def end() -> None:
            await asyncio.gather(*left, return_exceptions=True)

        if left:
            self._sampler.run(end())
