"""Learner and engines on GPUs, each of its own: see docs/decisions/gpus.md."""

import os
from contextlib import ExitStack
from pathlib import Path

from contracts.events import LogLevel
from contracts.recipe import Recipe
from trainer.cluster import EngineHost, RayUse
from trainer.devices import visible_devices
from trainer.open_engine import MAX_BATCH
from trainer.policy.handover import Offers
from trainer.policy.learners import RemoteLearner
from trainer.policy.model import read_config
from trainer.ranks import ON_GPU, LearnerHost
from trainer.reporter import Reporter
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.nccl_weights import NcclWeights
from trainer.rollout.remote import EngineSettings
from trainer.rollout.weights import exchange_file


def open_on_gpus(
    recipe: Recipe, source: Path, *, out: Path, max_context: int, reporter: Reporter
) -> tuple[EnginePool, RemoteLearner]:
    """Of the model in folder `source`, which this process does not hold. Raises PlacesUnavailable where Ray has too few
    GPUs or there is no vLLM, DevicesError where the environment contradicts itself; nothing is started then."""
    visible_devices(os.environ)
    config = read_config(source)
    context = min(max_context, int(config.max_position_embeddings))
    workers, vocabulary = recipe.workers_per_engine, int(config.vocab_size)
    with ExitStack() as undo:
        use = RayUse()
        undo.callback(use.end)
        use.require_gpus(recipe.gpus)
        settings = EngineSettings(str(source), context, True, tensor_parallel=workers, max_running=MAX_BATCH)
        engines = EngineHost(recipe.engines, settings)
        undo.callback(engines.close)
        ranks = LearnerHost(recipe.ranks, source, ON_GPU, is_on_gpu=True)
        undo.callback(ranks.close)
        offers = Offers(ranks, [exchange_file(out, f"offer-{number}") for number in range(2)])
        pool = EnginePool(
            engines,
            recipe.engines,
            NcclWeights(offers.publish, ranks.sender, workers=workers, vocabulary=vocabulary),
            max_context=context,
            vocab_size=vocabulary,
            tell=lambda text: reporter.log(LogLevel.WARNING, text),
        )
        learner = RemoteLearner(ranks, offers)
        undo.pop_all()
    use.end()
    reporter.log(
        LogLevel.INFO,
        f"the learner has {recipe.ranks} of {recipe.gpus} GPUs ({', '.join(place.gpus for place in ranks.places())}), "
        f"{recipe.engines} engines have {workers} each",
    )
    return pool, learner
