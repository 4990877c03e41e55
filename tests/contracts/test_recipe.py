from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from contracts import recipe
from contracts.execution import Limits
from contracts.recipe import Recipe

RECIPES = sorted(Path("recipes").glob("*.yaml"))


def rl(**changes):
    return {"kind": "rl", "name": "rl", **changes}


def curated(*stages, **changes):
    return {"name": "r", "stages": [{"kind": "curate", "name": "curate"}, *stages], **changes}


@pytest.mark.parametrize("path", RECIPES, ids=lambda p: p.name)
def test_every_recipe_of_the_project_is_valid(path):
    Recipe.model_validate(yaml.safe_load(path.read_text()))


def test_a_recipe_survives_json():
    first = Recipe.model_validate(curated(rl()))
    assert Recipe.model_validate_json(first.model_dump_json()) == first


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        (curated(rl(group_size=32, oversample=16)), "group_size 32 is larger than oversample 16"),
        ({"name": "r", "stages": [rl()]}, "needs a curate stage before it"),
        (curated(rl(), rl()), "two stages are called 'rl'"),
        (curated(rl(lerning_rate=1.0)), "Extra inputs are not permitted"),
        ({"name": "r", "stages": [{"kind": "evaluate", "name": "e"}]}, "no curate stage makes one"),
        (curated(rl(clip_high=float("nan"))), "finite number"),
        (
            {
                "name": "r",
                "stages": [
                    {"kind": "curate", "name": "c", "source": "artifacts:datasets/x/problems.jsonl"},
                    {"kind": "sft", "name": "sft"},
                ],
            },
            "needs demonstrations, which only the synthetic source has",
        ),
        (curated(name="<script>"), "String should match pattern"),
    ],
)
def test_a_bad_recipe_is_refused_with_a_sentence(data, sentence):
    with pytest.raises(ValidationError, match=sentence):
        Recipe.model_validate(data)


def test_a_recipe_does_not_change():
    made = Recipe.model_validate(curated(rl()))
    with pytest.raises(ValidationError):
        made.seed = 2


def test_rl_steps_add_up_over_the_stages():
    assert Recipe.model_validate(curated(rl(steps=3), rl(name="hard", steps=4))).total_rl_steps == 7


def test_a_recipe_has_at_most_sixty_fields():
    # a field of a base class counts once; `kind` only tells stages apart
    models = [
        *(recipe.Recipe, recipe.ToolSettings, recipe.Sampling, recipe.HardSubset, Limits, recipe.Stage),
        *(recipe.CurateStage, recipe.SftStage, recipe.RlStage, recipe.EvaluateStage),
    ]
    own = [n for m in models for n in m.__annotations__ if n != "kind"]
    assert len(own) <= 60


def test_every_setting_says_what_it_means():
    models = (recipe.CurateStage, recipe.SftStage, recipe.RlStage, recipe.EvaluateStage, recipe.Recipe)
    silent = {"kind", "sampling", "tool", "stages"}  # a tag, and sections of their own
    for model in (*models, recipe.Sampling, recipe.HardSubset):
        for name, field in model.model_fields.items():
            assert name in silent or field.description, f"{model.__name__}.{name}"
