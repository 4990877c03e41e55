"""A project with an operator, a viewer and a run; and somebody who is a member of nothing."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from django.contrib.auth.models import User
from django.test import Client
from django.utils import timezone

from contracts.recipe import Recipe
from webapp.accounts.actions import create_project, set_role
from webapp.accounts.models import Project, Role
from webapp.runs.models import (
    Checkpoint,
    LogLine,
    MetricPoint,
    Run,
    RunHistory,
    RunState,
    TokenReportRow,
    stages_of_recipe,
)

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(1)>\x1b[31m"
RECIPES = Path(__file__).parents[3] / "recipes"


@dataclass
class World:
    project: Project
    operator: User
    viewer: User
    stranger: User
    run: Run

    def client(self, user: User | None) -> Client:
        client = Client()
        if user is not None:
            client.force_login(user)
        return client


def smoke_recipe() -> dict[str, Any]:
    tree = yaml.safe_load((RECIPES / "smoke.yaml").read_text())
    return Recipe.model_validate(tree).model_dump(mode="json")


@pytest.fixture
def world(db: None) -> World:
    operator, viewer, stranger = (User.objects.create_user(n, password="p") for n in ("alice", "bob", "charlie"))
    project = create_project(team_name="team", name="olympiad", slug="olympiad", admin=operator)
    set_role(project, operator, Role.OPERATOR)
    set_role(project, viewer, Role.VIEWER)
    recipe = smoke_recipe()
    run = Run.objects.create(
        project=project,
        name="smoke one",
        recipe=recipe,
        seed=1,
        created_by=operator,
        state=RunState.RUNNING,
        stages=stages_of_recipe(recipe),
        total_steps=4,
        step=2,
        revision=7,
        doing=HOSTILE,
        attempt_number=1,
        last_heartbeat_at=timezone.now(),
    )
    return World(project, operator, viewer, stranger, run)


@pytest.fixture
def reported(world: World) -> World:
    """The run has said something of every kind, all of it hostile where it is text."""
    run, now = world.run, timezone.now()
    values = {"reward/mean": 0.5, "time/step_s": 3.0, "entropy/mean": float("nan"), "ledger/ungraded": 2.0}
    for step in (1, 2):
        for name, value in values.items():
            MetricPoint.objects.create(
                run=run, name=name, stage=2, step=step, value=value, attempt=1, revision=5 + step, time=now
            )
    LogLine.objects.create(run=run, attempt=1, seq=1, time=now, level="error", source=HOSTILE, text=HOSTILE)
    RunHistory.objects.create(run=run, from_state="", to_state="draft", reason=HOSTILE)
    Checkpoint.objects.create(
        run=run, attempt=1, stage=2, step=2, path="checkpoints/rl-2", label=HOSTILE, size_bytes=10
    )
    counts = [{"text": HOSTILE, "count": 3, "mean_entropy": 1.2}]
    report = {
        "stage": 2,
        "step": 2,
        "forking_share": 0.2,
        "reflection_window": 24,
        "mean_entropy_by_class": {"reasoning": 0.5},
        "tokens_by_class": {"reasoning": 10},
        "top_forking": counts,
        "top_reflection": counts,
    }
    TokenReportRow.objects.create(run=run, attempt=1, stage=2, step=2, report=report)
    return world
