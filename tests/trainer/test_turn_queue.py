import asyncio
import random
from collections import Counter
from contextlib import contextmanager

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contracts.trajectory import EntropyKind
from trainer.rollout.engine import EngineError, EngineLoad, FinishReason, Generation, SamplingSpec
from trainer.rollout.scheduled_engine import ScheduledEngine
from trainer.rollout.scheduler import NeverFits, Turn
from trainer.rollout.turn_queue import WHILE_WAITING, TurnQueue


class Engine:
    """Holds 100 tokens; a turn ends when the gate opens, with as many ids as were asked for."""

    entropy_kind = EntropyKind.FULL
    max_context = 1000

    def __init__(self) -> None:
        self.policy_version = 0
        self.gate = asyncio.Event()
        self.running: list[int | None] = []
        self.most = 0
        self.fails = False

    async def generate(self, ids, spec, on_tokens=None):
        self.running.append(spec.trajectory)
        self.most = max(self.most, len(self.running))
        try:
            await self.gate.wait()
        finally:
            self.running.remove(spec.trajectory)
        if self.fails:
            raise EngineError("a step failed")
        made = [1] * spec.max_tokens
        zeros = [0.0] * spec.max_tokens
        return Generation(made, zeros, zeros, EntropyKind.FULL, FinishReason.LENGTH, self.policy_version)

    def end_trajectory(self, trajectory: int) -> None: ...

    def load(self) -> EngineLoad:
        return EngineLoad(kv_capacity=100, kv_used=0, running=len(self.running), waiting=0)

    def set_version(self, version: int) -> None:
        self.policy_version = version

    async def close(self) -> None: ...


def spec(max_tokens: int, trajectory: int | None = None) -> SamplingSpec:
    return SamplingSpec(max_tokens, 1.0, 0, (), trajectory)


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_turns_wait_for_room_and_come_in_their_order():
    inner = Engine()
    engine = ScheduledEngine(inner)
    turns = [asyncio.create_task(engine.generate([1] * 20, spec(20, i))) for i in range(4)]
    await settle()
    assert inner.running == [0, 1]  # 40 tokens each
    inner.gate.set()
    assert [len(g.ids) for g in await asyncio.gather(turns[0], turns[1])] == [20, 20]
    for i in (0, 1):
        engine.end_trajectory(i)  # until then their prefixes are kept
    await asyncio.gather(*turns)
    assert inner.most == 2
    assert (engine.generated(), engine.loads()) == ([80], [inner.load()])


async def test_only_a_turn_without_an_engine_is_told_to_wait():
    inner, told = Engine(), []
    engine = ScheduledEngine(inner)

    async def generate(trajectory: int) -> Generation:
        @contextmanager
        def waiting():
            told.append(("begin", trajectory))
            yield
            told.append(("end", trajectory))

        WHILE_WAITING.set(waiting)
        return await engine.generate([1] * 20, spec(20, trajectory))

    turns = [asyncio.create_task(generate(i)) for i in range(3)]
    await settle()
    assert told == [("begin", 2)]
    inner.gate.set()
    await asyncio.gather(*turns)
    assert told == [("begin", 2), ("end", 2)]


@pytest.mark.parametrize("how", ["cancelled while it waits", "cancelled while it runs", "fails"])
async def test_whatever_ends_a_turn_its_room_is_free_again(how):
    inner = Engine()
    engine = ScheduledEngine(inner)
    first = asyncio.create_task(engine.generate([1] * 60, spec(20, 1)))
    await settle()
    second = asyncio.create_task(engine.generate([1] * 60, spec(20, 2)))
    await settle()
    inner.fails = how == "fails"
    if how == "cancelled while it waits":
        second.cancel()
    elif how == "cancelled while it runs":
        first.cancel()
    inner.gate.set()
    found = await asyncio.gather(first, return_exceptions=True)
    engine.end_trajectory(1)
    found += await asyncio.gather(second, return_exceptions=True)
    engine.end_trajectory(2)
    assert [isinstance(f, Generation) for f in found] == {
        "cancelled while it waits": [True, False],
        "cancelled while it runs": [False, True],
        "fails": [False, False],
    }[how]
    inner.fails = False
    assert len((await engine.generate([1] * 60, spec(40))).ids) == 40
    scheduler = engine._queue.scheduler
    assert (scheduler.reserved(0), scheduler.held(0), scheduler.queued()) == (0, 0, 0)


async def test_what_can_never_fit_is_refused():
    with pytest.raises(NeverFits, match="120 tokens of KV cache; the largest of 1 engines has 100"):
        await ScheduledEngine(Engine()).generate([1] * 60, spec(60, 1))


async def test_new_weights_close_no_door_of_an_engine_that_shares_them():
    engine = ScheduledEngine(Engine())
    engine._engine.gate.set()
    await engine.publish(4)
    assert (await engine.generate([1], spec(1))).policy_version == 4


async def test_an_engine_that_dies_right_after_the_grant_is_never_used():
    queue = TurnQueue()
    queue.scheduler.add_engine(EngineLoad(100, 0, 0, 0))
    queue.scheduler.add_engine(None)
    assert await queue.enter(Turn("x", 80, 10)) == 0
    waiting = asyncio.create_task(queue.enter(Turn("a", 80, 10)))
    await settle()
    queue.forget("x")  # grants engine 0 to a, which has not gone on yet
    queue.engine_died(0)
    queue.engine_ready(1, 0, EngineLoad(100, 0, 0, 0))
    assert await waiting == 1


async def test_those_who_wait_learn_that_nothing_will_ever_have_room():
    queue = TurnQueue()
    queue.scheduler.add_engine(None)
    queue.engine_ready(0, 0, EngineLoad(100, 0, 0, 0))
    queue.engine_died(0)
    waiting = asyncio.create_task(queue.enter(Turn("a", 10, 10)))
    await settle()
    queue.fail(EngineError("no engine is left"))
    with pytest.raises(EngineError, match="no engine is left"):
        await waiting


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), engines=st.integers(1, 3))
def test_every_trajectory_ends_once_while_engines_die_and_callers_give_up(seed, engines):
    asyncio.run(_chaos(random.Random(seed), engines))


async def _chaos(rng: random.Random, engines: int) -> None:
    queue, ended = TurnQueue(), Counter()
    load = EngineLoad(100, 0, 0, 0)
    for _ in range(engines):
        queue.scheduler.add_engine(load)
    tasks = [asyncio.create_task(_trajectory(queue, key, rng, ended)) for key in range(12)]
    for _ in range(40):
        await asyncio.sleep(0)
        match rng.randrange(6):
            case 0:
                queue.engine_died(rng.randrange(engines))
            case 1:
                rng.choice(tasks).cancel()
            case 2:
                queue.engine_ready(rng.randrange(engines), 0, load)
    for engine in range(engines):
        queue.engine_ready(engine, 0, load)
    async with asyncio.timeout(30):
        await asyncio.gather(*tasks, return_exceptions=True)
    assert max(ended.values(), default=0) <= 1
    assert all(task.cancelled() or task.exception() is None for task in tasks)
    scheduler = queue.scheduler
    assert all(scheduler.reserved(e) == scheduler.held(e) == scheduler.running(e) == 0 for e in range(engines))
    assert (scheduler.queued(), queue._places) == (0, {})


async def _trajectory(queue: TurnQueue, key: int, rng: random.Random, ended: Counter[int]) -> None:
    """Up to three turns; one whose engine died meanwhile is entered again."""
    try:
        for _ in range(rng.randint(1, 3)):
            number = await queue.enter(Turn(key, rng.randint(1, 60), 10))
            await _pause(rng)
            while queue.scheduler.engine_of(key) != number:
                number = await queue.enter_again(key)
                await _pause(rng)
            queue.leave(key, 5)
            await asyncio.sleep(0)
    finally:
        ended[key] += 1
        queue.forget(key)


async def _pause(rng: random.Random) -> None:
    for _ in range(rng.randrange(4)):
        await asyncio.sleep(0)
