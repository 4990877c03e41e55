"""Markdown tables of what was measured."""

import math
from collections.abc import Sequence

from benchmarks.sandbox.load import Measured, mean, quantile

HEADER = (
    "contestant", "calls/s", "calls/core-s", "CPU ms/call", "front ms", "p50", "p90", "p99", "mean",
    "p50 no t/o", "p99 no t/o", "mean no t/o", "queue ms", "exec ms", "calls", "replaced", "wrong", "lost", "twice",
)  # fmt: skip


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A markdown table; floats with three significant digits."""
    lines = ["| " + " | ".join(header) + " |", "|" + "---|" * len(header)]
    lines += ["| " + " | ".join(show(cell) for cell in row) + " |" for row in rows]
    return "\n".join(lines)


def show(value: object) -> str:
    """A cell."""
    if not isinstance(value, float):
        return str(value)
    if math.isnan(value):
        return "-"
    return f"{value:.0f}" if abs(value) >= 100 else f"{value:.3g}"


def row(measured: Measured, label: str = "") -> list[object]:
    """The line of one contestant under `HEADER`. Latencies in milliseconds, with and without timeouts."""
    every, ended = measured.latencies(), measured.latencies(with_over_limit=False)
    return [
        label or measured.name,
        measured.calls_per_s,
        measured.calls_per_core_s,
        measured.cpu_ms_per_call,
        measured.front_ms_per_call,
        *(quantile(every, q) for q in (0.5, 0.9, 0.99)),
        mean(every),
        quantile(ended, 0.5),
        quantile(ended, 0.99),
        mean(ended),
        mean([sample.queue_ms for sample in measured.samples]),
        mean([sample.exec_ms for sample in measured.samples]),
        measured.finished,
        measured.replaced,
        len(measured.faults),
        measured.lost,
        measured.duplicates,
    ]


def by_kind(measured: Measured) -> str:
    """Execution time and CPU of each kind of program."""
    rows = []
    for kind in dict.fromkeys(sample.kind for sample in sorted(measured.samples, key=lambda s: s.kind)):
        mine = [sample for sample in measured.samples if sample.kind is kind]
        execs = sorted(sample.exec_ms for sample in mine)
        cpu = mean([sample.cpu_ms for sample in mine])
        queue = mean([sample.queue_ms for sample in mine])
        rows.append([kind.value, len(mine), quantile(execs, 0.5), quantile(execs, 0.99), mean(execs), cpu, queue])
    return table(("kind", "calls", "exec p50", "p99", "mean", "program's CPU", "queue"), rows)
