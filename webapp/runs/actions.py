"""Every change of a run that is not an event of its driver: one transaction each, with a history row,
and the broadcast or the task after commit. Permission is the caller's (`access.get_run`)."""

import functools
from datetime import timedelta
from typing import Any
from uuid import UUID

from celery import current_app
from django.conf import settings
from django.contrib.auth.models import User
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from contracts.events import DesiredState
from webapp.accounts.models import Project
from webapp.runs.live import announce_on_commit
from webapp.runs.models import (
    ALLOWED_MOVES,
    RESUMABLE_STATES,
    STOPPABLE_STATES,
    TERMINAL_STATES,
    Run,
    RunHistory,
    RunState,
    stages_of_recipe,
)
from webapp.runs.recipes import resolve, validate_recipe

SUBMIT_TASK = "webapp.runs.tasks.submit_run"


class ForbiddenMove(Exception):
    """The table of allowed moves has no such move: the run changed under the caller, or the caller is wrong."""

    def __init__(self, run_id: UUID, from_state: RunState, to_state: RunState) -> None:
        self.from_state, self.to_state = from_state, to_state
        super().__init__(f"run {run_id} is {from_state.value} and cannot become {to_state.value}")


class ActionRefused(Exception):
    """What the user asked for makes no sense in the run's state; the message is for them."""


@transaction.atomic
def create_run(
    project: Project, user: User | None, recipe: Any, parent: Run | None = None, *, queue: bool = True
) -> Run:
    """A run of the recipe, queued unless told otherwise. RecipeInvalid when the recipe does not hold."""
    checked = validate_recipe(recipe)
    resolved = resolve(checked)
    run = Run.objects.create(
        project=project,
        name=checked.name,
        recipe=resolved,
        seed=checked.seed,
        parent=parent,
        created_by=user,
        total_steps=checked.total_rl_steps,
        stages=stages_of_recipe(resolved),
    )
    RunHistory.objects.create(run=run, from_state="", to_state=RunState.DRAFT, by=user)
    if queue:
        queue_run(run, user)
    return run


@transaction.atomic
def queue_run(run: Run, user: User | None, *, reason: str = "") -> None:
    """From draft, or from an end that can be resumed, to the queue."""
    move_run(
        run,
        RunState.QUEUED,
        by=user,
        reason=reason,
        desired=DesiredState.RUN.value,
        ended_at=None,
        stopped_by=None,
        stop_requested_at=None,
        stop_deadline=None,
        kill_sent_at=None,
        submit_after=None,
        last_heartbeat_at=None,
        doing="",
    )
    enqueue_submit_on_commit(run.pk)


@transaction.atomic
def resume_run(run: Run, user: User | None) -> None:
    """A new attempt that goes on from the newest checkpoint."""
    locked = _lock(run)
    if locked.run_state not in RESUMABLE_STATES:
        raise ActionRefused(f"a {locked.state} run cannot be resumed")
    queue_run(run, user, reason="resumed" if locked.attempt_number else "queued again")


@transaction.atomic
def request_stop(run: Run, user: User | None) -> None:
    """Ask the run to stop at its next safe point; reconcile kills it when the deadline has passed."""
    locked = _lock(run)
    who = f"by {user.get_username()}" if user else "by the system"
    if locked.run_state in TERMINAL_STATES:
        raise ActionRefused(f"the run has already ended: it is {locked.state}")
    if locked.run_state is RunState.STOPPING:
        return
    now = timezone.now()
    asked: dict[str, Any] = {
        "desired": DesiredState.STOP.value,
        "stopped_by": user,
        "stop_requested_at": now,
    }
    if locked.run_state not in STOPPABLE_STATES or locked.run_state is RunState.QUEUED:
        move_run(run, RunState.CANCELLED, by=user, reason=f"cancelled {who} before it began", **asked)
        return
    deadline = now + timedelta(seconds=settings.RUN_STOP_DEADLINE_S)
    move_run(run, RunState.STOPPING, by=user, reason=f"stop asked for {who}", stop_deadline=deadline, **asked)


@transaction.atomic
def rename_run(run: Run, name: str) -> None:
    name = name.strip()
    if not 1 <= len(name) <= 80 or "\0" in name:
        raise ActionRefused("a name has 1 to 80 characters")
    change_run(run, name=name)


@transaction.atomic
def archive_run(run: Run, *, archived: bool = True) -> None:
    """Out of the table's way; nothing is deleted."""
    locked = _lock(run)
    if archived and locked.run_state not in TERMINAL_STATES | {RunState.DRAFT}:
        raise ActionRefused("stop the run before archiving it")
    change_run(run, archived_at=timezone.now() if archived else None)


@transaction.atomic
def move_run(run: Run, to: RunState, *, by: User | None = None, reason: str = "", **changes: Any) -> None:
    """The one way a run changes state: guarded UPDATE, history row, broadcast after commit.

    `changes` are further columns of the run, written in the same statement. `run` is brought up to date.
    """
    locked = _lock(run)
    if to not in ALLOWED_MOVES[locked.run_state]:
        raise ForbiddenMove(run.pk, locked.run_state, to)
    now = timezone.now()
    if to in TERMINAL_STATES:
        changes.setdefault("ended_at", now)
    changes.update(state=to.value, state_since=now, state_reason=reason)
    if not Run.objects.filter(pk=run.pk, state=locked.state).update(revision=F("revision") + 1, **changes):
        raise ForbiddenMove(run.pk, locked.run_state, to)
    RunHistory.objects.create(
        run_id=run.pk,
        from_state=locked.state,
        to_state=to,
        by=by,
        attempt=changes.get("attempt_number", locked.attempt_number),
        reason=reason,
    )
    _reload_and_announce(run, ["state"])


@transaction.atomic
def change_run(run: Run, **changes: Any) -> None:
    """Columns that are no state, with a new revision and a hint."""
    Run.objects.filter(pk=run.pk).update(revision=F("revision") + 1, **changes)
    _reload_and_announce(run, ["summary"])


def enqueue_submit_on_commit(run_id: UUID) -> None:
    """Robust: with the broker away the run stays queued and reconcile asks again."""
    transaction.on_commit(functools.partial(current_app.send_task, SUBMIT_TASK, [str(run_id)]), robust=True)


def _lock(run: Run) -> Run:
    return Run.objects.select_for_update().get(pk=run.pk)


def _reload_and_announce(run: Run, dirty: list[str]) -> None:
    run.refresh_from_db()
    announce_on_commit(run.pk, run.revision, dirty, run.attempt_number)
