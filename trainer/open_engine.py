"""The engine a recipe without GPUs asks for: in this process, or vLLM's in processes of their own."""

from pathlib import Path

from transformers import Qwen3ForCausalLM

from contracts.events import LogLevel
from contracts.recipe import Recipe
from trainer.cluster import EngineHost
from trainer.reporter import Reporter
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.remote import EngineSettings
from trainer.rollout.scheduled_engine import ScheduledEngine
from trainer.rollout.torch_engine import TorchEngine
from trainer.rollout.weights import SharedWeights, exchange_file
from trainer.sampler import OwnEngine

MAX_BATCH = 256


def open_engine(
    recipe: Recipe, model: Qwen3ForCausalLM, source: Path, *, out: Path, max_context: int, reporter: Reporter
) -> OwnEngine:
    """An engine over the weights of `model`, read from folder `source`. PlacesUnavailable where vLLM cannot be had."""
    if not recipe.engines:
        return ScheduledEngine(TorchEngine(model, max_batch=MAX_BATCH, max_context=max_context))
    context = min(max_context, int(model.config.max_position_embeddings))
    settings = EngineSettings(str(source), context, max_running=MAX_BATCH)
    host = EngineHost(recipe.engines, settings, spare=recipe.ranks if recipe.ranks > 1 else 0)
    return EnginePool(
        host,
        recipe.engines,
        SharedWeights(model, exchange_file(out, "engines")),
        max_context=context,
        vocab_size=int(model.config.vocab_size),
        tell=lambda text: reporter.log(LogLevel.WARNING, text),
    )
