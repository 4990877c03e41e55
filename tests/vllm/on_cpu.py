"""The actor of an engine laid out for a GPU that is on CPUs. The driver imports this file too, so vLLM comes later."""

from trainer.cluster import EngineActor, show_own_gpus
from trainer.rollout.remote import EngineSettings


class OnCpu(EngineActor):
    """In its place."""

    def __init__(self, settings: EngineSettings) -> None:
        show_own_gpus()
        from tests.vllm import gloo_weights

        self._engine = gloo_weights.make_engine(settings)
