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
from dataclasses import dataclass

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
from trainer.rollout.turn_rows import TurnRows

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
    has_ended: bool = False
    shown: int = 0


class TorchEngine:
    """`max_batch` rows of `max_context` tokens, float32 on the CPU.

    Call `set_version` after an optimizer's in-place update, before anything else is decoded: it reads the weights
    anew and sees that no keys and values of the older ones are taken for the new ones'. Torch's own threads
    (`torch.set_num_threads`) share out the products of a step.
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
        self._turns = TurnRows(max_batch, self.max_context)
        self._waiting: deque[_Request] = deque()
        self._active: list[_Request] = []  # the request of row i at index i
        self._task: asyncio.Task[None] | None = None

    def set_version(self, version: int) -> None:
        """The weights were updated in place. What is still decoding goes on with them from its next token, over the
        keys and values it has; no other row uses those."""
        self.policy_version = version
        self._decode.read_weights()
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
        if count := len(self._active):
            newest = self._turns.newest(count)
            logits = self._forward(0, newest, np.ones(count, dtype=np.int64))
            self._rows.extend(newest[:, 0])
            self._sample(0, logits)
        while admitted := self._admit():
            first = admitted[0].row
            new = [request.ids[self._rows.lengths[request.row] :] for request in admitted]
            counts = np.array([len(ids) for ids in new])
            logits = self._forward(first, np.array([ids + [0] * (counts.max() - len(ids)) for ids in new]), counts)
            for row, ids in enumerate(new, start=first):
                self._rows.append(row, ids)
            self._sample(first, logits)

    def _release(self) -> None:
        for request in [r for r in self._active if r.dropped or r.has_ended]:
            last = self._active.pop()
            self._rows.retire(request.row, last.row, keep=request.version == self.policy_version)
            if last is not request:
                self._turns.move(last.row, request.row)
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
            self._turns.begin(request.row, request.spec, request.uniforms)
            self._active.append(request)
            admitted.append(request)
        self._waiting.extendleft(reversed(later))
        return admitted

    def _forward(self, first: int, ids: np.ndarray, counts: np.ndarray) -> Tensor:
        """Logits after the new ids of the rows from `first` on."""
        starts = self._rows.lengths[first : first + len(ids)]
        return self._decode.forward(
            self._rows.cache, torch.from_numpy(ids), torch.from_numpy(starts), torch.from_numpy(counts), first
        )

    def _sample(self, first: int, logits: Tensor) -> None:
        """A token for each row from `first` on."""
        rows = slice(first, first + len(logits))
        temperatures, uniforms = map(torch.from_numpy, self._turns.draws(rows))
        for row in self._turns.add(rows, self.policy_version, *sample(logits, temperatures, uniforms)):
            self._active[row].has_ended = True
        for request in self._active[rows]:
            if request.on_tokens is not None:
                self._show(request, request.on_tokens)
            if request.has_ended and not request.future.done():
                request.future.set_result(self._generation(request))

    def _show(self, request: _Request, on_tokens: OnTokens) -> None:
        """What is new, now and then and at the end."""
        count = self._turns.count(request.row)
        if request.has_ended or count - request.shown >= LIVE_TOKENS:
            ids, _, entropies = self._turns.turn(request.row, request.shown)
            on_tokens(ids, entropies)
            request.shown = count

    def _generation(self, request: _Request) -> Generation:
        ids, logprobs, entropies = self._turns.turn(request.row)
        finish = FinishReason.STOP if ids[-1] in request.spec.stop_ids else FinishReason.LENGTH
        spans = [VersionSpan(version=v, start=s, end=e) for v, s, e in self._turns.spans(request.row)]
        first = spans[0].version
        return Generation(ids, logprobs, entropies, self.entropy_kind, finish, first, tuple(spans[1:] and spans))


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
