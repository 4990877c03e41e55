"""Desired state against observed state: what to do about one run. Pure, so that every case is one test.

A run is `lost` when its job is gone and it never said how it ended, `failed` when it never began,
`cancelled` when it was asked to stop.
"""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from django.conf import settings

from webapp.runs.launcher import JobReport, JobState
from webapp.runs.models import Run, RunState

KILL_AGAIN_AFTER_S = 10


class Verb(StrEnum):
    NOTHING = "nothing"
    SUBMIT = "submit"
    KILL = "kill"
    END = "end"


@dataclass(frozen=True)
class Decision:
    verb: Verb
    to: RunState | None = None
    reason: str = ""
    kill: bool = False  # END: the job may still live


NOTHING = Decision(Verb.NOTHING)


def decide(run: Run, report: JobReport | None, now: datetime) -> Decision:
    """`report` is None while Ray cannot be asked."""
    match run.run_state:
        case RunState.QUEUED:
            return Decision(Verb.SUBMIT) if _older(run.state_since, settings.RUN_RESUBMIT_AFTER_S, now) else NOTHING
        case RunState.SUBMITTING:
            return _decide_submitting(run, now)
        case RunState.STOPPING:
            return _decide_stopping(run, report, now)
        case RunState.STARTING | RunState.RUNNING | RunState.PAUSING | RunState.PAUSED:
            return _decide_alive(run, report, now)
        case _:
            return NOTHING


def _decide_submitting(run: Run, now: datetime) -> Decision:
    if _older(run.state_since, settings.RUN_START_TIMEOUT_S, now):
        reason = f"could not be handed to Ray for {settings.RUN_START_TIMEOUT_S} s"
        return Decision(
            Verb.END, RunState.FAILED, f"{reason}: {run.state_reason}" if run.state_reason else reason, True
        )
    if run.submit_after is not None:
        return Decision(Verb.SUBMIT) if now >= run.submit_after else NOTHING
    # No answer yet: a worker is at it, or has died.
    return Decision(Verb.SUBMIT) if _older(run.state_since, settings.RUN_RESUBMIT_AFTER_S, now) else NOTHING


def _decide_stopping(run: Run, report: JobReport | None, now: datetime) -> Decision:
    is_late = run.stop_deadline is not None and now >= run.stop_deadline
    if report is not None and report.state.has_ended:
        reason = "killed: it did not stop by the deadline" if run.kill_sent_at else "stopped"
        return Decision(Verb.END, RunState.CANCELLED, reason)
    if not is_late:
        return NOTHING
    if report is None:
        return NOTHING
    if report.state is JobState.MISSING:
        return Decision(Verb.END, RunState.CANCELLED, "stopped: Ray has no job of it")
    if run.kill_sent_at is None or _older(run.kill_sent_at, KILL_AGAIN_AFTER_S, now):
        return Decision(Verb.KILL)
    return NOTHING


def _decide_alive(run: Run, report: JobReport | None, now: datetime) -> Decision:
    heard = run.last_heartbeat_at or run.state_since
    is_starting = run.run_state is RunState.STARTING
    if report is None:
        if _older(heard, settings.RUN_UNREACHABLE_TIMEOUT_S, now):
            return Decision(
                Verb.END, RunState.LOST, f"neither Ray nor the run answered for {settings.RUN_UNREACHABLE_TIMEOUT_S} s"
            )
        return NOTHING
    if report.state is JobState.MISSING:
        if not _older(heard, settings.RUN_HEARTBEAT_TIMEOUT_S, now):
            return NOTHING  # Ray was started anew; the driver may still be alive and say so
        return Decision(Verb.END, RunState.FAILED if is_starting else RunState.LOST, "Ray has no job of it any more")
    if report.state.has_ended:
        return Decision(Verb.END, *_end_of(report, is_starting))
    if is_starting and _older(run.state_since, settings.RUN_START_TIMEOUT_S, now):
        reason = f"the job did not report within {settings.RUN_START_TIMEOUT_S} s of being submitted"
        return Decision(Verb.END, RunState.FAILED, reason, kill=True)
    return NOTHING


def _end_of(report: JobReport, is_starting: bool) -> tuple[RunState, str]:
    detail = f": {report.message}" if report.message else ""
    if is_starting:
        return RunState.FAILED, f"the job ended before the run began ({report.state.value}){detail}"
    if report.state is JobState.STOPPED:
        return RunState.LOST, f"the job was stopped in Ray, not from here{detail}"
    return RunState.LOST, f"the job ended without saying how the run ended ({report.state.value}){detail}"


def _older(then: datetime, seconds: float, now: datetime) -> bool:
    return now - then >= timedelta(seconds=seconds)
