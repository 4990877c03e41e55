"""Celery tasks: short, and harmless when they run twice. They call actions; Ray is spoken to outside transactions."""

import logging

from celery import shared_task
from django.utils import timezone

from webapp.ingest.journal import take_in_journal
from webapp.runs import attempts
from webapp.runs.actions import SUBMIT_TASK, change_run
from webapp.runs.launcher import JobReport, Launcher, LauncherUnavailable, LaunchRefused, get_launcher
from webapp.runs.models import ACTIVE_STATES, Run, RunState
from webapp.runs.reconcile import Verb, decide

logger = logging.getLogger(__name__)


@shared_task(name=SUBMIT_TASK)
def submit_run(run_id: str) -> None:
    submit(run_id, get_launcher())


@shared_task(name="webapp.runs.tasks.reconcile_runs")
def reconcile_runs() -> None:
    reconcile_all(get_launcher())


def submit(run_id: str, launcher: Launcher) -> None:
    """Hand the run to Ray. The job's id is the attempt's, so doing it twice makes one job."""
    attempt = attempts.claim_for_submit(run_id)
    if attempt is None:
        return
    try:
        recipe = attempts.write_recipe(attempt.run)
        launcher.submit(attempt.ray_job_id, attempts.entrypoint_of(attempt, recipe), attempts.environment_of(attempt))
    except (LauncherUnavailable, OSError) as error:
        logger.warning("run %s waits: %s", run_id, error)
        attempts.record_not_submitted(attempt, str(error))
        return
    except LaunchRefused as error:
        attempts.end_attempt(attempt.run, RunState.FAILED, str(error))
        return
    if not attempts.record_submitted(attempt):
        launcher.stop(attempt.ray_job_id)


def reconcile_all(launcher: Launcher) -> None:
    """One look at every run that has not ended. One that cannot be helped does not keep the others waiting."""
    for run in Run.objects.filter(state__in=[RunState.QUEUED, *ACTIVE_STATES]).order_by("state_since"):
        try:
            reconcile_one(run, launcher)
        except LauncherUnavailable as error:
            logger.warning("run %s: %s", run.pk, error)


def reconcile_one(run: Run, launcher: Launcher) -> None:
    report = _ask(run, launcher)
    decision = decide(run, report, timezone.now())
    match decision.verb:
        case Verb.NOTHING:
            return
        case Verb.SUBMIT:
            submit(str(run.pk), launcher)
        case Verb.KILL:
            launcher.stop(_job_id(run))
            change_run(run, kill_sent_at=timezone.now())
        case Verb.END:
            if decision.kill:
                launcher.stop(_job_id(run))
            _end(run, report, launcher)


def _end(run: Run, report: JobReport | None, launcher: Launcher) -> None:
    """What the driver wrote and could not deliver is taken in first: it may say how the run ended."""
    take_in_journal(run)
    run.refresh_from_db()
    decision = decide(run, report, timezone.now())
    if decision.to is None:
        return
    before = run.run_state
    if attempts.end_attempt(run, decision.to, decision.reason, log_tail=_tail(run, launcher), expected=before):
        logger.info("run %s: %s -> %s: %s", run.pk, before, decision.to, decision.reason)


def _ask(run: Run, launcher: Launcher) -> JobReport | None:
    if run.run_state in (RunState.QUEUED, RunState.SUBMITTING):
        return None
    try:
        return launcher.report(_job_id(run))
    except LauncherUnavailable as error:
        logger.warning("run %s: %s", run.pk, error)
        return None


def _tail(run: Run, launcher: Launcher) -> str:
    try:
        return launcher.log_tail(_job_id(run))
    except LauncherUnavailable:
        return ""


def _job_id(run: Run) -> str:
    return f"run-{run.pk}-a{run.attempt_number}"
