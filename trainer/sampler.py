"""Rollouts for the stages: the engine over the learner's weights, the tool, the grader, on one asyncio loop."""

import asyncio
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from contracts.events import LiveChunk, SpanKind, StageProgress
from contracts.recipe import Sampling
from trainer.outage import Occasion, OutageWatch
from trainer.reporter import Reporter
from trainer.rollout.agent import Grader, LiveTokens, RolloutRequest, Rollouts, Tool
from trainer.rollout.chat import Chat
from trainer.rollout.collect import Watch, collect
from trainer.rollout.engine import Engine, EngineLoad
from trainer.rollout.trajectory import Trajectory
from trainer.timeline import TimedEngine, TimedGrader, TimedTool, Timeline

MAX_LIVE_TOKENS = 512
_T = TypeVar("_T")


class Stopped(Exception):
    """The run was asked to stop; raised at a safe point and recorded as cancelled."""


class OwnEngine(Engine, Protocol):
    """An engine whose weights are the learner's."""

    async def publish(self, version: int) -> None:
        """The learner's weights as they are now are of this version; no turn starts with others from here on."""
        ...

    def loads(self) -> list[EngineLoad | None]:
        """Of each engine behind it; None of one that is not up."""
        ...

    def generated(self) -> list[int]:
        """Tokens that each has generated since it began."""
        ...

    async def close(self) -> None: ...


class Sampler:
    """The loop is `runner`'s, so that HTTP connections live as long as the run."""

    def __init__(self, runner: asyncio.Runner, engine: OwnEngine, chat: Chat, *, tool: Tool, grader: Grader) -> None:
        self.chat = chat
        self.engine = engine
        self._runner = runner
        self._tool = tool
        self._grader = grader
        self._outages = OutageWatch()
        self._counted = engine.generated()
        self.timeline = Timeline()

    def run(self, coroutine: Coroutine[Any, Any, _T]) -> _T:
        """Wait for it. Whatever else was begun on the loop goes on meanwhile, and only then."""
        return self._runner.run(coroutine)

    def begin(self, coroutine: Coroutine[Any, Any, _T]) -> "asyncio.Task[_T]":
        """It goes on during every `run` until it has ended."""

        async def create() -> "asyncio.Task[_T]":
            return asyncio.create_task(coroutine)

        return self._runner.run(create())

    def publish(self, version: int) -> None:
        """The learner's weights to the engines; rollouts that were begun go on with them."""
        with self.timeline.phase(SpanKind.SYNC):
            self._runner.run(self.engine.publish(version))

    def sample(
        self, requests: Sequence[RolloutRequest], sampling: Sampling, occasion: Occasion, reporter: Reporter
    ) -> list[Trajectory]:
        """As `collect`, when it has ended."""
        return self._runner.run(self.collect(requests, sampling, occasion, reporter))

    async def collect(
        self, requests: Sequence[RolloutRequest], sampling: Sampling, occasion: Occasion, reporter: Reporter
    ) -> list[Trajectory]:
        """One graded trajectory a request, in order. Raises Stopped when a stop was asked for meanwhile,
        InfrastructureDown when most of an occasion have no grade."""
        rollouts = Rollouts(
            TimedEngine(self.engine, self.timeline),
            self.chat,
            TimedTool(self._tool, self.timeline),
            TimedGrader(self._grader, self.timeline),
            sampling,
        )
        watch = Watch(
            on_progress=_Progress(reporter, occasion),
            on_live=lambda live: _forward(live, reporter, occasion),
            should_stop=lambda: reporter.should_stop,
        )
        async with self.timeline.watching(self._loads):
            trajectories = await collect(requests, rollouts, watch)
        self._count_tokens()
        if reporter.should_stop:
            raise Stopped
        self._outages.check(trajectories, occasion)
        return trajectories

    def _count_tokens(self) -> None:
        """What the engines have generated since the last count, for whomever."""
        now = self.engine.generated()
        for name, start, end in zip(_name_engines(len(now)), self._counted, now, strict=True):
            self.timeline.generated(name, end - start)
        self._counted = now

    def _loads(self) -> dict[str, EngineLoad]:
        loads = self.engine.loads()
        return {name: load for name, load in zip(_name_engines(len(loads)), loads, strict=True) if load is not None}


def _name_engines(count: int) -> list[str]:
    """Of one width, so that they sort."""
    return [f"engine {number:0{len(str(count - 1))}}" for number in range(count)]


class _Progress:
    """One StageProgress for every tenth of the rollouts; wall-clock free, so a replayed step sends the same."""

    def __init__(self, reporter: Reporter, occasion: Occasion) -> None:
        self._reporter = reporter
        self._occasion = occasion
        self._tenth = -1

    def __call__(self, done: int, total: int) -> None:
        tenth = done * 10 // max(1, total)
        if tenth > self._tenth:
            self._tenth = tenth
            o = self._occasion
            self._reporter.emit(StageProgress(stage=o.stage, step=o.step, done=done, total=total, what=o.what))


def _forward(live: LiveTokens, reporter: Reporter, occasion: Occasion) -> None:
    if not reporter.is_watched:
        return
    for start in range(0, max(1, len(live.tokens)), MAX_LIVE_TOKENS):
        reporter.live(
            LiveChunk(
                stage=occasion.stage,
                step=occasion.step,
                prompt_id=live.prompt_id,
                sample=live.sample,
                position=live.position + start,
                entropy_kind=live.entropy_kind,
                tokens=live.tokens[start : start + MAX_LIVE_TOKENS],
                ended=live.ended,
            )
        )
