"""The life of an attempt: claimed, submitted, ended by us when it did not end itself."""

import hashlib
import json
import os
import shlex
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

from django.conf import settings
from django.db import transaction
from django.utils import timezone
from django.utils.crypto import salted_hmac

from contracts.events import DesiredState
from contracts.text import clean_text
from webapp.runs.actions import change_run, move_run
from webapp.runs.models import ALLOWED_MOVES, Attempt, Run, RunState

SHORTEST_WAIT, LONGEST_WAIT = timedelta(seconds=2), timedelta(seconds=30)


def run_token(attempt: Attempt) -> str:
    """The bearer token of the attempt's driver: derived, so that a retried submit hands out the same one."""
    key = f"{attempt.run_id}:{attempt.number}"
    return salted_hmac("astrolabe.run-token", key, algorithm="sha256").hexdigest()


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def run_folder(run: Run) -> Path:
    return Path(settings.ASTROLABE_ARTIFACTS) / "runs" / str(run.pk)


@transaction.atomic
def claim_for_submit(run_id: str) -> Attempt | None:
    """The attempt to submit: a new one for a queued run, the same one again while it is submitting."""
    run = Run.objects.select_for_update().filter(pk=run_id).first()
    if run is None:
        return None
    if run.run_state is RunState.SUBMITTING:
        return run.attempts.select_related("run").get(number=run.attempt_number)
    if run.run_state is not RunState.QUEUED:
        return None
    number = run.attempt_number + 1
    attempt = Attempt(
        run=run,
        number=number,
        created_by=run.created_by,
        ray_job_id=f"run-{run.pk}-a{number}",
        resumes=number > 1,
    )
    attempt.token_hash = hash_token(run_token(attempt))
    attempt.save()
    move_run(run, RunState.SUBMITTING, attempt_number=number)
    return attempt


def write_recipe(run: Run) -> Path:
    """The resolved recipe in the run's artifact folder; replaced whole, so a reader never sees half of one."""
    folder = run_folder(run)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "recipe.json"
    draft = folder / f".recipe.json.{os.getpid()}"
    draft.write_text(json.dumps(run.recipe, indent=2, allow_nan=False))
    draft.replace(path)
    return path


def entrypoint_of(attempt: Attempt, recipe: Path) -> str:
    words = [sys.executable, "-m", "trainer", "run", str(recipe), "--out", str(recipe.parent)]
    words += ["--artifacts", str(settings.ASTROLABE_ARTIFACTS)]
    if attempt.resumes:
        words.append("--resume")
    # `exec`: the job is the driver itself, so that Ray's signals and exit codes are the driver's own.
    return f"cd {shlex.quote(str(settings.BASE_DIR))} && exec {shlex.join(words)}"


def environment_of(attempt: Attempt) -> dict[str, str]:
    return {
        "ASTROLABE_URL": settings.ASTROLABE_URL,
        "ASTROLABE_RUN_ID": str(attempt.run_id),
        "ASTROLABE_RUN_TOKEN": run_token(attempt),
        "ASTROLABE_ATTEMPT": str(attempt.number),
        "SANDBOX_URLS": settings.SANDBOX_URLS_OF_RUNS,
        "SANDBOX_TOKEN": settings.SANDBOX_TOKEN,
        "PYTHONPATH": str(settings.BASE_DIR),
        "OMP_NUM_THREADS": "1",
    }


@transaction.atomic
def record_submitted(attempt: Attempt) -> bool:
    """False when the run has ended meanwhile: the job just submitted has to go."""
    run = Run.objects.select_for_update().get(pk=attempt.run_id)
    Attempt.objects.filter(pk=attempt.pk).update(submitted_at=timezone.now())
    if run.run_state is RunState.SUBMITTING:
        move_run(run, RunState.STARTING)
    return run.run_state.is_active


@transaction.atomic
def record_not_submitted(attempt: Attempt, reason: str) -> None:
    """Ray cannot take it now: the run waits in `submitting` and says why; reconcile tries again after as long as it
    has waited already, so that each wait is twice the one before."""
    run = Run.objects.select_for_update().get(pk=attempt.run_id)
    if run.run_state is not RunState.SUBMITTING:
        return
    now = timezone.now()
    wait = min(max(now - run.state_since, SHORTEST_WAIT), LONGEST_WAIT)
    if run.state_reason == reason:
        Run.objects.filter(pk=run.pk).update(submit_after=now + wait)  # nothing a page shows
    else:
        change_run(run, state_reason=reason, submit_after=now + wait)


@transaction.atomic
def end_attempt(run: Run, to: RunState, reason: str, *, log_tail: str = "", expected: RunState | None = None) -> bool:
    """End a run for its silent driver. False when the run moved on by itself meanwhile."""
    locked = Run.objects.select_for_update().get(pk=run.pk)
    has_moved = expected is not None and locked.run_state is not expected
    if has_moved or to not in ALLOWED_MOVES[locked.run_state]:
        return False
    changes: dict[str, Any] = {"doing": ""}
    move_run(run, to, reason=reason, **changes)
    Attempt.objects.filter(run=run, number=run.attempt_number, ended_at=None).update(
        ended_at=timezone.now(), outcome=to.value, reason=reason, log_tail=clean_text(log_tail)
    )
    return True


def wants_stop(run: Run) -> bool:
    return run.desired == DesiredState.STOP or run.run_state.is_terminal
