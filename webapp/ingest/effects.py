"""What events do to their run: its stage strip, counters, and state. Only the newest attempt has a say."""

from collections.abc import Sequence
from typing import Any

from django.utils import timezone

from contracts.events import (
    Event,
    Heartbeat,
    Metrics,
    RunEnded,
    RunStarted,
    StageFinished,
    StageProgress,
    StageStarted,
)
from webapp.ingest.writers import time_of
from webapp.runs.actions import move_run
from webapp.runs.models import ACTIVE_STATES, ALLOWED_MOVES, Attempt, Run, RunState


def apply_effects(run: Run, events: Sequence[Event], *, is_live: bool) -> dict[str, Any]:
    """Columns of the run to write with this batch. `run` is locked; its `stages` are changed in place."""
    current = [e for e in events if e.attempt == run.attempt_number]
    changes: dict[str, Any] = {}
    for event in current:
        _apply(run, event, changes)
    if current:
        changes["last_event_at"] = max(time_of(e) for e in current)
        if is_live:
            changes["last_heartbeat_at"] = timezone.now()
    return changes


def _apply(run: Run, event: Event, changes: dict[str, Any]) -> None:
    match event.payload:
        case RunStarted() as p:
            changes.update(total_steps=p.total_steps, versions=p.versions, git_commit=p.git_commit[:64])
            if run.started_at is None:
                changes["started_at"] = time_of(event)
            if p.resumed_from_step is not None:
                changes["step"] = p.resumed_from_step
        case StageStarted() as p:
            changes.update(stage=p.stage, stages=run.stages)
            _entry(run, p.stage).update(
                name=p.name,
                kind=p.stage_kind,
                steps=p.steps,
                first_step=p.first_step,
                started_at=time_of(event).isoformat(),
                duration_s=None,
            )
        case StageFinished() as p:
            changes["stages"] = run.stages
            _entry(run, p.stage).update(duration_s=p.duration_s)
        case StageProgress() as p:
            changes["stages"] = run.stages
            _entry(run, p.stage).update(done=p.done, total=p.total, what=p.what[:60])
            changes["doing"] = f"{p.what} {p.done}/{p.total}"[:200]
        case Metrics() as p:
            _count_step(run, p, changes)
        case Heartbeat() as p:
            changes["doing"] = p.doing[:200]
        case _:
            return


def _count_step(run: Run, payload: Metrics, changes: dict[str, Any]) -> None:
    entry = _entry(run, payload.stage)
    if payload.step != entry["step"]:
        entry["step"] = payload.step
        changes["stages"] = run.stages
    if entry["kind"] == "rl":
        changes["step"] = max(payload.step, changes.get("step", run.step))


def _entry(run: Run, stage: int) -> dict[str, Any]:
    """The stage's place in the strip; a stage the recipe does not have is looked at and forgotten."""
    return run.stages[stage] if 0 <= stage < len(run.stages) else {"kind": "", "step": 0}


def move_by_events(run: Run, events: Sequence[Event]) -> None:
    """State moves the driver may cause. Late events of an ended run or an older attempt change no state."""
    for event in sorted(events, key=lambda e: (e.attempt, e.seq)):
        match event.payload:
            case RunStarted() as p:
                _attempt(run, event).filter(started_at=None).update(
                    started_at=time_of(event), resumed_from_step=p.resumed_from_step
                )
                if _may_move(run, event, RunState.RUNNING) and run.run_state is not RunState.PAUSED:
                    move_run(run, RunState.RUNNING)
            case RunEnded() as p:
                _attempt(run, event).update(ended_at=time_of(event), outcome=p.outcome.value, reason=p.reason)
                outcome = RunState(p.outcome.value)
                if _may_move(run, event, outcome):
                    move_run(run, outcome, reason=p.reason, doing="")
            case _:
                continue


def _attempt(run: Run, event: Event) -> Any:
    return Attempt.objects.filter(run=run, number=event.attempt)


def _may_move(run: Run, event: Event, to: RunState) -> bool:
    is_newest = event.attempt == run.attempt_number
    return is_newest and run.run_state in ACTIVE_STATES and to in ALLOWED_MOVES[run.run_state]
