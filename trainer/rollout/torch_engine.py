"""In-process engine over the learner's own weights: continuous batching with a preallocated KV cache.

A background task drives decode steps on the asyncio loop while there is work and yields between steps,
so tool calls overlap and new requests join at the next step. Rows [0, active) of the cache decode; the
rows behind them keep the keys and values of turns that ended, so that a trajectory coming back from its
tool continues its own row, and requests with a common prefix copy it instead of computing it again.

Sampling is by inversion with one uniform number a token from a counter-based generator of the request's
seed, so a request draws the same whoever else is in the batch (but for the last bits of a float).
"""

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, Qwen3ForCausalLM

from contracts.trajectory import EntropyKind, VersionSpan
from trainer.rollout.decode import Decode
from trainer.rollout.engine import (
    EngineError,
    EngineLoad,
    FinishReason,
    Generation,
    OnTokens,
    SamplingSpec,
    check_request,
)
from trainer.rollout.kv_rows import KvRows

PREFILL_TOKENS = 8192  # rows x tokens of one prefill pass, about
LIVE_TOKENS = 8  # tokens between two `on_tokens`


@dataclass(eq=False, slots=True)
class _Request:
    """One `generate` call. `row` is its cache row while it decodes."""

    ids: list[int]
    spec: SamplingSpec
    on_tokens: OnTokens | None
    future: asyncio.Future[Generation]
    uniforms: np.ndarray
    version: int  # of the weights that read its ids
    row: int = -1
    dropped: bool = False
    finish: FinishReason | None = None
    shown: int = 0
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    begins: dict[int, int] = field(default_factory=dict)  # policy version -> the first token that it sampled

    def add(self, version: int, token: int, logprob: float, entropy: float) -> None:
        self.begins.setdefault(version, len(self.sampled))
        self.sampled.append(token)
        self.logprobs.append(logprob)
        self.entropies.append(entropy)
        if token in self.spec.stop_ids:
            self.finish = FinishReason.STOP
        elif len(self.sampled) >= self.spec.max_tokens:
            self.finish = FinishReason.LENGTH
        ended = self.finish
        if self.on_tokens is not None and (ended or len(self.sampled) - self.shown >= LIVE_TOKENS):
            self.on_tokens(self.sampled[self.shown :], self.entropies[self.shown :])
            self.shown = len(self.sampled)
        if ended and not self.future.done():
            self.future.set_result(self._generation(ended))

    def _generation(self, finish: FinishReason) -> Generation:
        ends = [*self.begins.values(), len(self.sampled)][1:]
        spans = [VersionSpan(version=v, start=s, end=e) for (v, s), e in zip(self.begins.items(), ends, strict=True)]
        return Generation(
            self.sampled,
            self.logprobs,
            self.entropies,
            EntropyKind.FULL,
            finish,
            spans[0].version,
            tuple(spans) if len(spans) > 1 else (),
        )


class TorchEngine:
    """`max_batch` rows of `max_context` tokens, float32 on the CPU.

    Weights are read live: an optimizer's in-place update is seen by the next step. Call `set_version`
    after it, so that no keys and values of the older weights are taken for the new ones'.
    """

    entropy_kind = EntropyKind.FULL

    def __init__(
        self, model: Qwen3ForCausalLM | LlamaForCausalLM, *, max_batch: int = 256, max_context: int | None = None
    ) -> None:
        limit = int(model.config.max_position_embeddings)
        self.max_context = min(max_context or limit, limit)
        self.policy_version = 0
        self._vocab_size = int(model.config.vocab_size)
        self._decode = Decode(model, self.max_context)
        self._rows = KvRows(self._decode.new_cache(max_batch))
        self._waiting: deque[_Request] = deque()
        self._active: list[_Request] = []  # the request of row i at index i
        self._task: asyncio.Task[None] | None = None

    def set_version(self, version: int) -> None:
        """The weights were updated in place. What is still decoding goes on with them from its next token, over the
        keys and values it has; no other row uses those."""
        self.policy_version = version
        self._rows.forget(len(self._active))

    def end_trajectory(self, trajectory: int) -> None:
        """Nothing to do: a row that is not continued gives way by its age."""

    def load(self) -> EngineLoad:
        """A row has room for the longest context, so nothing is ever preempted."""
        return EngineLoad(
            kv_capacity=self._rows.count * self.max_context,
            kv_used=int(self._rows.lengths[: len(self._active)].sum()),
            running=len(self._active),
            waiting=len(self._waiting),
            max_running=self._rows.count,
        )

    async def generate(self, ids: Sequence[int], spec: SamplingSpec, on_tokens: OnTokens | None = None) -> Generation:
        """Continue `ids` by at most `spec.max_tokens`; EngineError for what can never be generated."""
        check_request(ids, spec, max_context=self.max_context, vocab_size=self._vocab_size)
        loop = asyncio.get_running_loop()
        uniforms = np.random.Generator(np.random.Philox(key=spec.seed)).random(spec.max_tokens)
        request = _Request(list(ids), spec, on_tokens, loop.create_future(), uniforms, self.policy_version)
        self._waiting.append(request)
        if self._task is None or self._task.done() or self._task.get_loop() is not loop:
            self._task = loop.create_task(self._drive())
            self._task.add_done_callback(self._driver_ended)
        try:
            return await request.future
        finally:
            request.dropped = True  # a cancelled caller's row is given back before the next step

    async def close(self) -> None:
        """Stop the background task; requests still waiting get EngineError."""
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._fail_all("the engine was closed")

    async def _drive(self) -> None:
        while self._waiting or self._active:
            try:
                self._step()
            except (RuntimeError, ValueError, IndexError) as error:
                self._fail_all(f"a decode step failed: {error}")
            await asyncio.sleep(0)

    def _driver_ended(self, task: asyncio.Task[None]) -> None:
        if task is self._task and (task.cancelled() or task.exception() is not None):
            self._fail_all("the engine's background task ended")

    def _fail_all(self, why: str) -> None:
        for request in (*self._active, *self._waiting):
            if not request.future.done() and not request.future.get_loop().is_closed():
                request.future.set_exception(EngineError(why))
        self._active.clear()
        self._waiting.clear()
        self._rows.forget(0)

    def _step(self) -> None:
        """Rows of ended requests are given back, new requests prefilled, every other row gets a token."""
        self._release()
        decoding = list(self._active)
        if decoding:
            self._feed(decoding, [[request.sampled[-1]] for request in decoding])
        while admitted := self._admit():
            self._feed(admitted, [request.ids[self._rows.lengths[request.row] :] for request in admitted])

    def _release(self) -> None:
        for request in [r for r in self._active if r.dropped or r.finish]:
            last = self._active.pop()
            self._rows.retire(request.row, last.row, keep=request.version == self.policy_version)
            if last is not request:
                last.row = request.row
                self._active[request.row] = last

    def _admit(self) -> list[_Request]:
        """The next requests with a row each, behind the decoding ones. Twins of a prompt wait for the next
        pass, where they copy the keys and values of the first one."""
        admitted: list[_Request] = []
        later: list[_Request] = []
        prompts: set[tuple[int, ...]] = set()
        longest = 0
        while self._waiting and len(self._active) < self._rows.count and longest * len(admitted) < PREFILL_TOKENS:
            request = self._waiting.popleft()
            if request.dropped:
                continue
            prompt = tuple(request.ids)
            if prompt in prompts:
                later.append(request)
                continue
            prompts.add(prompt)
            request.row = len(self._active)
            request.version = self.policy_version
            longest = max(longest, len(prompt) - self._rows.place(prompt, request.row))
            self._active.append(request)
            admitted.append(request)
        self._waiting.extendleft(reversed(later))
        return admitted

    def _feed(self, requests: Sequence[_Request], new: list[list[int]]) -> None:
        """Run the model over the new ids of requests in neighbouring rows and sample a token for each."""
        first, count = requests[0].row, len(requests)
        longest = max(map(len, new))
        logits = self._decode.forward(
            self._rows.cache,
            torch.tensor([ids + [0] * (longest - len(ids)) for ids in new]),
            torch.from_numpy(self._rows.lengths[first : first + count].copy()),
            torch.tensor([len(ids) for ids in new]),
            first,
        )
        self._rows.extend(first, new)
        temperatures = torch.tensor([request.spec.temperature for request in requests])
        uniforms = torch.tensor([request.uniforms[len(request.sampled)] for request in requests])
        tokens, logprobs, entropies = sample(logits, temperatures, uniforms)
        for request, *token in zip(requests, tokens.tolist(), logprobs.tolist(), entropies.tolist(), strict=True):
            request.add(self.policy_version, *token)


@torch.inference_mode()
def sample(logits: Tensor, temperatures: Tensor, uniforms: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, their log-probabilities and the entropies (nats), each [rows], of softmax(logits / temperature).

    logits [rows, vocabulary]; uniforms [rows] in [0, 1), float64. Inversion: the first token whose
    cumulative probability exceeds the uniform number, summed in float64.
    """
    logprobs = torch.log_softmax(logits / temperatures[:, None], dim=-1)
    probabilities = logprobs.exp()
    cumulative = probabilities.cumsum(dim=-1, dtype=torch.float64)
    targets = uniforms.double() * cumulative[:, -1]
    tokens = torch.searchsorted(cumulative, targets[:, None], right=True)
    entropies = -(probabilities * logprobs).sum(dim=-1)
    return tokens[:, 0], logprobs.gather(1, tokens)[:, 0], entropies
