"""One multi-row statement for each kind of event. Each writer may see the same event twice and writes it once."""

import json
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from django.apps import apps
from django.db import connection
from django.db.models import Q
from django.utils import timezone

from contracts.events import CheckpointWritten, Event, Log, Metrics, RunStarted, StepTimeline, TokenReport
from webapp.runs.models import Checkpoint, LogLine, Run

MAX_LOG_CHARS = 65_536
_PLACED_BY_STEP = (
    *("runs.MetricPoint", "runs.TokenReportRow", "runs.TimelineRow", "runs.Checkpoint"),
    *("trajectories.Trajectory", "benchmarks.Evaluation"),
)

Writer = Callable[[Run, Sequence[Event], int], None]


def write_metrics(run: Run, events: Sequence[Event], revision: int) -> None:
    """The newest attempt's number stands; within an attempt the last one written."""
    points: dict[tuple[str, int, int], tuple[int, float, datetime]] = {}
    for event in sorted(events, key=lambda e: (e.attempt, e.seq)):
        assert isinstance(event.payload, Metrics)  # noqa: S101
        for name, value in event.payload.values.items():
            key = (name, event.payload.stage, event.payload.step)
            points[key] = (event.attempt, float(value), time_of(event))
    names, stages, steps = zip(*points, strict=True)
    attempts, values, times = zip(*points.values(), strict=True)
    with connection.cursor() as cursor:
        cursor.execute(
            """
            INSERT INTO runs_metricpoint (run_id, name, stage, step, value, attempt, revision, time)
            SELECT %s, p.name, p.stage, p.step, p.value, p.attempt, %s, p.time
            FROM unnest(%s::text[], %s::smallint[], %s::int[], %s::float8[], %s::int[], %s::timestamptz[])
                AS p(name, stage, step, value, attempt, time)
            ON CONFLICT (run_id, name, stage, step) DO UPDATE
            SET value = excluded.value, attempt = excluded.attempt, revision = excluded.revision, time = excluded.time
            WHERE runs_metricpoint.attempt <= excluded.attempt
            """,
            [run.pk, revision, *map(list, (names, stages, steps, values, attempts, times))],
        )


def write_logs(run: Run, events: Sequence[Event], revision: int) -> None:
    rows = []
    for event in events:
        payload = event.payload
        assert isinstance(payload, Log)  # noqa: S101
        rows.append(
            LogLine(
                run=run,
                attempt=event.attempt,
                seq=event.seq,
                time=time_of(event),
                level=payload.level.value,
                source=payload.source[:60],
                text=_shorten(payload.text),
            )
        )
    LogLine.objects.bulk_create(rows, ignore_conflicts=True)


def _write_step_reports(table: str) -> Writer:
    """A writer of events that report on one step each, whole, into the column `report` of the table."""

    def write(run: Run, events: Sequence[Event], revision: int) -> None:
        newest: dict[tuple[int, int], Event] = {}
        for event in sorted(events, key=lambda e: (e.attempt, e.seq)):
            assert isinstance(event.payload, TokenReport | StepTimeline)  # noqa: S101
            newest[event.payload.stage, event.payload.step] = event
        now = timezone.now()
        with connection.cursor() as cursor:
            cursor.executemany(
                f"""
                INSERT INTO {table} (run_id, attempt, stage, step, report, created_at)
                VALUES (%s, %s, %s, %s, %s, %s)
                ON CONFLICT (run_id, stage, step) DO UPDATE SET report = excluded.report, attempt = excluded.attempt
                WHERE {table}.attempt <= excluded.attempt
                """,  # noqa: S608 - the name is one of ours
                [
                    [run.pk, e.attempt, stage, step, json.dumps(e.payload.model_dump(mode="json")), now]
                    for (stage, step), e in newest.items()
                ],
            )

    return write


def write_checkpoints(run: Run, events: Sequence[Event], revision: int) -> None:
    written: dict[str, Checkpoint] = {}
    pruned: set[str] = set()
    for event in sorted(events, key=lambda e: (e.attempt, e.seq)):
        payload = event.payload
        assert isinstance(payload, CheckpointWritten)  # noqa: S101
        pruned.discard(payload.path)  # a resumed attempt may write it again
        pruned.update(payload.pruned)
        written[payload.path] = Checkpoint(
            run=run,
            attempt=event.attempt,
            stage=payload.stage,
            step=payload.step,
            path=payload.path,
            label=payload.label[:120],
            size_bytes=payload.size_bytes,
            created_at=timezone.now(),
        )
    Checkpoint.objects.bulk_create(
        written.values(),
        update_conflicts=True,
        unique_fields=["run", "path"],
        update_fields=["attempt", "size_bytes", "pruned_at"],
    )
    Checkpoint.objects.filter(run=run, path__in=pruned, pruned_at=None).update(pruned_at=timezone.now())


def drop_superseded(run: Run, events: Sequence[Event], revision: int) -> None:
    """What older attempts reported from where a newer one begins will be done again: until then it is not shown."""
    for event in events:
        assert isinstance(event.payload, RunStarted)  # noqa: S101
        at = event.payload.resumes_at
        if at is None:
            continue
        older = Q(run=run, attempt__lt=event.attempt)
        later = Q(stage__gt=at.stage)
        for name in _PLACED_BY_STEP:
            apps.get_model(name).objects.filter(older, later | Q(stage=at.stage, step__gte=at.step)).delete()
        begins_stage = Q(stage=at.stage) if at.step == 0 else Q()
        apps.get_model("datasets.Funnel").objects.filter(older, later | begins_stage).delete()


def _through(module: str, name: str) -> Writer:
    """A writer of another app: `name(run, attempt, [(seq, payload), ...])`, once an attempt."""

    def write(run: Run, events: Sequence[Event], revision: int) -> None:
        # Imported late: those apps import runs.models, and ingest must load without them.
        action = getattr(__import__(module, fromlist=[name]), name)
        for attempt in sorted({e.attempt for e in events}):
            action(run, attempt, [(e.seq, e.payload) for e in events if e.attempt == attempt])

    return write


WRITERS: dict[str, Writer] = {
    "run_started": drop_superseded,
    "metrics": write_metrics,
    "log": write_logs,
    "token_report": _write_step_reports("runs_tokenreportrow"),
    "step_timeline": _write_step_reports("runs_timelinerow"),
    "checkpoint_written": write_checkpoints,
    "trajectories": _through("webapp.trajectories.actions", "record_trajectories"),
    "evaluation_finished": _through("webapp.benchmarks.actions", "record_evaluation"),
    "funnel": _through("webapp.datasets.actions", "record_funnel"),
}

# What a page has to ask for again when events of a kind arrived.
DIRTY: dict[str, str] = {
    "metrics": "metrics",
    "log": "logs",
    "token_report": "tokens",
    "step_timeline": "timeline",
    "checkpoint_written": "checkpoints",
    "trajectories": "trajectories",
    "evaluation_finished": "evaluations",
    "funnel": "funnel",
    "run_started": "state",
    "run_ended": "state",
    "stage_started": "stages",
    "stage_finished": "stages",
    "stage_progress": "stages",
    "heartbeat": "summary",
}


def time_of(event: Event) -> datetime:
    return event.time if event.time.tzinfo else event.time.replace(tzinfo=UTC)


def _shorten(text: str) -> str:
    if len(text) <= MAX_LOG_CHARS:
        return text
    return f"{text[:MAX_LOG_CHARS]}\n... {len(text) - MAX_LOG_CHARS} more characters are in the journal"
