"""An engine in this process behind the scheduler, as those of `engine_pool` are: admission and refusal are the same."""

import itertools
from collections.abc import Sequence
from typing import Protocol

from trainer.rollout.engine import Engine, EngineLoad, Generation, OnTokens, SamplingSpec
from trainer.rollout.scheduler import Key, Turn
from trainer.rollout.turn_queue import TurnQueue


class LocalEngine(Engine, Protocol):
    """An engine in this process."""

    def set_version(self, version: int) -> None:
        """Take the learner's weights as they are now; what is being decoded goes on with them."""
        ...

    async def close(self) -> None: ...


class ScheduledEngine:
    """Turns wait for room in the KV cache before the engine sees them; what can never fit raises NeverFits."""

    def __init__(self, engine: LocalEngine) -> None:
        self.max_context = engine.max_context
        self.entropy_kind = engine.entropy_kind
        self.policy_version = engine.policy_version
        self._engine = engine
        self._queue = TurnQueue()
        self._queue.scheduler.add_engine(engine.load())
        self._numbers = itertools.count()

    async def generate(self, ids: Sequence[int], spec: SamplingSpec, on_tokens: OnTokens | None = None) -> Generation:
        key: Key = ("turn", next(self._numbers)) if spec.trajectory is None else spec.trajectory
        try:
            await self._queue.enter(Turn(key, len(ids), spec.max_tokens))
            generation = await self._engine.generate(ids, spec, on_tokens)
        except BaseException:
            self._queue.forget(key)
            raise
        self._queue.leave(key, len(generation.ids))
        if spec.trajectory is None:
            self._queue.forget(key)
        self._queue.report(0, self._engine.load())
        return generation

    def end_trajectory(self, trajectory: int) -> None:
        self._queue.forget(trajectory)
        self._engine.end_trajectory(trajectory)

    def load(self) -> EngineLoad:
        return self._engine.load()

    def loads(self) -> list[EngineLoad | None]:
        return [self._engine.load()]

    def generated(self) -> list[int]:
        """Tokens of the turns that ended, by engine."""
        return list(self._queue.scheduler.generated)

    async def publish(self, version: int) -> None:
        """The learner's weights as they are now are of this version; the engine has them from here on, also for what
        it has begun."""
        self._engine.set_version(version)
        self.policy_version = version
        self._queue.scheduler.set_version(version)
        self._queue.engine_ready(0, version, self._engine.load())

    async def close(self) -> None:
        await self._engine.close()
