"""The pool with engines that are lists: what is lost with an engine is done again, once, with the newest weights."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest

from contracts.trajectory import EntropyKind
from trainer.rollout import engine_pool
from trainer.rollout.engine import EngineDead, EngineError, EngineLoad, FinishReason, Generation, SamplingSpec
from trainer.rollout.engine_pool import MAX_FAILED_STARTS, MAX_TRIES, EnginePool
from trainer.rollout.remote import EngineFacts, NewTokens, UpdateReport
from trainer.rollout.turn_queue import WHILE_WAITING
from trainer.rollout.weights import Snapshot, WeightsDiffer, update_all

CONTEXT, VOCABULARY = 32, 50


class FakeEngine:
    """Answers a turn with its prompt's first id, as often as asked for; dies when told to."""

    def __init__(self, number: int, *, can_start: bool = True, dies_at_update: bool = False) -> None:
        self.number = number
        self.version: int | None = None
        self.calls: list[str] = []
        self.turns: list[list[int]] = []
        self.gate = asyncio.Event()
        self.gate.set()
        self.is_dead = False
        self.is_deaf = False
        self.wrong: dict[str, Any] = {}
        self._can_start = can_start
        self._dies_at_update = dies_at_update
        self._death = asyncio.Event()

    def die(self) -> None:
        self.is_dead = True
        self._death.set()

    kill = die

    async def _wait(self, name: str, gate: asyncio.Event | None = None) -> None:
        self.calls.append(name)
        if not self.is_dead and gate is not None:
            waits = [asyncio.ensure_future(event.wait()) for event in (gate, self._death)]
            try:
                await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for wait in waits:
                    wait.cancel()
        if self.is_dead:
            raise EngineDead(f"engine {self.number} died")

    async def facts(self) -> EngineFacts:
        if not self._can_start:
            raise EngineDead("no such model")
        await self._wait("facts")
        return EngineFacts("0", self.number)

    async def generate(self, request_id: str, ids: Sequence[int], spec: SamplingSpec) -> Generation:
        assert self.version is not None, "a turn before the weights"
        self.turns.append(list(ids))
        version = self.version
        await self._wait("generate", self.gate)
        sampled = [ids[0]] * spec.max_tokens
        zeros = [0.0] * spec.max_tokens
        return Generation(sampled, zeros, zeros, EntropyKind.TOPK_BOUND, FinishReason.LENGTH, version)

    async def stream(
        self, request_id: str, ids: Sequence[int], spec: SamplingSpec
    ) -> AsyncIterator[NewTokens | Generation]:
        for token in range(spec.max_tokens):
            yield NewTokens([ids[0] + token], [0.5])
            if token == 0:
                await self._wait("stream", self.gate)
        yield await self.generate(request_id, ids, spec)

    async def pause(self) -> None:
        await self._wait("pause")

    async def resume(self) -> None:
        await self._wait("resume")

    async def init_transfer(self, info: dict[str, Any]) -> None:
        await self._wait("init_transfer")

    async def update(self, info: dict[str, Any], version: int, names: Sequence[str]) -> UpdateReport:
        if self._dies_at_update:
            self.die()
        await self._wait("update")
        self.version = version
        report = {"version": version, "checksums": {"norm": str(version)}} | self.wrong
        return UpdateReport(**report, seconds=0.0)

    async def probe(self, request_id: str, ids: Sequence[int]) -> list[float]:
        await self._wait("probe")
        return [-1.0 + self.wrong_probe]

    wrong_probe = 0.0

    async def load(self) -> EngineLoad:
        await self._wait("load", asyncio.Event() if self.is_deaf else None)
        return EngineLoad(kv_capacity=100, kv_used=7, running=1, waiting=0)


class FakeWeights:
    """`deliveries`: to how many engines each went."""

    def __init__(self) -> None:
        self.is_closed = False
        self.deliveries: list[int] = []

    def snapshot(self, version: int) -> Snapshot:
        return Snapshot(version, {"path": "x"}, {"norm": str(version)}, [1, 2], [-1.0])

    async def deliver(self, snapshot: Snapshot, engines: Sequence[Any]) -> list[UpdateReport | BaseException]:
        self.deliveries.append(len(engines))
        return await asyncio.gather(*update_all(snapshot, engines), return_exceptions=True)

    def close(self) -> None:
        self.is_closed = True


class Pool:
    """A pool, every engine it ever made, and what it told."""

    def __init__(self, count: int = 2, **first: Any) -> None:
        self.engines: list[FakeEngine] = []
        self.first = first
        self.count = count
        self.told: list[str] = []
        self.weights = FakeWeights()
        self.is_closed = False
        self.pool = EnginePool(
            self, count, self.weights, max_context=CONTEXT, vocab_size=VOCABULARY, tell=self.told.append
        )
        self.pool._take_snapshot(1)  # as `publish` does, outside a loop

    def start(self, number: int) -> FakeEngine:
        options = self.first if len(self.engines) < self.count else {}
        self.engines.append(FakeEngine(number, **options))
        return self.engines[-1]

    def close(self) -> None:
        self.is_closed = True

    def turn(self, first: int = 1, max_tokens: int = 3) -> "asyncio.Task[Generation]":
        return asyncio.ensure_future(self.pool.generate([first, 2], SamplingSpec(max_tokens, 1.0, 0, ())))


async def settle() -> None:
    for _ in range(50):
        await asyncio.sleep(0)


async def test_turns_are_spread_and_come_back() -> None:
    pool = Pool()
    found = await asyncio.gather(*(pool.turn(i) for i in range(1, 9)))
    assert [g.ids[0] for g in found] == list(range(1, 9))
    assert [len(engine.turns) for engine in pool.engines] == [4, 4]
    await pool.pool.close()
    assert pool.is_closed and pool.weights.is_closed and all(engine.is_dead for engine in pool.engines)


async def test_a_turn_says_that_it_waits_while_engines_start() -> None:
    told: list[str] = []

    @contextmanager
    def wait() -> Iterator[None]:
        told.append("waits")
        yield
        told.append("goes on")

    WHILE_WAITING.set(wait)
    pool = Pool()
    await pool.turn(3)
    begun = len(told)
    await pool.turn(4)
    await pool.pool.close()
    assert begun and told == ["waits", "goes on"] * (begun // 2)


async def test_turns_of_a_dead_engine_are_done_again_and_no_other() -> None:
    pool = Pool()
    await pool.turn()
    for engine in pool.engines:
        engine.turns.clear()
        engine.gate.clear()
    turns = [pool.turn(i) for i in range(1, 7)]
    await settle()
    lost, kept = [list(engine.turns) for engine in pool.engines]
    pool.engines[0].die()
    await settle()
    assert len(pool.engines) == 3 and "engine 0 is gone with 3 turns" in pool.told[0]
    pool.engines[1].gate.set()
    found = await asyncio.gather(*turns)
    assert [g.ids[0] for g in found] == list(range(1, 7))
    done = pool.engines[1].turns + pool.engines[2].turns
    assert sorted(done) == sorted(lost + kept)
    await pool.pool.close()


async def test_a_rebuilt_engine_has_the_newest_weights_before_a_turn() -> None:
    pool = Pool(1)
    await pool.turn()
    await pool.pool.publish(2)
    pool.engines[0].die()
    found = await pool.turn()
    assert found.policy_version == 2
    assert pool.engines[1].calls[:6] == ["facts", "load", "pause", "update", "resume", "probe"]
    await pool.pool.close()


async def test_all_engines_pause_before_one_is_updated_and_resume_after_all_are() -> None:
    pool = Pool()
    await pool.turn()
    order: list[str] = []
    for engine in pool.engines:
        engine.calls = order  # type: ignore[assignment]  # one list for both
    await pool.pool.publish(2)
    assert (await pool.turn()).policy_version == 2
    assert order[:8] == ["pause", "pause", "update", "update", "resume", "resume", "probe", "probe"]
    await pool.pool.close()


async def test_an_update_while_a_turn_runs_reaches_it() -> None:
    pool = Pool(1)
    await pool.turn()
    pool.engines[0].gate.clear()
    running = pool.turn()
    await settle()
    await pool.pool.publish(2)
    later = pool.turn()
    await settle()
    assert pool.engines[0].version == 2 and not running.done()
    pool.engines[0].gate.set()
    assert [g.policy_version for g in await asyncio.gather(running, later)] == [1, 2]
    await pool.pool.close()


async def test_a_trajectory_goes_back_to_the_engine_that_has_its_prefix() -> None:
    pool = Pool()

    async def trajectory(first: int) -> set[int]:
        places = set()
        for turn in range(3):
            spec = SamplingSpec(2, 1.0, 0, (), trajectory=first)
            await pool.pool.generate([first, *range(turn + 1)], spec)
            places |= {e.number for e in pool.engines if any(ids == [first, *range(turn + 1)] for ids in e.turns)}
        return places

    places = await asyncio.gather(*(trajectory(i) for i in range(10, 18)))
    assert all(len(own) == 1 for own in places) and set.union(*places) == {0, 1}
    await pool.pool.close()


async def test_turns_wait_here_and_not_in_an_engine_that_is_full(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_pool, "LOOK_S", 0.0)
    pool = Pool(1)
    await pool.turn()
    pool.engines[0].gate.clear()
    turns = [pool.turn(i, max_tokens=28) for i in range(1, 9)]  # 30 tokens each at most; the cache has 100
    await settle()
    assert len(pool.engines[0].turns) - 1 < 8
    pool.engines[0].gate.set()
    assert [g.ids[0] for g in await asyncio.gather(*turns)] == list(range(1, 9))
    await pool.pool.close()


async def test_what_no_engine_can_ever_hold_is_refused() -> None:
    pool = Pool(1)
    await pool.turn()
    pool.pool.max_context = 1000
    with pytest.raises(EngineError, match="needs 202 tokens of KV cache; the largest of 1 engines has 100"):
        await pool.turn(max_tokens=200)
    await pool.pool.close()


async def test_turns_that_wait_get_weights_published_meanwhile() -> None:
    pool = Pool(1)
    await pool.turn()
    pool.engines[0].gate.clear()
    turns = [pool.turn(i, max_tokens=28) for i in range(1, 9)]
    await settle()
    await pool.pool.publish(2)
    await settle()
    pool.engines[0].gate.set()
    assert [g.policy_version for g in await asyncio.gather(*turns)][-1] == 2
    await pool.pool.close()


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"version": 9}, "engine 0 says it holds version 9 after the update to 2"),
        ({"checksums": {"norm": "1"}}, "engine 0 holds another norm than the trainer's version 2"),
        ({"checksums": {}}, "engine 0 holds another norm"),
        ("probe", r"engine 0 is 0\.0002 nats off the trainer's version 2"),
        ("nan", "engine 0 is nan nats off"),
    ],
)
async def test_an_engine_with_other_weights_stops_the_run(wrong: Any, sentence: str) -> None:
    pool = Pool(1)
    await pool.turn()
    if isinstance(wrong, dict):
        pool.engines[0].wrong = wrong
    else:
        pool.engines[0].wrong_probe = 2e-4 if wrong == "probe" else float("nan")
    with pytest.raises(WeightsDiffer, match=sentence):
        await pool.pool.publish(2)
    await pool.pool.close()


async def test_an_engine_that_dies_in_its_update_is_replaced() -> None:
    pool = Pool(1, dies_at_update=True)
    assert (await pool.turn()).policy_version == 1
    assert len(pool.engines) == 2
    await pool.pool.close()


async def test_engines_that_come_up_together_get_their_weights_together() -> None:
    """A set of engines is a group of its own, where weights go from process to process."""
    pool = Pool(5)
    await pool.turn()
    assert pool.weights.deliveries == [1, 4]
    await pool.pool.close()


async def test_a_turn_that_kills_every_engine_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    async def die(self: FakeEngine, request_id: str, ids: Sequence[int], spec: SamplingSpec) -> Generation:
        self.die()
        raise EngineDead("died of it")

    monkeypatch.setattr(FakeEngine, "generate", die)
    pool = Pool(1)
    with pytest.raises(EngineError, match=f"{MAX_TRIES} engines in a row died"):
        await pool.turn()
    assert len(pool.engines) == MAX_TRIES + 1
    await pool.pool.close()


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("facts", "vLLM 0.33.0 is installed and this engine is written for 0.32"),
        ("update", "the transfer of weights broke off"),
    ],
)
async def test_engines_that_always_die_before_they_have_their_weights_are_given_up(
    monkeypatch: pytest.MonkeyPatch, call: str, why: str
) -> None:
    async def die(self: FakeEngine, *_: Any) -> None:
        self.die()
        raise EngineDead(why)

    monkeypatch.setattr(FakeEngine, call, die)
    pool = Pool(2)
    with pytest.raises(EngineError, match="no engine could be started"):
        await pool.turn()
    assert len(pool.engines) == 2 * MAX_FAILED_STARTS and why in pool.told[-1]
    await pool.pool.close()


async def test_the_others_go_on_where_one_never_starts() -> None:
    pool = Pool(1, can_start=False)  # only the first attempt fails
    assert (await pool.turn()).ids == [1, 1, 1]
    await pool.pool.close()


@pytest.mark.parametrize("ids", [[], [VOCABULARY], [-1], [1] * CONTEXT])
async def test_what_can_never_be_generated_reaches_no_engine(ids: list[int]) -> None:
    pool = Pool(1)
    with pytest.raises(EngineError):
        await pool.pool.generate(ids, SamplingSpec(1, 1.0, 0, ()))
    assert pool.engines[0].calls == []
    await pool.pool.close()


async def test_live_tokens_are_shown_once_though_the_turn_began_twice() -> None:
    pool = Pool(1)
    await pool.turn()
    pool.engines[0].gate.clear()
    shown: list[int] = []
    spec = SamplingSpec(4, 1.0, 0, ())
    turn = asyncio.ensure_future(pool.pool.generate([5, 2], spec, lambda ids, entropies: shown.extend(ids)))
    await settle()
    assert shown == [5]
    pool.engines[0].die()
    await turn
    assert shown == [5, 6, 7, 8]
    await pool.pool.close()


async def test_a_silent_engine_is_replaced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_pool, "LOOK_S", 0.0)
    monkeypatch.setattr(engine_pool, "ANSWER_S", 0.001)
    pool = Pool(1)
    await pool.turn()
    pool.engines[0].is_deaf = True
    while not pool.told:
        await asyncio.sleep(0)
    assert "did not answer 3 times in a row" in pool.told[0]
    assert (await pool.turn()).ids == [1, 1, 1]
    await pool.pool.close()


async def test_the_load_is_that_of_all_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_pool, "LOOK_S", 0.0)
    pool = Pool(2)
    await pool.turn()
    while None in pool.pool.loads():
        await asyncio.sleep(0)
    load = pool.pool.load()
    assert (load.kv_capacity, load.kv_used, load.running) == (200, 14, 2)
    await pool.pool.close()


async def test_closing_ends_what_waits() -> None:
    pool = Pool(1)
    await pool.turn()
    pool.engines[0].gate.clear()
    turn = pool.turn()
    await settle()
    await pool.pool.close()
    with pytest.raises(EngineError):
        await turn
