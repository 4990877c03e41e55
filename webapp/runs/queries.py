"""What pages and the API read of runs. Never more than is shown; every result is a frozen record."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from django.conf import settings
from django.db.models import Q, QuerySet
from django.utils import timezone

from webapp.accounts.models import Project
from webapp.runs.models import (
    RESUMABLE_STATES,
    STOPPABLE_STATES,
    TERMINAL_STATES,
    Attempt,
    Checkpoint,
    LogLine,
    MetricPoint,
    Run,
    RunHistory,
    RunState,
    TokenReportRow,
)

PAGE_SIZE = 50
SORTS = {
    "created": ["created_at", "id"],
    "name": ["name", "id"],
    "state": ["state", "created_at", "id"],
    "step": ["step", "created_at", "id"],
}
TILES = (
    "reward/mean",
    "eval/avg",
    "response/tokens_mean",
    "tools/error_ratio",
    "tools/error_ratio_right",
    "entropy/mean",
)


@dataclass(frozen=True)
class RunRow:
    id: UUID
    name: str
    state: RunState
    state_since: datetime
    state_reason: str
    created_at: datetime
    created_by: str
    started_at: datetime | None
    ended_at: datetime | None
    step: int
    total_steps: int
    stage_name: str
    doing: str
    is_silent: bool
    reward: float | None = None
    eval_avg: float | None = None

    @property
    def duration(self) -> timedelta | None:
        return (self.ended_at or timezone.now()) - self.started_at if self.started_at else None

    @property
    def progress(self) -> float:
        return min(1.0, self.step / self.total_steps) if self.total_steps else 0.0


@dataclass(frozen=True)
class RunPage:
    rows: list[RunRow]
    total: int
    page: int
    pages: int


@dataclass(frozen=True)
class StageView:
    """One place of the stage strip. `status` is pending, running, done or stopped."""

    index: int
    name: str
    kind: str
    status: str
    steps: int
    step: int
    first_step: int
    started_at: datetime | None
    duration_s: float | None
    done: int
    total: int
    what: str

    @property
    def share(self) -> float:
        """How much of the stage is done, 0 to 1."""
        if self.status == "done":
            return 1.0
        if self.steps:
            return min(1.0, max(0, self.step - max(self.first_step - 1, 0)) / self.steps)
        return min(1.0, self.done / self.total) if self.total else 0.0


@dataclass(frozen=True)
class RunSummary:
    row: RunRow
    project: str
    recipe: dict[str, Any]
    seed: int
    parent_id: UUID | None
    attempt: int
    revision: int
    desired: str
    stopped_by: str
    stop_requested_at: datetime | None
    stop_deadline: datetime | None
    kill_sent_at: datetime | None
    last_heartbeat_at: datetime | None
    can_stop: bool
    can_resume: bool
    stages: list[StageView]
    tiles: dict[str, float]
    versions: dict[str, str]
    git_commit: str
    log_tail: str


def runs_page(
    project: Project,
    *,
    state: str = "",
    text: str = "",
    sort: str = "-created",
    page: int = 1,
    archived: bool = False,
) -> RunPage:
    """One page of the runs table. `sort` is a key of SORTS, with '-' for descending; unknown ones mean newest first."""
    runs = Run.objects.filter(project=project, archived_at__isnull=not archived)
    if state in RunState.values:
        runs = runs.filter(state=state)
    if text := text.replace("\0", "").strip():
        runs = runs.filter(Q(name__icontains=text) | Q(created_by__username__iexact=text))
    total = runs.count()
    pages = max(1, -(-total // PAGE_SIZE))
    page = min(max(1, page), pages)
    ordered = runs.order_by(*_order(sort))[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
    return RunPage(_rows(ordered), total, page, pages)


def running_runs(project: Project, limit: int = 10) -> list[RunRow]:
    """Everything that has not ended, newest first."""
    unended = Run.objects.filter(project=project, archived_at=None).exclude(
        state__in=[*TERMINAL_STATES, RunState.DRAFT]
    )
    return _rows(unended.order_by("-created_at")[:limit])


def attention_runs(project: Project, limit: int = 10) -> list[RunRow]:
    """Failed or lost in the last week, or silent although running."""
    since = timezone.now() - timedelta(days=7)
    silent_since = timezone.now() - timedelta(seconds=settings.RUN_HEARTBEAT_TIMEOUT_S)
    wanted = Q(state__in=[RunState.FAILED, RunState.LOST], state_since__gte=since) | Q(
        state=RunState.RUNNING, last_heartbeat_at__lt=silent_since
    )
    runs = Run.objects.filter(wanted, project=project, archived_at=None)
    return _rows(runs.order_by("-state_since")[:limit])


def newest_results(project: Project, limit: int = 5) -> list[RunRow]:
    """The runs that finished last."""
    finished = Run.objects.filter(project=project, state=RunState.FINISHED, archived_at=None)
    return _rows(finished.order_by("-ended_at")[:limit])


def run_summary(run: Run) -> RunSummary:
    """All that the head of the run page shows. `run` comes from `access.get_run`."""
    row = _rows([run])[0]
    attempt = Attempt.objects.filter(run=run, number=run.attempt_number).first()
    return RunSummary(
        row=row,
        project=run.project.slug,
        recipe=run.recipe,
        seed=run.seed,
        parent_id=run.parent_id,
        attempt=run.attempt_number,
        revision=run.revision,
        desired=run.desired,
        stopped_by=run.stopped_by.get_username() if run.stopped_by else "",
        stop_requested_at=run.stop_requested_at,
        stop_deadline=run.stop_deadline,
        kill_sent_at=run.kill_sent_at,
        last_heartbeat_at=run.last_heartbeat_at,
        can_stop=run.run_state in STOPPABLE_STATES or run.run_state is RunState.DRAFT,
        can_resume=run.run_state in RESUMABLE_STATES,
        stages=stage_strip(run),
        tiles=latest_values(run, TILES),
        versions=run.versions,
        git_commit=run.git_commit,
        log_tail=attempt.log_tail if attempt else "",
    )


def stage_strip(run: Run) -> list[StageView]:
    ended = run.run_state in TERMINAL_STATES
    strip = []
    for entry in run.stages:
        if entry["duration_s"] is not None:
            status = "done"
        elif entry["started_at"] is None:
            status = "pending"
        else:
            status = "stopped" if ended else "running"
        started = datetime.fromisoformat(entry["started_at"]) if entry["started_at"] else None
        strip.append(StageView(**{**entry, "status": status, "started_at": started}))
    return strip


def latest_values(run: Run, names: tuple[str, ...]) -> dict[str, float]:
    """The newest number of each metric that has one; may be NaN or infinite."""
    points = (
        MetricPoint.objects.filter(run=run, name__in=names)
        .order_by("name", "-stage", "-step")
        .distinct("name")
        .values_list("name", "value")
    )
    return dict(points)


def metric_names(run: Run) -> list[str]:
    return sorted(MetricPoint.objects.filter(run=run).values_list("name", flat=True).distinct())


def run_history(run: Run) -> list[RunHistory]:
    """Oldest first, with `by` loaded."""
    return list(RunHistory.objects.filter(run=run).select_related("by").order_by("id")[:500])


def run_attempts(run: Run) -> list[Attempt]:
    return list(Attempt.objects.filter(run=run).select_related("created_by").defer("seen").order_by("number"))


def run_checkpoints(run: Run) -> list[Checkpoint]:
    """Newest first; pruned ones have `pruned_at`."""
    return list(Checkpoint.objects.filter(run=run).order_by("-stage", "-step", "-created_at")[:500])


def logs_page(run: Run, *, after: int = 0, before: int = 0, level: str = "", limit: int = 500) -> list[LogLine]:
    """In order of arrival: those after an id, or the last ones (before an id, when given)."""
    lines: QuerySet[LogLine] = LogLine.objects.filter(run=run)
    if level:
        lines = lines.filter(level=level)
    if after:
        return list(lines.filter(id__gt=after).order_by("id")[:limit])
    if before:
        lines = lines.filter(id__lt=before)
    return list(reversed(lines.order_by("-id")[:limit]))


def latest_token_report(run: Run, *, step: int | None = None) -> TokenReportRow | None:
    reports = TokenReportRow.objects.filter(run=run)
    if step is not None:
        reports = reports.filter(step=step)
    return reports.order_by("-stage", "-step").first()


def _order(sort: str) -> list[str]:
    descending = sort.startswith("-")
    columns = SORTS.get(sort.removeprefix("-"))
    if columns is None:
        columns, descending = SORTS["created"], True
    return [f"-{c}" for c in columns] if descending else columns


def _rows(runs: QuerySet[Run] | list[Run]) -> list[RunRow]:
    if isinstance(runs, QuerySet):
        runs = list(runs.select_related("created_by").defer("recipe", "versions"))
    values: dict[tuple[UUID, str], float] = {}
    if runs:
        points = (
            MetricPoint.objects.filter(run__in=runs, name__in=["reward/mean", "eval/avg"])
            .order_by("run_id", "name", "-stage", "-step")
            .distinct("run_id", "name")
            .values_list("run_id", "name", "value")
        )
        values = {(run_id, name): value for run_id, name, value in points}
    return [_row(r, values.get((r.pk, "reward/mean")), values.get((r.pk, "eval/avg"))) for r in runs]


def _row(run: Run, reward: float | None, eval_avg: float | None) -> RunRow:
    stage = run.stages[run.stage] if run.stage is not None and 0 <= run.stage < len(run.stages) else None
    return RunRow(
        id=run.pk,
        name=run.name,
        state=run.run_state,
        state_since=run.state_since,
        state_reason=run.state_reason,
        created_at=run.created_at,
        created_by=run.created_by.get_username() if run.created_by else "",
        started_at=run.started_at,
        ended_at=run.ended_at,
        step=run.step,
        total_steps=run.total_steps,
        stage_name=stage["name"] if stage else "",
        doing=run.doing,
        is_silent=is_silent(run),
        reward=reward,
        eval_avg=eval_avg,
    )


def is_silent(run: Run) -> bool:
    """Running, and nothing heard of it for longer than the heartbeat allows."""
    if run.run_state is not RunState.RUNNING or run.last_heartbeat_at is None:
        return False
    return timezone.now() - run.last_heartbeat_at > timedelta(seconds=settings.RUN_HEARTBEAT_TIMEOUT_S)
