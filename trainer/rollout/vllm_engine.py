"""One vLLM engine: AsyncLLM with token ids in and out. The only file that imports vllm, of one minor version.

It runs in an actor of its own, never in the learner's process: vLLM replaces torch functions where it is imported.
`EnginePool` is the driver's side. Weights come in by vLLM's own transfer: over nccl on GPUs, and on CPUs from a
safetensors file in shared memory by the backend `shm` that importing this file registers; vLLM imports it in
its worker too, since `Extension` is a class of it.
"""

import hashlib
import os
import sys
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
import vllm
from safetensors import safe_open
from vllm import SamplingParams
from vllm.config import WeightTransferConfig
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferInitRequest,
    WeightTransferUpdateInfo,
    WeightTransferUpdateRequest,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.exceptions import VLLMClientError
from vllm.inputs.engine import tokens_input
from vllm.model_executor.model_loader.reload import finalize_layerwise_reload, initialize_layerwise_reload
from vllm.outputs import CompletionOutput, RequestOutput
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineDeadError
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.metrics.loggers import StatLoggerBase
from vllm.v1.metrics.stats import IterationStats, SchedulerStats

from contracts.trajectory import EntropyKind, VersionSpan
from trainer.analysis.entropy import bound_entropy
from trainer.devices import visible_devices
from trainer.rollout.engine import (
    EngineError,
    EngineLoad,
    FinishReason,
    Generation,
    SamplingSpec,
    check_request,
)
from trainer.rollout.remote import VLLM_MINOR, EngineFacts, EngineSettings, NewTokens, UpdateReport

TOP_K = 20  # log-probabilities a token, for the entropy's lower bound; vLLM has no entropy of its own
LIVE_TOKENS = 8  # tokens between two `NewTokens`
EXIT_STATUS = 70

if not vllm.__version__.startswith(f"{VLLM_MINOR}."):
    raise ImportError(
        f"vLLM {vllm.__version__} is installed and this engine is written for {VLLM_MINOR}: its weight transfer "
        "changes with every minor version. `make vllm` installs the right one"
    )


@dataclass
class ShmInitInfo(WeightTransferInitInfo):
    """Nothing to agree on."""


@dataclass
class ShmUpdateInfo(WeightTransferUpdateInfo):
    """`path`: a safetensors file with every tensor of the model in transformers' names and shapes, `lm_head.weight`
    among them also where it is tied to the embeddings: the CPU's head keeps a packed copy of its own."""

    path: str


class ShmWeights(WeightTransferEngine[ShmInitInfo, ShmUpdateInfo]):
    """vLLM's transfer by one file that trainer and engine both see."""

    init_info_cls = ShmInitInfo
    update_info_cls = ShmUpdateInfo

    def init_transfer_engine(self, init_info: ShmInitInfo) -> None:
        pass

    def start_weight_update(self) -> None:
        initialize_layerwise_reload(self.model)

    def receive_weights(self, update_info: ShmUpdateInfo) -> None:
        with safe_open(update_info.path, "pt") as file:
            self.model.load_weights([(name, file.get_tensor(name)) for name in file.keys()])  # noqa: SIM118

    def finish_weight_update(self) -> None:
        finalize_layerwise_reload(self.model, self.model_config)

    def shutdown(self) -> None:
        pass


class Extension:
    """What is added to vLLM's worker; its names may not be any of the worker's."""

    def trainer_checksums(self, names: Sequence[str]) -> dict[str, str]:
        """sha256 of those of the named parameters that the worker holds under that name, as float32."""
        parameters = dict(self.model_runner.get_model().named_parameters())  # type: ignore[attr-defined]
        return {name: _digest(parameters[name]) for name in names if name in parameters}


def _digest(tensor: torch.Tensor) -> str:
    return hashlib.sha256(tensor.detach().float().cpu().contiguous().numpy().tobytes()).hexdigest()


WeightTransferEngineFactory.register_engine("shm", ShmWeights)


class _Meter(StatLoggerBase):
    """Keeps what vLLM's scheduler last said, and counts preemptions."""

    def __init__(self, vllm_config: Any, engine_index: int = 0) -> None:
        self.last = SchedulerStats()
        self.preemptions = 0

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: Any = None,
        engine_idx: int = 0,
    ) -> None:
        if scheduler_stats is not None:
            self.last = scheduler_stats
        if iteration_stats is not None:
            self.preemptions += iteration_stats.num_preempted_reqs

    def log_engine_initialized(self) -> None:
        pass


class VllmEngine:
    """One AsyncLLM. When vLLM's own process dies this process ends too: whoever holds the actor sees one death."""

    def __init__(self, settings: EngineSettings) -> None:
        self._meter = _Meter(None)
        self._llm = AsyncLLM.from_engine_args(_arguments(settings), stat_loggers=[lambda *_: self._meter])
        self._vocab_size = int(self._llm.model_config.hf_text_config.vocab_size)
        self._max_context = settings.max_context
        self._max_running = settings.max_running
        self._kv_capacity = int(self._llm.vllm_config.cache_config.kv_cache_size_tokens or 0)

    async def facts(self) -> EngineFacts:
        """Answers when the engine is ready."""
        return EngineFacts(vllm.__version__, os.getpid(), visible_devices(os.environ) or "")

    async def generate(self, request_id: str, ids: Sequence[int], spec: SamplingSpec) -> Generation:
        """One turn; EngineError for what can never be generated."""
        async for made in self._run(request_id, ids, spec, is_live=False):
            if isinstance(made, Generation):
                return made
        raise EngineError("vLLM ended the request without its last output")

    async def stream(
        self, request_id: str, ids: Sequence[int], spec: SamplingSpec
    ) -> AsyncGenerator[NewTokens | Generation]:
        """The same turn: new tokens now and then, and the whole turn last."""
        async for made in self._run(request_id, ids, spec, is_live=True):
            yield made

    async def pause(self) -> None:
        """Freeze what is running; its keys and values are dropped, and computed again with the weights to come."""
        with self._alive():
            await self._llm.pause_generation(mode="keep", clear_cache=True)

    async def resume(self) -> None:
        with self._alive():
            await self._llm.resume_generation()

    async def init_transfer(self, info: dict[str, Any]) -> None:
        """Join a group with the trainer, in place of an older one."""
        with self._alive():
            await self._llm.shutdown_weight_transfer_engine()
            await self._llm.init_weight_transfer_engine(WeightTransferInitRequest(init_info=info))

    async def update(self, info: dict[str, Any], version: int, names: Sequence[str]) -> UpdateReport:
        """All weights by the transfer, while paused; what was asked for by name is hashed where it has arrived."""
        started = time.monotonic()
        with self._alive():
            await self._llm.start_weight_update()
            await self._llm.update_weights(WeightTransferUpdateRequest(update_info=info))
            await self._llm.finish_weight_update(weight_version=str(version))
            now = await self._llm.get_weight_version()
            checksums = (await self._llm.collective_rpc("trainer_checksums", args=(list(names),)))[0]
        return UpdateReport(int(now), checksums, time.monotonic() - started)

    async def probe(self, request_id: str, ids: Sequence[int]) -> list[float]:
        """Log-probabilities of ids[1:] at temperature 1, nats."""
        params = SamplingParams(
            temperature=1.0, max_tokens=1, prompt_logprobs=0, flat_logprobs=True, detokenize=False, ignore_eos=True
        )
        found: list[float] = []
        with self._alive():
            async for output in self._llm.generate(tokens_input(list(ids)), params, request_id):
                found = list(output.prompt_logprobs.logprobs)
        return found

    async def load(self) -> EngineLoad:
        """As of the last step that had something to do."""
        with self._alive():
            await self._llm.check_health()
        last = self._meter.last
        return EngineLoad(
            kv_capacity=self._kv_capacity,
            kv_used=round(last.kv_cache_usage * self._kv_capacity),
            running=last.num_running_reqs,
            waiting=last.num_waiting_reqs,
            preemptions=self._meter.preemptions,
            max_running=self._max_running,
        )

    async def _run(
        self, request_id: str, ids: Sequence[int], spec: SamplingSpec, *, is_live: bool
    ) -> AsyncGenerator[NewTokens | Generation]:
        check_request(ids, spec, max_context=self._max_context, vocab_size=self._vocab_size)
        params = SamplingParams(
            temperature=spec.temperature,
            max_tokens=spec.max_tokens,
            seed=spec.seed,
            stop_token_ids=list(spec.stop_ids),
            ignore_eos=True,  # the recipe's stop ids are all there are, whatever the model's folder names
            logprobs=TOP_K,
            flat_logprobs=True,
            detokenize=False,
            output_kind=RequestOutputKind.DELTA if is_live else RequestOutputKind.FINAL_ONLY,
            stream_interval=LIVE_TOKENS if is_live else None,
        )
        sampled: list[int] = []
        logprobs: list[float] = []
        entropies: list[float] = []
        with self._alive():
            async for output in self._llm.generate(tokens_input(list(ids)), params, request_id):
                part = output.outputs[0]
                new = list(_read_tokens(part))
                sampled += part.token_ids
                logprobs += [logprob for logprob, _ in new]
                entropies += [entropy for _, entropy in new]
                if is_live and new:
                    yield NewTokens(list(part.token_ids), [entropy for _, entropy in new])
                if output.finished:
                    yield _finish(output, sampled, logprobs, entropies)

    @contextmanager
    def _alive(self) -> Iterator[None]:
        try:
            yield
        except EngineDeadError:
            sys.stderr.write("vLLM's engine process died; this one ends with it\n")
            sys.stderr.flush()
            os._exit(EXIT_STATUS)  # a normal exit would wait for threads that wait for the dead process
        except VLLMClientError as error:
            raise EngineError(f"vLLM refuses the request: {error}") from error


def _arguments(settings: EngineSettings) -> AsyncEngineArgs:
    """On CPUs one worker sits in vLLM's engine process; several are processes, each with a part of the model."""
    executor: Any = None
    if settings.tensor_parallel > 1:
        executor = "mp"
    elif not settings.is_on_gpu:
        executor = UniProcExecutor
    return AsyncEngineArgs(
        model=settings.model,
        dtype=settings.dtype,
        max_model_len=settings.max_context,
        max_num_seqs=settings.max_running,
        gpu_memory_utilization=settings.memory_share,
        skip_tokenizer_init=True,
        logprobs_mode="processed_logprobs",
        max_logprobs=TOP_K,
        enable_prefix_caching=True,
        enforce_eager=not settings.is_on_gpu,
        disable_log_stats=False,
        seed=0,
        weight_transfer_config=WeightTransferConfig(backend="nccl" if settings.is_on_gpu else "shm"),
        worker_extension_cls=f"{Extension.__module__}.{Extension.__qualname__}",
        tensor_parallel_size=settings.tensor_parallel,
        distributed_executor_backend=executor,
    )


def _read_tokens(part: CompletionOutput) -> Iterator[tuple[float, float]]:
    """(log-probability, entropy bound) of each token; the sampled one is found by its id among its position's k + 1."""
    flat: Any = part.logprobs
    for token, start, end in zip(part.token_ids, flat.start_indices, flat.end_indices, strict=True):
        found = dict(zip(flat.token_ids[start:end], flat.logprobs[start:end], strict=True))
        yield found[token], bound_entropy(sorted(found.values(), reverse=True)[:TOP_K])


def _finish(output: RequestOutput, ids: list[int], logprobs: list[float], entropies: list[float]) -> Generation:
    part = output.outputs[0]
    if part.finish_reason not in ("stop", "length"):
        raise EngineError(f"vLLM ended the request as {part.finish_reason!r}")
    spans = tuple(VersionSpan(version=int(s.version), start=s.start, end=s.end) for s in part.weight_versions or [])
    finish = FinishReason.STOP if part.finish_reason == "stop" else FinishReason.LENGTH
    version = spans[0].version
    return Generation(
        ids, logprobs, entropies, EntropyKind.TOPK_BOUND, finish, version, spans if len(spans) > 1 else ()
    )
