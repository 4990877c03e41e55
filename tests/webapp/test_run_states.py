"""Every move of the table works; every other one is refused and leaves no trace."""

from itertools import product

import pytest

from webapp.runs.actions import ForbiddenMove, move_run
from webapp.runs.models import ALLOWED_MOVES, Run, RunHistory, RunState

pytestmark = pytest.mark.django_db

PAIRS = list(product(RunState, RunState))
ALLOWED = [(a, b) for a, b in PAIRS if b in ALLOWED_MOVES[a]]
FORBIDDEN = [(a, b) for a, b in PAIRS if b not in ALLOWED_MOVES[a]]


def _in_state(run: Run, state: RunState) -> Run:
    Run.objects.filter(pk=run.pk).update(state=state)
    RunHistory.objects.filter(run=run).delete()
    run.refresh_from_db()
    return run


@pytest.mark.parametrize(("before", "after"), ALLOWED)
def test_allowed_move(queued: Run, before: RunState, after: RunState) -> None:
    run = _in_state(queued, before)
    revision = run.revision
    move_run(run, after, reason="because")
    assert (run.state, run.state_reason) == (after, "because")
    assert run.revision > revision
    (row,) = RunHistory.objects.filter(run=run)
    assert (row.from_state, row.to_state, row.reason) == (before, after, "because")
    assert (run.ended_at is not None) == after.is_terminal


@pytest.mark.parametrize(("before", "after"), FORBIDDEN)
def test_forbidden_move(queued: Run, before: RunState, after: RunState) -> None:
    run = _in_state(queued, before)
    with pytest.raises(ForbiddenMove):
        move_run(run, after)
    run.refresh_from_db()
    assert run.state == before
    assert not RunHistory.objects.filter(run=run).exists()


def test_every_state_has_its_moves() -> None:
    assert set(ALLOWED_MOVES) == set(RunState)


def test_a_stale_object_cannot_move_a_run_that_moved(queued: Run) -> None:
    stale = Run.objects.get(pk=queued.pk)
    move_run(queued, RunState.CANCELLED)
    with pytest.raises(ForbiddenMove):
        move_run(stale, RunState.SUBMITTING)
