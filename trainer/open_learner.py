"""The learner a recipe without GPUs asks for: in this process, or ranks in processes of their own."""

from pathlib import Path

from transformers import Qwen3ForCausalLM

from contracts.recipe import Recipe
from trainer.policy.handover import OwnCopy
from trainer.policy.learners import Learner, OwnLearner, RemoteLearner
from trainer.ranks import LearnerHost
from trainer.rollout.weights import exchange_file


def open_learner(recipe: Recipe, model: Qwen3ForCausalLM, source: Path, out: Path) -> Learner:
    """One over `model`, read from folder `source`; or ranks with a copy of it. PlacesUnavailable where Ray has no
    room for them."""
    if recipe.ranks == 1:
        return OwnLearner(model, source)
    host = LearnerHost(recipe.ranks, source)
    return RemoteLearner(host, OwnCopy(host, model, exchange_file(out, "ranks")))
