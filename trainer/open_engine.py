"""The engine a recipe without GPUs asks for: in this process, or vLLM's in processes of their own."""

import copy
from pathlib import Path

import torch
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
        return _open_own(model, max_context, is_apart=recipe.max_staleness > 0 and recipe.ranks == 1)
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


def _open_own(model: Qwen3ForCausalLM, max_context: int, *, is_apart: bool) -> ScheduledEngine:
    """Over the tensors of `model`; `is_apart`: over a copy, for rollouts that go on while a learner changes those."""
    if not is_apart:
        return ScheduledEngine(TorchEngine(model, max_batch=MAX_BATCH, max_context=max_context))
    own = copy.deepcopy(model)

    @torch.no_grad()
    def copy_weights() -> None:
        for there, here in zip(own.parameters(), model.parameters(), strict=True):
            there.copy_(here)

    return ScheduledEngine(TorchEngine(own, max_batch=MAX_BATCH, max_context=max_context), copy_weights)
