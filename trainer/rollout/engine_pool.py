"""Several engines in processes of their own behind the one `Engine` protocol; what is lost with one is done again.

A request is held here until its turn is back, so when an engine dies its requests go to another one, from the last
completed turn: the agent has all ids, the seed is the same, and on CPUs so is the turn. A dead engine is replaced in
the background and gets the newest weights before it gets a request. Which engine gets a turn, and when, is the
scheduler's word (`turn_queue`).
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from contracts.trajectory import EntropyKind
from trainer.rollout.engine import (
    EngineDead,
    EngineError,
    EngineLoad,
    Generation,
    OnTokens,
    SamplingSpec,
    check_request,
)
from trainer.rollout.remote import Host, RemoteEngine, UpdateReport
from trainer.rollout.scheduler import Key, Turn
from trainer.rollout.turn_queue import WHILE_WAITING, TurnQueue
from trainer.rollout.weights import Snapshot, Weights

MAX_TRIES = 4  # of one turn, each under an engine that died: then the turn itself is what kills them
MAX_FAILED_STARTS = 3  # in a row, of one engine
LOOK_S = 1.0  # between two looks at an engine
ANSWER_S = 20.0
NO_ENGINE = "no engine could be started again"
MAX_SILENCES = 3  # in a row; one alone may be the learner holding the loop


@dataclass(eq=False, slots=True)
class _Slot:
    """The place of one engine. `is_up`: it has started. `holds`: the snapshot it was last given, None before that."""

    number: int
    engine: RemoteEngine
    is_up: bool = False
    holds: Snapshot | None = None
    pending: int = 0
    failed_starts: int = 0
    load: EngineLoad | None = None

    @property
    def name(self) -> str:
        return f"engine {self.number}"

    @property
    def is_given_up(self) -> bool:
        return self.failed_starts >= MAX_FAILED_STARTS


class EnginePool:
    """Owns its host and the source of its weights. `tell` gets a line for each loss."""

    entropy_kind = EntropyKind.TOPK_BOUND

    def __init__(
        self,
        host: Host,
        count: int,
        weights: Weights,
        *,
        max_context: int,
        vocab_size: int,
        tell: Callable[[str], None],
    ) -> None:
        self.max_context = max_context
        self.policy_version = 0
        self._host = host
        self._weights = weights
        self._vocab_size = vocab_size
        self._tell = tell
        self._snapshot: Snapshot | None = None
        self._fault: Exception | None = None
        self._slots = [_Slot(number, host.start(number)) for number in range(count)]
        self._queue = TurnQueue()
        for _ in self._slots:
            self._queue.scheduler.add_engine(None)
        self._tasks: set[asyncio.Task[None]] = set()
        self._lock = asyncio.Lock()  # one update at a time
        self._changed = asyncio.Event()
        self._is_open = False  # the first turns wait for all engines, or the first one up would get them all
        self._request = itertools.count()

    async def publish(self, version: int) -> None:
        """The learner's weights as they are now are of this version: returns when every engine that is up has them, so
        that no turn starts with older ones. What is being sampled meanwhile goes on with them from its next token."""
        async with self._lock:  # an engine that is being given the last snapshot reads it to its end
            self._take_snapshot(version)
        await self._update_stale()

    def _take_snapshot(self, version: int) -> None:
        self._snapshot = self._weights.snapshot(version)
        self.policy_version = version
        self._queue.scheduler.set_version(version)

    async def generate(self, ids: Sequence[int], spec: SamplingSpec, on_tokens: OnTokens | None = None) -> Generation:
        """Continue `ids`; EngineError for what can never be generated, or when no engine is left to do it."""
        check_request(ids, spec, max_context=self.max_context, vocab_size=self._vocab_size)
        key: Key = ("turn", next(self._request)) if spec.trajectory is None else spec.trajectory
        turn = Turn(key, len(ids), spec.max_tokens)
        live = _Live(on_tokens) if on_tokens is not None else None
        try:
            generation = await self._sample(turn, ids, spec, live)
        except BaseException:
            self._queue.forget(key)
            raise
        self._queue.leave(key, len(generation.ids))
        if spec.trajectory is None:
            self._queue.forget(key)
        return generation

    def end_trajectory(self, trajectory: int) -> None:
        self._queue.forget(trajectory)

    async def _sample(self, turn: Turn, ids: Sequence[int], spec: SamplingSpec, live: "_Live | None") -> Generation:
        await self._wait_for_engines()
        number = await self._queue.enter(turn)
        for _ in range(MAX_TRIES):
            slot = self._slots[number]
            engine = slot.engine
            slot.pending += 1
            try:
                return await self._generate_on(engine, ids, spec, live)
            except EngineDead as error:
                self._lose(slot, engine, str(error))
            finally:
                slot.pending -= 1
            await self._wait_for_engines()
            number = await self._queue.enter_again(turn.trajectory)
        raise EngineError(f"{MAX_TRIES} engines in a row died while they sampled this turn")

    def load(self) -> EngineLoad:
        """Of all engines that are up together, as last heard of them."""
        up = [slot.load for slot in self._slots if slot.load is not None]
        return EngineLoad(
            kv_capacity=sum(load.kv_capacity for load in up),
            kv_used=sum(load.kv_used for load in up),
            running=sum(load.running for load in up),
            waiting=sum(load.waiting for load in up),
            preemptions=sum(load.preemptions for load in up),
            max_running=sum(load.max_running for load in up),
        )

    def loads(self) -> list[EngineLoad | None]:
        """Of each engine; None of one that is not up."""
        return [slot.load for slot in self._slots]

    def generated(self) -> list[int]:
        """Tokens of the turns that ended, by engine, since the pool began."""
        return list(self._queue.scheduler.generated)

    async def close(self) -> None:
        """End the engines; requests that wait get EngineError."""
        self._fail(EngineError("the engines were closed"))
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for slot in self._slots:
            slot.engine.kill()
        self._weights.close()
        self._host.close()

    async def _generate_on(
        self, engine: RemoteEngine, ids: Sequence[int], spec: SamplingSpec, live: "_Live | None"
    ) -> Generation:
        request_id = f"turn-{next(self._request)}"
        if live is None:
            return await engine.generate(request_id, ids, spec)
        live.restart()
        async for made in engine.stream(request_id, ids, spec):
            if isinstance(made, Generation):
                return made
            live.show(made.ids, made.entropies)
        raise EngineError("the engine ended the turn without its result")

    async def _wait_for_engines(self) -> None:
        """Until one is ready. All hold the newest weights: a stale one is updated first."""
        self._start()
        while True:
            if self._fault is not None:
                raise self._fault
            await self._update_stale()
            ready = [slot for slot in self._slots if self._is_ready(slot)]
            self._is_open = self._is_open or all(slot in ready or slot.failed_starts for slot in self._slots)
            if ready and self._is_open:
                return
            self._require_hope()
            with WHILE_WAITING.get()():
                await self._changed.wait()

    def _require_hope(self) -> None:
        if all(slot.is_given_up for slot in self._slots):
            raise EngineError(NO_ENGINE)

    def _is_ready(self, slot: _Slot) -> bool:
        return slot.holds is not None and slot.holds is self._snapshot

    def _start(self) -> None:
        if not self._tasks:
            for slot in self._slots:
                self._spawn(self._bring_up(slot, slot.engine))
            self._spawn(self._look_after())

    def _spawn(self, work: Any) -> None:
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            self._fail(error if isinstance(error, Exception) else EngineError(str(error)))

    def _fail(self, error: Exception) -> None:
        self._fault = self._fault or error
        self._queue.fail(self._fault)
        self._notify()

    def _notify(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _bring_up(self, slot: _Slot, engine: RemoteEngine) -> None:
        """Wait for a started engine and give it the newest weights."""
        try:
            await engine.facts()
            slot.load = await engine.load()
        except EngineError as error:
            self._lose(slot, engine, str(error))
            return
        if slot.engine is engine:
            slot.is_up = True
        if self._snapshot is not None:
            await self._update_stale()
        self._notify()

    async def _update_stale(self) -> None:
        """Bring every engine that is up to the newest snapshot; nothing to do is the usual case."""
        if self._snapshot is None:
            raise EngineError("the engines were given no weights: publish comes first")
        if not self._stale():
            return
        async with self._lock:
            if stale := self._stale():
                await self._update(stale, self._snapshot)

    def _stale(self) -> list[_Slot]:
        return [slot for slot in self._slots if slot.is_up and slot.holds is not self._snapshot]

    async def _update(self, slots: Sequence[_Slot], snapshot: Snapshot) -> None:
        """All of them pause, load, resume together: none samples on with the old weights while another has the new.

        WeightsDiffer when one does not then hold the trainer's weights.
        """
        engines = {slot.number: slot.engine for slot in slots}
        left = list(slots)

        def take(results: Sequence[Any]) -> None:
            nonlocal left
            for slot, result in zip(left, results, strict=True):
                if isinstance(result, EngineDead):
                    self._lose(slot, engines[slot.number], str(result))
                elif isinstance(result, BaseException):
                    raise result
                elif isinstance(result, UpdateReport):
                    snapshot.check_update(slot.name, result)
            left = [slot for slot in left if slot.is_up and slot.engine is engines[slot.number]]

        async def on_all(do: Callable[[_Slot], Awaitable[Any]]) -> None:
            take(await asyncio.gather(*(do(slot) for slot in left), return_exceptions=True))

        async def probe(slot: _Slot) -> None:
            name = f"probe-{next(self._request)}"
            snapshot.check_probe(slot.name, await slot.engine.probe(name, snapshot.probe_ids))

        await on_all(lambda slot: slot.engine.pause())
        take(await self._weights.deliver(snapshot, [slot.engine for slot in left]))
        await on_all(lambda slot: slot.engine.resume())
        await on_all(probe)
        for slot in left:
            slot.holds, slot.failed_starts = snapshot, 0
            if slot.load is not None:
                self._queue.engine_ready(slot.number, snapshot.version, slot.load)

    def _lose(self, slot: _Slot, engine: RemoteEngine, why: str) -> None:
        """Replace an engine that is gone; all but the first of its requests to notice do nothing."""
        if slot.engine is not engine or slot.is_given_up or self._fault is not None:
            return
        engine.kill()
        slot.failed_starts += slot.holds is None
        slot.is_up, slot.holds, slot.load = False, None, None
        self._queue.engine_died(slot.number)
        if slot.is_given_up:
            self._tell(f"{slot.name} could not be started {slot.failed_starts} times in a row: {why[:500]}")
            if all(slot.is_given_up for slot in self._slots):
                self._queue.fail(EngineError(NO_ENGINE))
            self._notify()
            return
        self._tell(f"{slot.name} is gone with {slot.pending} turns, which others take over: {why[:500]}")
        slot.engine = self._host.start(slot.number)
        self._spawn(self._bring_up(slot, slot.engine))

    async def _look_after(self) -> None:
        """Notice engines that died or hang while nobody asks them for anything, and hear how they are."""
        silences = dict.fromkeys(range(len(self._slots)), 0)
        while True:
            await asyncio.sleep(LOOK_S)
            for slot in [slot for slot in self._slots if slot.holds is not None]:
                engine = slot.engine
                try:
                    async with asyncio.timeout(ANSWER_S):
                        slot.load = await engine.load()
                    if slot.engine is engine:
                        self._queue.report(slot.number, slot.load)
                    silences[slot.number] = 0
                except TimeoutError:
                    silences[slot.number] += 1
                    if silences[slot.number] >= MAX_SILENCES:
                        silences[slot.number] = 0
                        self._lose(slot, engine, f"it did not answer {MAX_SILENCES} times in a row")
                except EngineDead as error:
                    self._lose(slot, engine, str(error))


class _Live:
    """Passes new tokens on once, also when the turn is sampled again from its start."""

    def __init__(self, on_tokens: OnTokens) -> None:
        self._on_tokens = on_tokens
        self._shown = 0
        self._seen = 0

    def restart(self) -> None:
        self._seen = 0

    def show(self, ids: Sequence[int], entropies: Sequence[float]) -> None:
        new = max(0, self._seen + len(ids) - self._shown)
        self._seen += len(ids)
        if new:
            self._on_tokens(ids[-new:], entropies[-new:])
            self._shown = self._seen
