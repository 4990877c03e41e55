from typing import Any

import pytest
from django.contrib.auth.models import User

from tests.webapp.conftest import RECIPE, Driver, begin_attempt
from webapp.accounts.models import Project
from webapp.runs.actions import ActionRefused, archive_run, create_run, rename_run, request_stop, resume_run
from webapp.runs.models import Run, RunHistory, RunState
from webapp.runs.recipes import RecipeInvalid

pytestmark = pytest.mark.django_db


def test_create_queues_and_submits_after_commit(
    project: Project, alice: User, sent_tasks: list[Any], django_capture_on_commit_callbacks: Any
) -> None:
    with django_capture_on_commit_callbacks(execute=True):
        run = create_run(project, alice, RECIPE)
        assert sent_tasks == []
    assert sent_tasks == [("webapp.runs.tasks.submit_run", [str(run.pk)])]
    assert run.state == RunState.QUEUED
    assert run.recipe["stages"][2]["group_size"] == 16  # resolved: defaults are in
    assert [s["name"] for s in run.stages] == ["curate", "sft", "rl"]
    assert run.total_steps == 4
    assert [h.to_state for h in RunHistory.objects.order_by("id")] == ["draft", "queued"]


@pytest.mark.parametrize(
    ("change", "path", "message"),
    [
        ({"seed": -1}, "seed", "greater than or equal to 0"),
        ({"surprise": 1}, "surprise", "Extra inputs are not permitted"),
        ({"stages": [{"kind": "sft", "name": "a", "steps": 0}]}, "stages.0.steps", "greater than or equal to 1"),
        ({"stages": [{"kind": "sft", "name": "a"}]}, "", "needs a curate stage before it"),
    ],
)
def test_a_bad_recipe_names_its_field(
    project: Project, alice: User, change: dict[str, Any], path: str, message: str
) -> None:
    with pytest.raises(RecipeInvalid) as caught:
        create_run(project, alice, {**RECIPE, **change})
    assert message in caught.value.errors[path]
    assert not Run.objects.exists()


def test_a_recipe_that_is_no_mapping(project: Project, alice: User) -> None:
    with pytest.raises(RecipeInvalid):
        create_run(project, alice, "name: x")


def test_stopping_a_queued_run_cancels_it(queued: Run, alice: User) -> None:
    request_stop(queued, alice)
    assert queued.state == RunState.CANCELLED
    assert queued.state_reason == "cancelled by alice before it began"
    assert queued.stopped_by == alice


def test_stopping_a_running_run_sets_a_deadline_once(driver: Driver, alice: User) -> None:
    driver.post(driver.started())
    run = driver.run
    request_stop(run, alice)
    assert (run.state, run.desired) == (RunState.STOPPING, "stop")
    deadline = run.stop_deadline
    assert deadline is not None and run.stop_requested_at is not None and deadline > run.stop_requested_at
    request_stop(run, alice)
    assert run.stop_deadline == deadline


def test_stopping_an_ended_run_is_refused(queued: Run, alice: User) -> None:
    request_stop(queued, alice)
    with pytest.raises(ActionRefused, match="already ended: it is cancelled"):
        request_stop(queued, alice)


def test_resume_makes_a_second_attempt(driver: Driver, alice: User) -> None:
    driver.post(driver.started(), driver.event(kind="run_ended", outcome="failed", reason="boom"))
    run = Run.objects.get(pk=driver.run.pk)
    assert (run.state, run.state_reason) == (RunState.FAILED, "boom")
    resume_run(run, alice)
    assert (run.state, run.ended_at, run.desired) == (RunState.QUEUED, None, "run")
    second = begin_attempt(run)
    assert second.attempt == 2
    assert run.attempts.get(number=2).resumes
    assert second.token != driver.token


def test_a_finished_run_is_not_resumed(driver: Driver, alice: User) -> None:
    driver.post(driver.started(), driver.event(kind="run_ended", outcome="finished"))
    with pytest.raises(ActionRefused, match="a finished run cannot be resumed"):
        resume_run(Run.objects.get(pk=driver.run.pk), alice)


def test_rename_and_archive(queued: Run, alice: User) -> None:
    rename_run(queued, "  better ")
    assert queued.name == "better"
    with pytest.raises(ActionRefused):
        rename_run(queued, " ")
    with pytest.raises(ActionRefused, match="stop the run"):
        archive_run(queued)
    request_stop(queued, alice)
    archive_run(queued)
    assert queued.archived_at is not None
    archive_run(queued, archived=False)
    assert queued.archived_at is None
