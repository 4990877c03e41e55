"""The learner's weights on their way to engines on the same machine, with what the engines must then agree on."""

import asyncio
import hashlib
import os
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import Qwen3ForCausalLM

from trainer.rollout.remote import RemoteEngine, UpdateReport

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108  memory that looks like a folder; where there is none, the run's own
PROBE_TOKENS = 32
PROBE_LIMIT = 1e-4  # nats, float32 on both sides
ROUNDED_PROBE_LIMIT = 0.2  # nats, where the engine computes in bfloat16; never measured
CHECKED_TENSORS = 3
CHECKED_BYTES = 64_000_000  # hashing more at every update would be felt
VOCABULARY_PADDING = 64  # vLLM's; an embedding that it pads has another checksum


class WeightsDiffer(Exception):
    """An engine does not hold the trainer's weights: what it samples would be learned from as if it did."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The weights of one policy version. `info`: for the engine's transfer; `checksums`: of some parameters by name;
    `probe_logprobs` [PROBE_TOKENS - 1]: the trainer's own of `probe_ids[1:]`, nats, at temperature 1."""

    version: int
    info: dict[str, Any]
    checksums: dict[str, str]
    probe_ids: list[int]
    probe_logprobs: list[float] = field(repr=False)
    probe_limit: float = PROBE_LIMIT

    def check_update(self, name: str, report: UpdateReport) -> None:
        """WeightsDiffer unless the version and every checksum asked for have arrived."""
        if report.version != self.version:
            raise WeightsDiffer(f"{name} says it holds version {report.version} after the update to {self.version}")
        for tensor, expected in self.checksums.items():
            if report.checksums.get(tensor) != expected:
                raise WeightsDiffer(f"{name} holds another {tensor} than the trainer's version {self.version}")

    def check_probe(self, name: str, logprobs: Sequence[float]) -> None:
        """WeightsDiffer when the engine gives the probe other log-probabilities than the trainer."""
        if len(logprobs) != len(self.probe_logprobs):
            raise WeightsDiffer(f"{name} scored {len(logprobs)} of {len(self.probe_logprobs)} tokens of the probe")
        worst = max(abs(a - b) for a, b in zip(logprobs, self.probe_logprobs, strict=True))
        if not worst <= self.probe_limit:
            raise WeightsDiffer(
                f"{name} is {worst:.2g} nats off the trainer's version {self.version} on the probe "
                f"(at most {self.probe_limit:g} is rounding)"
            )


class Weights(Protocol):
    """Where the engines' weights come from."""

    def snapshot(self, version: int) -> Snapshot:
        """The weights as they are now, which are then no longer read."""
        ...

    async def deliver(self, snapshot: Snapshot, engines: Sequence[RemoteEngine]) -> list[UpdateReport | BaseException]:
        """The snapshot to engines that are paused; what each holds then, or what was raised for it."""
        ...

    def close(self) -> None: ...


def exchange_file(out: Path, readers: str) -> Path:
    """A safetensors file in shared memory for the weights of the run in `out`. It is the same for every attempt, so
    one that was killed leaves nothing behind that the next does not replace."""
    name = hashlib.sha256(str(out).encode()).hexdigest()[:16]
    folder = SHARED_MEMORY if os.access(SHARED_MEMORY, os.W_OK) else out
    return folder / f"astrolabe-{name}-{readers}.safetensors"


class Guards:
    """What engines must agree on with a model. `is_whole`: an engine holds its parameters in one piece."""

    def __init__(self, model: Qwen3ForCausalLM, *, is_whole: bool = True) -> None:
        self._model = model
        self._is_whole = is_whole
        vocabulary = int(model.config.vocab_size)
        self._probe_ids = draw_probe(vocabulary)
        self._checkable = [n for n, p in model.named_parameters() if is_checkable(n, p, vocabulary)]

    def describe(self, version: int, info: dict[str, Any]) -> Snapshot:
        """A snapshot of the model as it is now."""
        parameters = dict(self._model.named_parameters())
        names = choose_checked(version, self._checkable, is_whole=self._is_whole)
        checksums = {name: digest(parameters[name].detach()) for name in names}
        return Snapshot(version, info, checksums, self._probe_ids, self._score_probe())

    @torch.no_grad()
    def _score_probe(self) -> list[float]:
        ids = torch.tensor(self._probe_ids)
        logprobs = torch.log_softmax(self._model(input_ids=ids[None], use_cache=False).logits[0, :-1].float(), dim=-1)
        return logprobs.gather(1, ids[1:, None])[:, 0].tolist()


class SharedWeights:
    """A file that is replaced by each snapshot: see `exchange_file`."""

    def __init__(self, model: Qwen3ForCausalLM, path: Path, *, is_whole: bool = True) -> None:
        self._model = model
        self._path = path
        self._guards = Guards(model, is_whole=is_whole)

    def snapshot(self, version: int) -> Snapshot:
        tensors = {name: tensor.detach() for name, tensor in self._model.state_dict().items()}
        if self._model.config.tie_word_embeddings:
            tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()
        draft = self._path.with_name(f".{self._path.name}.tmp")
        save_file(tensors, draft)
        os.replace(draft, self._path)
        return self._guards.describe(version, {"path": str(self._path)})

    async def deliver(self, snapshot: Snapshot, engines: Sequence[RemoteEngine]) -> list[UpdateReport | BaseException]:
        return await asyncio.gather(*update_all(snapshot, engines), return_exceptions=True)

    def close(self) -> None:
        self._path.unlink(missing_ok=True)


def update_all(snapshot: Snapshot, engines: Sequence[RemoteEngine]) -> list[Coroutine[Any, Any, UpdateReport]]:
    """What tells each engine to take the snapshot."""
    return [e.update(snapshot.info, snapshot.version, list(snapshot.checksums)) for e in engines]


def draw_probe(vocabulary: int) -> list[int]:
    """The ids [PROBE_TOKENS] that every version is asked about."""
    return [int(i) for i in np.random.default_rng(0).integers(vocabulary, size=PROBE_TOKENS)]


def choose_checked(version: int, checkable: Sequence[str], *, is_whole: bool) -> list[str]:
    """Parameters that are compared at this version: others each time. `is_whole`: engines hold them in one piece."""
    names = [name for name in checkable if is_whole or name.endswith("norm.weight")]
    return [str(name) for name in np.random.default_rng(version).permutation(names)[:CHECKED_TENSORS]]


def is_checkable(name: str, parameter: Tensor, vocabulary: int) -> bool:
    """Whether vLLM holds the parameter under the same name in the same shape: projections are fused and packed."""
    if name.endswith("embed_tokens.weight"):
        return vocabulary % VOCABULARY_PADDING == 0 and 4 * parameter.numel() <= CHECKED_BYTES
    return name.endswith("norm.weight")


def digest(tensor: Tensor) -> str:
    """sha256 of its values as float32."""
    return hashlib.sha256(tensor.float().cpu().contiguous().numpy().tobytes()).hexdigest()
