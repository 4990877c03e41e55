"""Where turns wait for an engine: `Scheduler` on the asyncio loop. Knows no engine, only their numbers."""

import asyncio
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from contextvars import ContextVar

from trainer.rollout.engine import EngineLoad
from trainer.rollout.scheduler import Key, Scheduler, Settings, Turn

WHILE_WAITING: ContextVar[Callable[[], AbstractContextManager[None]]] = ContextVar("waiting", default=nullcontext)
"""Entered for as long as a turn of this task waits for an engine; a turn that has one at once does not wait."""


class TurnQueue:
    """Every `enter` is followed by `leave`, `lost` or `forget` of the same trajectory, whatever is raised between."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.scheduler = Scheduler(settings)
        self._places: dict[Key, asyncio.Future[int]] = {}

    async def enter(self, turn: Turn) -> int:
        """The number of the engine that is to generate the turn, once it has room; NeverFits if none ever has."""
        self.scheduler.submit(turn)
        return await self._wait(turn.trajectory)

    async def enter_again(self, trajectory: Key) -> int:
        """After `engine_died`, which put its turn back in the queue: the next engine for it."""
        return await self._wait(trajectory)

    def leave(self, trajectory: Key, new_tokens: int) -> None:
        """The turn is there. It counts also where its engine was given up meanwhile."""
        if self.scheduler.engine_of(trajectory) is not None:
            self.scheduler.turn_ended(trajectory, new_tokens)
        else:
            self.scheduler.forget(trajectory)
        self._places.pop(trajectory, None)
        self._admit()

    def forget(self, trajectory: Key) -> None:
        """The trajectory is over, or its turn failed: nothing of it stays. Harmless when it is unknown."""
        self.scheduler.forget(trajectory)
        place = self._places.pop(trajectory, None)
        if place is not None:
            place.cancel()
        self._admit()

    def engine_died(self, engine: int) -> None:
        for trajectory in self.scheduler.engine_died(engine):
            self._places.pop(trajectory, None)
        self._admit()

    def engine_ready(self, engine: int, version: int, load: EngineLoad) -> None:
        self.scheduler.engine_ready(engine, version, load)
        self._admit()

    def report(self, engine: int, load: EngineLoad) -> None:
        self.scheduler.report(engine, load)
        self._admit()

    def fail(self, error: Exception) -> None:
        """Nothing will ever have room again: all who wait get `error`."""
        for place in self._places.values():
            if not place.done():
                place.set_exception(error)

    async def _wait(self, trajectory: Key) -> int:
        while True:
            place = self._places.get(trajectory)
            if place is None:
                place = self._places[trajectory] = asyncio.get_running_loop().create_future()
                self._admit()
            if not place.done():
                with WHILE_WAITING.get()():
                    await place
            engine = place.result()
            if self.scheduler.engine_of(trajectory) == engine:  # else it died before this coroutine went on
                return engine

    def _admit(self) -> None:
        for admission in self.scheduler.admit():
            key = admission.trajectory
            place = self._places.get(key)
            if place is None:  # its coroutine does not know yet that its engine died; it will find the place here
                place = self._places[key] = asyncio.get_running_loop().create_future()
            with suppress(asyncio.InvalidStateError):
                place.set_result(admission.engine)
