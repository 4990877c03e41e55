"""Metric series for charts, bucketed in the database: of each bucket of steps the minimum, the maximum and the
last point, and every point that is not finite. A spike one step wide survives any number of points."""

from dataclasses import dataclass

from django.db import connection

from webapp.runs.models import Run

MAX_NAMES = 60
MAX_POINTS = 2000


@dataclass(frozen=True)
class Point:
    stage: int
    step: int
    value: float
    attempt: int


@dataclass(frozen=True)
class Series:
    """`total` points were there; `points` are those a chart needs, by stage and step."""

    name: str
    total: int
    points: list[Point]


@dataclass(frozen=True)
class SeriesSet:
    """What changed up to `revision`. With `since`, only newer points: put them over those with the same step."""

    revision: int
    attempt: int
    series: list[Series]


_SQL = """
WITH p AS (
    SELECT name, stage, step, value, attempt,
           value <> 'NaN' AND abs(value) <> 'Infinity' AS is_finite,
           count(*) OVER (PARTITION BY name) AS total,
           min(step) OVER w AS first, max(step) OVER w AS last
    FROM runs_metricpoint
    WHERE run_id = %(run)s AND name = ANY(%(names)s) AND revision > %(since)s
    WINDOW w AS (PARTITION BY name, stage)
), b AS (
    SELECT *, CASE WHEN total <= %(points)s THEN step
                   ELSE (step - first)::bigint * %(buckets)s / (last - first + 1) END AS bucket
    FROM p
), r AS (
    SELECT *,
           row_number() OVER (PARTITION BY name, stage, bucket, is_finite ORDER BY value, step) AS low,
           row_number() OVER (PARTITION BY name, stage, bucket, is_finite ORDER BY value DESC, step) AS high,
           row_number() OVER (PARTITION BY name, stage, bucket ORDER BY step DESC) AS late,
           row_number() OVER (PARTITION BY name, stage, bucket, is_finite ORDER BY step) AS early
    FROM b
)
SELECT name, stage, step, value, attempt, total FROM r
WHERE total <= %(points)s OR late = 1 OR (is_finite AND (low = 1 OR high = 1)) OR (NOT is_finite AND early = 1)
   OR step = first
ORDER BY name, stage, step
"""


def read_series(run: Run, names: list[str], *, points: int = 800, since: int = 0) -> SeriesSet:
    """At most about `points` a series. The revision is read first: what is written meanwhile comes again."""
    revision, attempt = Run.objects.values_list("revision", "attempt_number").get(pk=run.pk)
    points = min(max(points, 10), MAX_POINTS)
    by_name: dict[str, Series] = {}
    with connection.cursor() as cursor:
        cursor.execute(
            _SQL,
            {"run": run.pk, "names": names[:MAX_NAMES], "since": since, "points": points, "buckets": points // 4},
        )
        for name, stage, step, value, of_attempt, total in cursor.fetchall():
            series = by_name.setdefault(name, Series(name, total, []))
            series.points.append(Point(stage, step, value, of_attempt))
    return SeriesSet(revision, attempt, [by_name.get(n, Series(n, 0, [])) for n in names[:MAX_NAMES]])
