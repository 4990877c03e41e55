"""What the pages read of runs: index rows only, never more than a page shows."""

from collections import defaultdict
from dataclasses import dataclass
from math import isfinite
from typing import Any
from uuid import UUID

from django.db.models import Sum

from contracts.events import encode_number
from webapp.pages.charts import CHART_METRICS, ledger_series
from webapp.runs.models import LogLine, MetricPoint, Run, RunState
from webapp.runs.queries import RunRow, latest_values
from webapp.runs.series import read_series
from webapp.trajectories.models import Trajectory

SPARKS = (
    ("reward/mean", "reward"),
    ("entropy/mean", "entropy"),
    ("response/tokens_mean", "length"),
    ("tools/error_ratio_right", "tool errors"),
)
SPARK_POINTS = 60
PAGE_SIZE = 50
LOG_LINES = 400
LOG_LEVELS = ("info", "warning", "error")
COUNTABLE = 200_000  # stored rollouts of a run are counted up to about so many: a count reads an index row each


@dataclass(frozen=True)
class Spark:
    """A small line: points of an SVG 100 wide and 20 high."""

    label: str
    points: str
    last: float


@dataclass(frozen=True)
class RunCard:
    """A row of the home page: the run, its small lines and the half-width of its newest held-out average."""

    run: RunRow
    sparks: list[Spark]
    half_width: float | None


def cards(rows: list[RunRow], *, sparks: bool = True) -> list[RunCard]:
    names = ["eval/half_width", *(name for name, _ in SPARKS if sparks)]
    series: dict[tuple[UUID, str], list[float]] = defaultdict(list)
    found = MetricPoint.objects.filter(run_id__in=[row.id for row in rows], name__in=names)
    for run_id, name, value in found.order_by("stage", "step").values_list("run_id", "name", "value"):
        series[run_id, name].append(value)
    return [
        RunCard(
            row,
            [spark(label, series[row.id, name]) for name, label in SPARKS] if sparks else [],
            next(iter(series[row.id, "eval/half_width"][-1:]), None),
        )
        for row in rows
    ]


def spark(label: str, values: list[float]) -> Spark:
    finite = [v for v in values if isfinite(v)]
    if len(finite) > SPARK_POINTS:
        finite = [finite[i * (len(finite) - 1) // (SPARK_POINTS - 1)] for i in range(SPARK_POINTS)]
    if not finite:
        return Spark(label, "", float("nan"))
    low, span = min(finite), (max(finite) - min(finite)) or 1.0
    width = max(len(finite) - 1, 1)
    at = [f"{100 * i / width:.1f},{19 - 18 * (v - low) / span:.1f}" for i, v in enumerate(finite)]
    return Spark(label, " ".join(at), finite[-1])


def points(run: Run, since: int) -> tuple[int, dict[str, list[list[Any]]]]:
    """The revision, and [stage, step, value] of the charted metrics that came after `since`; non-finite as words."""
    found = read_series(run, CHART_METRICS, since=since)
    by_name = {s.name: [[p.stage, p.step, encode_number(p.value)] for p in s.points] for s in found.series if s.points}
    return found.revision, by_name


STEP_METRICS = {
    "reward/mean": "reward",
    "groups/kept": "kept",
    "groups/equal_right": "equal_right",
    "groups/equal_wrong": "equal_wrong",
    "ledger/ungraded": "ungraded",
    "response/tokens_mean": "tokens",
    "tools/calls_mean": "calls",
    "tools/error_ratio_right": "errors",
    "entropy/mean": "entropy",
    "time/step_s": "time",
    "eval/avg": "average",
    "eval/half_width": "half_width",
}


def step_rows(run: Run, before: int | None) -> list[dict[str, Any]]:
    """One row a step of RL, newest first, at most `PAGE_SIZE` of them below step `before`."""
    found = MetricPoint.objects.filter(run=run, name="time/step_s")
    if before is not None:
        found = found.filter(step__lt=before)
    keys = list(found.order_by("-stage", "-step").values_list("stage", "step")[:PAGE_SIZE])
    rows: dict[tuple[int, int], dict[str, Any]] = {key: {"stage": key[0], "step": key[1]} for key in keys}
    values = MetricPoint.objects.filter(run=run, name__in=list(STEP_METRICS), step__in=[step for _, step in keys])
    for name, stage, step, value in values.values_list("name", "stage", "step", "value"):
        if (stage, step) in rows:
            rows[stage, step][STEP_METRICS[name]] = value
    return list(rows.values())


@dataclass(frozen=True)
class LogPage:
    lines: list[LogLine]
    older: int | None


def log_page(run: Run, *, level: str, text: str, after: int | None, before: int | None) -> LogPage:
    """The newest lines (or those after, or before, a line), oldest first."""
    found = LogLine.objects.filter(run=run)
    if level in LOG_LEVELS:
        found = found.filter(level__in=LOG_LEVELS[LOG_LEVELS.index(level) :])
    if text:
        found = found.filter(text__icontains=text)
    if after is not None:
        return LogPage(list(found.filter(id__gt=after).order_by("id")[:LOG_LINES]), None)
    if before is not None:
        found = found.filter(id__lt=before)
    lines = list(found.order_by("-id")[: LOG_LINES + 1])
    older = lines[LOG_LINES - 1].pk if len(lines) > LOG_LINES else None
    return LogPage(lines[:LOG_LINES][::-1], older)


@dataclass(frozen=True)
class LedgerPart:
    """One decision over the whole run. `color` is a CSS token."""

    label: str
    color: str
    rollouts: int
    share: float


@dataclass(frozen=True)
class Ledger:
    """Where the rollouts of all RL steps went: generated = selected + dropped. `stored`: index rows there are,
    None where they were not counted."""

    generated: int
    selected: int
    dropped: int
    ungraded: int
    kept_parts: list[LedgerPart]
    dropped_parts: list[LedgerPart]
    stored: int | None

    @property
    def parts(self) -> list[LedgerPart]:
        return [*self.kept_parts, *self.dropped_parts]


def ledger(run: Run) -> Ledger | None:
    """Summed over the steps reported so far; None before the first one."""
    points = MetricPoint.objects.filter(run=run, name__startswith="ledger/")
    totals = dict(points.values_list("name").annotate(total=Sum("value")))
    counts = {name: int(total) for name, total in totals.items() if isfinite(total)}
    generated = sum(counts.values())
    if not generated:
        return None
    kept: list[LedgerPart] = []
    dropped: list[LedgerPart] = []
    for series in ledger_series():
        if count := counts.get(series.metric, 0):
            part = LedgerPart(series.label, series.color, count, count / generated)
            (kept if series.metric.startswith("ledger/kept_") else dropped).append(part)
    return Ledger(
        generated=generated,
        selected=sum(part.rollouts for part in kept),
        dropped=sum(part.rollouts for part in dropped),
        ungraded=counts.get("ledger/ungraded", 0),
        kept_parts=kept,
        dropped_parts=dropped,
        stored=_stored_rollouts(run) if run.run_state.is_terminal and generated <= COUNTABLE else None,
    )


def _stored_rollouts(run: Run) -> int:
    return Trajectory.objects.filter(run=run, is_evaluation=False).count()


@dataclass(frozen=True)
class Tiles:
    average: float | None
    half_width: float | None
    change: float | None
    tokens: float | None
    truncated: float | None
    tool_errors: float | None
    reward: float | None
    step_s: float | None
    left_s: float | None


def tiles(run: Run) -> Tiles:
    now = latest_values(
        run,
        (
            "eval/half_width",
            "response/tokens_mean",
            "response/truncated_ratio",
            "tools/error_ratio_right",
            "reward/mean",
            "time/step_s",
        ),
    )
    averages = list(
        MetricPoint.objects.filter(run=run, name="eval/avg")
        .order_by("-stage", "-step")
        .values_list("value", flat=True)[:2]
    )
    step_s = now.get("time/step_s")
    goes_on = run.run_state is RunState.RUNNING and step_s is not None and isfinite(step_s) and run.step > 0
    return Tiles(
        average=averages[0] if averages else None,
        half_width=now.get("eval/half_width"),
        change=averages[0] - averages[1] if len(averages) > 1 else None,
        tokens=now.get("response/tokens_mean"),
        truncated=now.get("response/truncated_ratio"),
        tool_errors=now.get("tools/error_ratio_right"),
        reward=now.get("reward/mean"),
        step_s=step_s,
        left_s=(run.total_steps - run.step) * step_s if goes_on and step_s is not None else None,
    )
