from pathlib import Path

import pytest
import yaml
from pydantic import ValidationError

from contracts import recipe
from contracts.execution import LimitProfile, Limits
from contracts.old_recipes import upgrade
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
        (curated(rl(loss_terms={"kl_k1": 0.1, "kl_k3": 0.1})), "choose one of kl_k1, kl_k2 and kl_k3"),
        (curated(rl(loss_terms={"dual_clip": 1})), "dual_clip must be above 1"),
        (curated(rl(loss_terms={"tis": 0.5})), "tis must be at least 1"),
        (curated(rl(loss_terms={"entropy": -0.1})), "greater than 0"),
        (curated(rl(loss_terms={"kl": 0.1})), "'dual_clip', 'kl_k1', 'kl_k2', 'kl_k3', 'entropy' or 'tis'"),
    ],
)
def test_a_bad_recipe_is_refused_with_a_sentence(data, sentence):
    with pytest.raises(ValidationError, match=sentence):
        Recipe.model_validate(data)


@pytest.mark.parametrize(
    ("tool", "limits"),
    [
        ({}, Limits()),
        ({"profile": "complex"}, LimitProfile.COMPLEX.limits),
        ({"profile": "paper", "limits": {"memory_mb": 64}}, Limits(wall_s=4, cpu_s=3.5, memory_mb=64)),
        ({"profile": "complex", "limits": {"wall_s": 27}}, Limits(wall_s=27, cpu_s=25, memory_mb=1024)),
        ({"limits": {"wall_s": 2.5}}, Limits(wall_s=2.5, cpu_s=2)),  # the CPU time stays below
        ({"limits": {"wall_s": "2.5"}}, Limits(wall_s=2.5, cpu_s=2)),  # as the form sends it
        ({"limits": {"wall_s": 60, "cpu_s": 50}}, Limits(wall_s=60, cpu_s=50)),
    ],
)
def test_limits_not_given_are_the_profile_s(tool, limits):
    assert Recipe.model_validate(curated(tool=tool)).tool.limits == limits


@pytest.mark.parametrize("profile", LimitProfile)
def test_own_limits_and_the_profile_give_the_limits_again(profile):
    first = recipe.ToolSettings.model_validate({"profile": profile, "limits": {"wall_s": 5, "open_files": 64}})
    assert recipe.ToolSettings.model_validate({"profile": profile, "limits": first.own_limits()}) == first
    assert recipe.ToolSettings.model_validate(first.model_dump(mode="json")) == first


@pytest.mark.parametrize(
    ("tool", "sentence"),
    [
        ({"limits": {"cpu_s": 9}}, "limits.cpu_s 9 is above limits.wall_s 5"),
        ({"profile": "huge"}, "'simple', 'complex', 'symbolic' or 'paper'"),
        ({"limits": 5}, "valid dictionary"),
        ({"limits": {"wall_s": "long"}}, "valid number"),
        ({"limits": {"seconds": 5}}, "Extra inputs"),
        ({"max_response_chars": 160}, "max_response_chars is now max_tool_response_tokens"),
        (7, "valid dictionary"),
    ],
)
def test_bad_tool_settings_are_refused_with_a_sentence(tool, sentence):
    with pytest.raises(ValidationError, match=sentence):
        Recipe.model_validate(curated(tool=tool))


def test_a_stored_recipe_of_an_earlier_version_is_upgraded():
    limits = Limits(cpu_s=2).model_dump()
    stored = curated(tool={"limits": limits, "max_response_chars": 160, "traceback_lines": 1})
    upgraded = Recipe.model_validate(upgrade(stored))
    assert (upgraded.tool.max_tool_response_tokens, upgraded.tool.traceback_lines) == (160, 1)
    assert upgraded.tool.limits == Limits(cpu_s=2)
    assert upgrade(curated()) == curated() and "max_response_chars" in stored["tool"]


def test_a_stored_recipe_may_name_what_is_a_constant_now():
    hard = rl(hard_subset={"samples": 8, "drop_at": 1.0}, epochs=1)
    stored = curated({"kind": "sft", "name": "sft", "warmup_share": 0.04}, hard, penalty_floor=0.05)
    assert upgrade(stored) == curated({"kind": "sft", "name": "sft"}, rl(hard_subset=8))
    with pytest.raises(ValidationError, match="penalty_floor"):
        Recipe.model_validate(upgrade(curated(penalty_floor=0.1)))


@pytest.mark.parametrize(
    ("stored", "checks"),
    [
        ({"max_problem_chars": 4000}, None),
        ({"max_problem_chars": 4000, "checks": ["length", "duplicate"]}, ["length", "duplicate"]),
        ({"max_problem_chars": 800, "checks": ["length", "duplicate"]}, ["length 800", "duplicate"]),
        ({"max_problem_chars": 800, "checks": ["duplicate"]}, ["duplicate"]),  # it was not asked for
    ],
)
def test_a_stored_length_goes_into_its_check(stored, checks):
    stage = {"kind": "curate", "name": "curate"}
    upgraded = upgrade({"name": "r", "stages": [stage | stored]})
    assert upgraded["stages"] == [stage | ({"checks": checks} if checks else {})]
    Recipe.model_validate(upgraded)


def test_a_stored_length_without_checks_is_that_of_the_usual_ones():
    (stage,) = upgrade({"name": "r", "stages": [{"kind": "curate", "name": "c", "max_problem_chars": 99}]})["stages"]
    parsed = recipe.CurateStage.model_validate(stage).parsed_checks
    assert parsed.max_problem_chars == 99
    assert parsed.rules == recipe.CurateStage(name="c").parsed_checks.rules


@pytest.mark.parametrize(("text", "chars"), [("length", 4000), ("length 800", 800)])
def test_the_check_of_the_length_says_how_long(text, chars):
    assert recipe.CurateStage(name="c", checks=[text]).parsed_checks.max_problem_chars == chars


def test_a_run_samples_in_its_own_process_unless_it_says_otherwise():
    made = Recipe.model_validate(curated(rl()))
    assert made.engines == 0
    with pytest.raises(ValidationError, match="engine is now part of engines: 0 for the torch engine"):
        Recipe.model_validate(curated(rl(), engine="vllm", engines=2))


@pytest.mark.parametrize(
    ("old", "engines"), [({"engine": "torch", "engines": 1}, 0), ({"engine": "vllm", "engines": 2}, 2), ({}, 0)]
)
def test_a_stored_recipe_that_named_its_engine_is_read(old, engines):
    assert Recipe.model_validate(upgrade(curated(rl()) | old)).engines == engines


@pytest.mark.parametrize(("old", "samples"), [({"samples": 4}, 4), ({}, 8), (None, 0), (3, 3)])
def test_a_stored_hard_subset_with_a_section_of_its_own_is_read(old, samples):
    upgraded = upgrade(curated(rl(hard_subset=old)))
    assert Recipe.model_validate(upgraded).stages[1].hard_subset == samples
    if isinstance(old, dict):
        with pytest.raises(ValidationError, match="hard_subset is the number of samples itself now: hard_subset: "):
            Recipe.model_validate(curated(rl(hard_subset=old)))


def test_a_step_that_learns_from_older_samples_weighs_them():
    stages = [rl(), rl(staleness=1), rl(staleness="1", loss_terms={"tis": 5, "entropy": 0.1})]
    found = [recipe.RlStage.model_validate(stage) for stage in stages]
    assert [s.staleness for s in found] == [0, 1, 1]
    assert [s.loss_terms for s in found] == [{}, {"tis": 2.0}, {"tis": 5.0, "entropy": 0.1}]
    with pytest.raises(ValidationError, match="less than or equal to 4"):
        recipe.RlStage.model_validate(rl(staleness=5))


def test_an_engine_has_whole_gpus():
    """GPUs, ranks, engines: a rank has one, the engines share the others."""
    shapes = [(0, 1, 0), (0, 4, 2), (2, 1, 1), (64, 16, 48), (64, 16, 12)]
    made = [Recipe.model_validate(curated(rl(), gpus=g, ranks=r, engines=e)) for g, r, e in shapes]
    assert [recipe.workers_per_engine for recipe in made] == [1, 1, 1, 1, 4]


@pytest.mark.parametrize(
    ("gpus", "ranks", "engines", "sentence"),
    [
        (64, 16, 64, "engines: 64 does not divide the 48 GPUs that ranks: 16 leaves of gpus: 64"),
        (8, 8, 1, "gpus: 8 leaves none for engines: ranks: 8 takes a GPU for each rank"),
        (1, 1, 1, "gpus: 1 leaves none for engines: ranks: 1 takes a GPU for each rank"),
        (8, 1, 0, "gpus: 8 needs engines of 1 or more"),
    ],
)
def test_gpus_that_cannot_be_shared_out_are_refused(gpus, ranks, engines, sentence):
    with pytest.raises(ValidationError, match=sentence):
        Recipe.model_validate(curated(rl(), gpus=gpus, ranks=ranks, engines=engines))


def test_a_stored_recipe_whose_learner_and_engines_took_turns_has_them_apart():
    shapes = [(64, 1, 64, 63), (64, 4, 0, 60), (64, 16, 12, 12), (0, 1, 2, 2)]
    stored = [(curated(rl(), gpus=g, ranks=r, engines=e), expected) for g, r, e, expected in shapes]
    assert [Recipe.model_validate(upgrade(old)).engines for old, _ in stored] == [expected for _, expected in stored]


def test_the_defaults_are_the_paper_s():
    stage = Recipe.model_validate(curated(rl())).stages[1]
    assert (stage.oversample, stage.group_size, stage.resample, stage.learning_rate) == (32, 16, "paper", 1e-6)
    assert (stage.clip_low, stage.clip_high, stage.advantage_scale) == (0.2, 0.28, "std")
    assert (stage.loss_aggregation, stage.loss_terms, stage.overlong, stage.refill) == ("group_token", {}, "keep", 0)


def test_a_recipe_does_not_change():
    made = Recipe.model_validate(curated(rl()))
    with pytest.raises(ValidationError):
        made.seed = 2


def test_rl_steps_add_up_over_the_stages():
    assert Recipe.model_validate(curated(rl(steps=3), rl(name="hard", steps=4))).total_rl_steps == 7


def test_a_recipe_has_at_most_sixty_fields():
    # a field of a base class counts once; `kind` only tells stages apart, a section that is always there is its fields
    models = [
        *(recipe.Recipe, recipe.ToolSettings, recipe.Sampling, Limits, recipe.Stage),
        *(recipe.CurateStage, recipe.SftStage, recipe.RlStage, recipe.EvaluateStage),
    ]
    sections = {"kind", "tool", "limits", "sampling", "stages"}
    own = [n for m in models for n in m.__annotations__ if n not in sections]
    assert len(own) <= 60


def test_every_setting_says_what_it_means():
    models = (recipe.CurateStage, recipe.SftStage, recipe.RlStage, recipe.EvaluateStage, recipe.Recipe)
    silent = {"kind", "sampling", "tool", "limits", "stages"}  # a tag, and sections of their own
    for model in (*models, recipe.Sampling, recipe.ToolSettings):
        for name, field in model.model_fields.items():
            assert name in silent or field.description, f"{model.__name__}.{name}"


def test_every_limit_says_what_it_is() -> None:
    """The launch form shows it beside the field."""
    assert all(field.description for field in Limits.model_fields.values())
