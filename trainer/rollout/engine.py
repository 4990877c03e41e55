"""The engine protocol: token ids in; token ids, log-probabilities and entropies out.

An engine never sees text. It continues many sequences at once; `generate` is called from the asyncio
loop and returns when that one turn is finished, so turns of other trajectories go on meanwhile.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from contracts.trajectory import EntropyKind, VersionSpan

OnTokens = Callable[[Sequence[int], Sequence[float]], None]


class EngineError(Exception):
    """The engine failed: the trajectory becomes Ungraded(engine_failure), never reward 0."""


class EngineDead(EngineError):
    """The engine is gone with all it was doing: its turns can begin again on another one."""


class FinishReason(StrEnum):
    STOP = "stop"  # a stop id was sampled; it is the last of `ids`
    LENGTH = "length"


@dataclass(frozen=True, slots=True)
class SamplingSpec:
    """How one turn is sampled. No top-p or top-k in training: the ratio would be biased."""

    max_tokens: int
    temperature: float
    seed: int
    stop_ids: tuple[int, ...]
    trajectory: int | None = None  # whose turn it is: its engine has the prefix. None: a turn by itself


@dataclass(frozen=True, slots=True)
class Generation:
    """One turn. All lists have the same length; log-probabilities and entropies are of the distribution
    that was sampled from (temperature applied), in nats. `policy_version` sampled the first token; `spans` cover
    the turn where the weights were updated while it was sampled, and are empty where they were not."""

    ids: list[int]
    logprobs: list[float]
    entropies: list[float]
    entropy_kind: EntropyKind
    finish: FinishReason
    policy_version: int
    spans: tuple[VersionSpan, ...] = ()


def check_request(ids: Sequence[int], spec: SamplingSpec, *, max_context: int, vocab_size: int) -> None:
    """EngineError for what can never be generated: one id outside the vocabulary would end a vLLM engine for good."""
    if not ids or spec.max_tokens < 1 or spec.temperature <= 0:
        raise EngineError("a request needs ids, max_tokens >= 1 and temperature > 0")
    if len(ids) + spec.max_tokens > max_context:
        raise EngineError(f"{len(ids)} ids + {spec.max_tokens} tokens exceed the context of {max_context}")
    if min(ids) < 0 or max(ids) >= vocab_size:
        raise EngineError(f"a token id is outside the vocabulary of {vocab_size}")


@dataclass(frozen=True, slots=True)
class EngineLoad:
    """What an engine says of itself; all of KV in tokens, counts in requests. `kv_used` is what running requests
    hold: a cached prefix that gives way when room is needed is not in it."""

    kv_capacity: int
    kv_used: int
    running: int
    waiting: int
    preemptions: int = 0  # since the engine began: requests that lost their KV cache and must compute it again
    max_running: int = 1024


class Engine(Protocol):
    """Two implementations: `torch_engine` in process, `engine_pool` over vLLM in actors; fakes live in tests."""

    max_context: int
    entropy_kind: EntropyKind  # of what `generate` returns and `on_tokens` is given

    @property
    def policy_version(self) -> int: ...

    async def generate(self, ids: Sequence[int], spec: SamplingSpec, on_tokens: OnTokens | None = None) -> Generation:
        """Continue `ids`. `on_tokens` gets newly sampled ids with their entropies now and then (live view)."""
        ...

    def end_trajectory(self, trajectory: int) -> None:
        """No more turns of it will come, however it ended: nothing needs to be kept for it."""
        ...

    def load(self) -> EngineLoad:
        """The newest that is known; never waits. Asked a few times a second."""
        ...
