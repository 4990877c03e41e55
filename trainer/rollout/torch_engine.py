"""In-process engine over the learner's own weights: continuous batching with a preallocated KV cache."""

from collections.abc import Sequence

from transformers import Qwen3ForCausalLM

from trainer.rollout.engine import Generation, OnTokens, SamplingSpec


class TorchEngine:
    def __init__(self, model: Qwen3ForCausalLM, *, max_batch: int = 256, max_context: int | None = None) -> None:
        self.max_context = max_context or 1024
        self.policy_version = 0

    def set_version(self, version: int) -> None:
        """The weights were updated in place: cached keys and values of older weights are dropped."""
        raise NotImplementedError

    async def generate(self, ids: Sequence[int], spec: SamplingSpec, on_tokens: OnTokens | None = None) -> Generation:
        raise NotImplementedError

    async def close(self) -> None:
        """Stop the background task; waiting requests get EngineError."""
        raise NotImplementedError
