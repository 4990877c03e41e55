"""The overview shows what a run of its kind can have: an evaluation has results, not empty training charts."""

import pytest
from django.urls import reverse
from django.utils import timezone

from contracts.events import EvaluationFinished
from contracts.recipe import Recipe
from contracts.scoring import Estimate
from tests.webapp.pages.conftest import HOSTILE, World
from webapp.benchmarks.actions import record_evaluation
from webapp.runs.models import RunState, stages_of_recipe

pytestmark = pytest.mark.db


def overview(world: World) -> str:
    return world.client(world.viewer).get(reverse("pages:run", args=[world.run.pk])).content.decode()


def only_evaluates(world: World) -> None:
    tree = {"name": "e", "stages": [{"kind": "evaluate", "name": "e", "benchmark": "artifacts:datasets/x/p.jsonl"}]}
    world.run.recipe = Recipe.model_validate(tree).model_dump(mode="json")
    world.run.stages = stages_of_recipe(world.run.recipe)
    world.run.save()


def test_training_has_its_charts(world: World) -> None:
    page = overview(world)
    assert 'data-chart="reward"' in page
    assert 'id="strip"' in page


def test_an_evaluation_has_results_and_no_training_charts(world: World) -> None:
    only_evaluates(world)
    estimate = Estimate(value=0.25, half_width=0.125, problems=4, samples=16)
    finished = EvaluationFinished(
        stage=0,
        step=1,
        board="",
        benchmark="artifacts:datasets/x/p.jsonl",
        checkpoint="artifacts:runs/x",
        label=HOSTILE,
        k=4,
        temperature=0.6,
        max_response_tokens=64,
        max_turns=2,
        avg=estimate,
        pass_at_k=0.5,
        mean_response_tokens=1.0,
        mean_tool_calls=1.0,
        correct_by_problem={"a": 1, "b": 1, "c": 1, "d": 1},
    )
    record_evaluation(world.run, 1, [(1, finished)])
    page = overview(world)
    assert "0.250" in page
    assert "± 0.125" in page
    assert "data-chart=" not in page
    assert 'id="strip"' in page  # its rollouts can be watched too
    assert "<script>alert" not in page


@pytest.mark.parametrize(
    ("stage", "is_shown"),
    [
        ({"kind": "curate", "name": "c"}, False),
        ({"kind": "curate", "name": "c", "checks": ["integer answer", "agreement 2 of 16"]}, True),
    ],
)
def test_a_curation_shows_a_rollout_being_written_only_if_it_samples(
    world: World, stage: dict[str, object], is_shown: bool
) -> None:
    world.run.recipe = Recipe.model_validate({"name": "c", "stages": [stage]}).model_dump(mode="json")
    world.run.stages = stages_of_recipe(world.run.recipe)
    world.run.save()
    assert ('id="strip"' in overview(world)) is is_shown


def test_a_run_that_never_began_is_tried_again_and_not_resumed(world: World) -> None:
    world.run.state, world.run.state_reason = RunState.FAILED, "the recipe is laid out for 64 GPUs"
    for started_at, word, other in ((None, "Try again", "Resume"), (timezone.now(), "Resume", "Try again")):
        world.run.started_at = started_at
        world.run.save()
        page = world.client(world.operator).get(reverse("pages:run", args=[world.run.pk])).content.decode()
        assert f'<button type="submit">{word}</button>' in page
        assert f'<button type="submit">{other}</button>' not in page
        assert ("there is nothing to resume" in page) is (started_at is None)
