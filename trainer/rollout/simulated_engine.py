"""An engine in virtual time: decode speed against batch and KV, prefill, prefix cache, preemption by recompute.

The engine's own clock counts decode steps; between two events every decoding turn gains one token a step, so
nothing is simulated token by token. The numbers of `EngineModel` and where they come from are in
`docs/decisions/scheduler.md`.
"""

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Hashable
from dataclasses import dataclass

from trainer.rollout.engine import EngineLoad

TOLERANCE = 1e-6  # steps: below it something has happened


@dataclass(frozen=True, slots=True)
class EngineModel:
    """A decode step takes `step_s + batch * sequence_s + KV tokens * token_s`, and while prompts are computed
    `chunk / prefill_per_s` more. Defaults: Qwen3-14B in bf16 on one MI300X."""

    step_s: float = 0.015
    sequence_s: float = 75e-6
    token_s: float = 5e-8
    prefill_per_s: float = 17_600.0
    chunk: int = 2048  # prompt tokens that ride on one decode step
    watermark: float = 0.01  # share of the KV cache that admission leaves free
    max_running: int = 512

    def step(self, batch: int, kv_tokens: float) -> float:
        """Seconds of one decode step without prefill."""
        return self.step_s + batch * self.sequence_s + kv_tokens * self.token_s


@dataclass(slots=True)
class _Sequence:
    """A turn in the engine. `length`: tokens in its KV cache, as of step `since` while it decodes."""

    key: Hashable
    length: float
    left: float
    prefill: float
    since: float = -1.0  # < 0: does not decode yet
    order: int = 0
    finish: float = math.inf


class SimulatedEngine:
    """`add` turns, ask `next_event_s`, `advance` to it, take `ended`. KV is in tokens."""

    def __init__(self, capacity: int, model: EngineModel) -> None:
        self.capacity = capacity
        self.model = model
        self.now_s = 0.0
        self.busy_s = 0.0
        self.preemptions = 0
        self.recomputed = 0.0  # tokens of preempted turns
        self.prefilled = 0.0  # tokens, recomputed ones included
        self.generated = 0.0
        self.ended: list[Hashable] = []
        self._steps = 0.0
        self._order = 0
        self._used = 0.0
        self._running: OrderedDict[int, _Sequence] = OrderedDict()  # by order of admission: the last is preempted first
        self._decoding = 0
        self._finishing: list[tuple[float, int]] = []  # (step, order), stale ones among them
        self._prefills: deque[_Sequence] = deque()
        self._waiting: deque[_Sequence] = deque()
        self._cached: OrderedDict[Hashable, float] = OrderedDict()  # idle prefixes, least recently used first
        self._cached_sum = 0.0

    def add(self, key: Hashable, length: int, new_tokens: int) -> None:
        """A turn of `length` ids that will generate `new_tokens`; the cached prefix of `key` is not computed again."""
        self._waiting.append(_Sequence(key, length, new_tokens, length))
        self._admit()

    def load(self) -> EngineLoad:
        return EngineLoad(
            kv_capacity=self.capacity,
            kv_used=int(self._used),
            running=len(self._running),
            waiting=len(self._waiting),
            preemptions=self.preemptions,
            max_running=self.model.max_running,
        )

    def next_event_s(self) -> float:
        """When something happens next, if nothing is added; infinity for an idle engine."""
        steps = self._steps_to_event()
        return math.inf if steps is None else self.now_s + self._seconds(steps)

    def advance(self, to_s: float) -> None:
        """Let time pass, to the next event at most."""
        elapsed = to_s - self.now_s
        self.now_s = to_s
        if not self._running or elapsed <= 0:
            return
        self.busy_s += elapsed
        to_event = self._steps_to_event()
        steps = self._steps_in(elapsed)
        if to_event is not None and steps > to_event - TOLERANCE:
            steps = to_event
        self._pass(steps)
        self._finish_prefill()
        self._finish_turns()
        while self._used >= self.capacity - TOLERANCE and len(self._running) > 1:
            self._preempt()
        self._admit()

    def _pass(self, steps: float) -> None:
        self._steps += steps
        self._used += steps * self._decoding
        self.generated += steps * self._decoding
        left = steps * self.model.chunk
        while self._prefills and left > 0:
            done = min(left, self._prefills[0].prefill)
            self._prefills[0].prefill -= done
            self.prefilled += done
            left -= done
            if self._prefills[0].prefill > TOLERANCE:
                break
            self._begin_decode(self._prefills.popleft())

    def _seconds(self, steps: float) -> float:
        """Of so many steps from now: KV grows by one token a step and decoding turn."""
        model = self.model
        first = model.step(self._decoding, self._used) + (model.chunk / model.prefill_per_s if self._prefills else 0.0)
        return first * steps + model.token_s * self._decoding * steps * steps / 2

    def _steps_in(self, seconds: float) -> float:
        """The inverse of `_seconds`."""
        growth = self.model.token_s * self._decoding / 2
        first = self._seconds(1.0) - growth
        if growth == 0:
            return seconds / first
        return (math.sqrt(first * first + 4 * growth * seconds) - first) / (2 * growth)

    def _steps_to_event(self) -> float | None:
        if not self._running:
            return None
        found = math.inf
        while self._finishing and self._is_stale(self._finishing[0]):
            heapq.heappop(self._finishing)
        if self._finishing:
            found = self._finishing[0][0] - self._steps
        if self._prefills:
            found = min(found, self._prefills[0].prefill / self.model.chunk)
        if self._decoding and len(self._running) > 1:
            found = min(found, (self.capacity - self._used) / self._decoding)
        return max(0.0, found)

    def _is_stale(self, entry: tuple[float, int]) -> bool:
        sequence = self._running.get(entry[1])
        return sequence is None or sequence.finish != entry[0]

    def _begin_decode(self, sequence: _Sequence) -> None:
        sequence.since = self._steps
        sequence.finish = self._steps + sequence.left
        self._decoding += 1
        heapq.heappush(self._finishing, (sequence.finish, sequence.order))

    def _finish_prefill(self) -> None:
        while self._prefills and self._prefills[0].prefill <= TOLERANCE * self.model.chunk:
            self._begin_decode(self._prefills.popleft())

    def _finish_turns(self) -> None:
        while self._finishing and (
            self._is_stale(self._finishing[0]) or self._finishing[0][0] <= self._steps + TOLERANCE
        ):
            entry = heapq.heappop(self._finishing)
            if self._is_stale(entry):
                continue
            sequence = self._running.pop(entry[1])
            self._decoding -= 1
            length = sequence.length + sequence.left
            self._used -= length
            self._cached[sequence.key] = length
            self._cached_sum += length
            self.ended.append(sequence.key)

    def _preempt(self) -> None:
        """The newest turn loses its KV cache and waits, first in line, to compute it again (vLLM's recompute)."""
        order, victim = self._running.popitem()
        if victim.since >= 0:
            gained = self._steps - victim.since
            victim.length += gained
            victim.left -= gained
            self._decoding -= 1
        else:
            self._prefills.remove(victim)
        self._used -= victim.length
        self.preemptions += 1
        self.recomputed += victim.length
        victim.prefill, victim.since, victim.finish = victim.length, -1.0, math.inf
        self._waiting.appendleft(victim)

    def _admit(self) -> None:
        """Waiting turns in order, while their ids fit; cached prefixes give way, least recently used first."""
        limit = self.capacity * (1 - self.model.watermark)
        while self._waiting and len(self._running) < self.model.max_running:
            sequence = self._waiting[0]
            if self._running and self._used + sequence.length > limit:
                break
            self._waiting.popleft()
            hit = min(self._take_cached(sequence.key), sequence.length - 1)
            sequence.prefill = max(1.0, min(sequence.prefill, sequence.length) - hit)
            self._order += 1
            sequence.order = self._order
            self._used += sequence.length
            self._running[sequence.order] = sequence
            self._prefills.append(sequence)
        self._trim_cache()

    def _take_cached(self, key: Hashable) -> float:
        self._trim_cache()
        length = self._cached.pop(key, 0.0)
        self._cached_sum -= length
        return length

    def _trim_cache(self) -> None:
        over = self._used + self._cached_sum - self.capacity
        while over > 0 and self._cached:
            key, length = self._cached.popitem(last=False)
            self._cached_sum -= min(length, over)
            if length > over:  # blocks of a prefix are evicted from its end
                self._cached[key] = length - over
                self._cached.move_to_end(key, last=False)
                return
            over -= length
