from collections.abc import Callable
from pathlib import Path

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.webapp.records.build import make_index, make_row, rows, ungraded, write_shard, wrong
from webapp.accounts.models import Project
from webapp.runs.models import Run
from webapp.trajectories.actions import record_trajectories


@pytest.fixture(autouse=True)
def artifacts(tmp_path: Path, settings: object) -> Path:
    settings.ASTROLABE_ARTIFACTS = tmp_path / "artifacts"
    return settings.ASTROLABE_ARTIFACTS


@pytest.fixture
def run(project: Project) -> Run:
    stages = [
        {"kind": "curate", "name": "curate"},
        {"kind": "sft", "name": "sft"},
        {"kind": "rl", "name": "rl", "oversample": 4, "group_size": 2, "resample": "paper"},
        {"kind": "evaluate", "name": "held-out"},
    ]
    return Run.objects.create(project=project, name="smoke", seed=1, recipe={"name": "smoke", "stages": stages})


@pytest.fixture
def operator(as_user: Callable[[User], Client], alice: User) -> Client:
    return as_user(alice)


@pytest.fixture
def viewer(as_user: Callable[[User], Client], victor: User) -> Client:
    return as_user(victor)


@pytest.fixture
def stranger(as_user: Callable[[User], Client], charlie: User) -> Client:
    return as_user(charlie)


@pytest.fixture
def recorded(run: Run) -> Run:
    """One group of four: kept right, kept wrong, not drawn, ungraded; and its shard."""
    indexes = [make_index(0), wrong(1), wrong(2, decision="not_selected", advantage=None), ungraded(3)]
    record_trajectories(run, 1, [(5, rows(*indexes))])
    write_shard(run, [make_row(index) for index in indexes])
    return run
