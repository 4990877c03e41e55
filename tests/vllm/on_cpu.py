"""The actor of an engine laid out for a GPU that is on CPUs. The driver imports this file too, so vLLM comes later."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any

from trainer.cluster import show_own_gpus
from trainer.rollout.engine import Generation, SamplingSpec
from trainer.rollout.remote import EngineSettings, NewTokens


class OnCpu:
    """In place of `trainer.cluster.EngineActor`."""

    def __init__(self, settings: EngineSettings) -> None:
        show_own_gpus()
        from tests.vllm import gloo_weights

        self._engine = gloo_weights.make_engine(settings)

    async def call(self, method: str, *arguments: Any) -> Any:
        return await getattr(self._engine, method)(*arguments)

    async def stream(
        self, request_id: str, ids: Sequence[int], spec: SamplingSpec
    ) -> AsyncGenerator[NewTokens | Generation]:
        async for made in self._engine.stream(request_id, ids, spec):
            yield made
