"""The bars of the issue, checked against one run."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.sandbox.load import Measured, mean, quantile

MIN_SHARE_OF_PLAIN = 0.65
MIN_TIMES_CODE_JUDGE = 2.5
MAX_MEAN_MS = 300.0
MAX_MEDIAN_MS = 40.0
MAX_REPLACE_S = 0.6
MAX_OVERRUN_MS = 300.0


@dataclass(frozen=True)
class Bar:
    """One promise and what became of it."""

    name: str
    promised: str
    measured: str
    is_met: bool | None  # None: not measured in this run

    def cells(self) -> list[str]:
        """A row of the bars table."""
        return [self.name, self.promised, self.measured, {True: "met", False: "MISSED", None: "not run"}[self.is_met]]


def check(
    *,
    saturated: Sequence[Measured],
    opened: Mapping[float, Measured],
    burst: Measured | None,
    replacements: Sequence[float],
    overruns: Sequence[float],
) -> list[Bar]:
    """One line a bar. `saturated` is the closed loop with four callers a core, ours first."""
    return [
        _times("throughput, of plain", "plain", saturated, MIN_SHARE_OF_PLAIN),
        _times("throughput, of code-judge", "code-judge", saturated, MIN_TIMES_CODE_JUDGE),
        _times("throughput, of its model", "code-judge model", saturated, MIN_TIMES_CODE_JUDGE),
        _at_most(
            "mean at half of saturation, timeouts included",
            mean(opened[0.5].latencies()) if 0.5 in opened else None,
            MAX_MEAN_MS,
            "ms",
        ),
        _at_most(
            "p50 at a fifth", quantile(opened[0.2].latencies(), 0.5) if 0.2 in opened else None, MAX_MEDIAN_MS, "ms"
        ),
        _at_most("replacement", statistics.median(replacements) if replacements else None, MAX_REPLACE_S, "s"),
        _at_most("overrun past a limit, the longest", max(overruns) if overruns else None, MAX_OVERRUN_MS, "ms"),
        _none_lost(burst),
        _all_right([*saturated[:1], *opened.values(), *([burst] if burst else [])]),
    ]


def _times(name: str, other: str, saturated: Sequence[Measured], bar: float) -> Bar:
    found = {measured.name: measured for measured in saturated}
    if other not in found or "ours" not in found:
        return Bar(name, f">= {bar:g} x", "-", None)
    ours, theirs = found["ours"], found[other]
    times = ours.calls_per_s / theirs.calls_per_s
    by_cpu = ours.calls_per_core_s / theirs.calls_per_core_s
    return Bar(name, f">= {bar:g} x", f"{times:.2f} x (by CPU {by_cpu:.2f} x)", times >= bar)


def _at_most(name: str, value: float | None, bar: float, unit: str) -> Bar:
    if value is None:
        return Bar(name, f"<= {bar:g} {unit}", "-", None)
    return Bar(name, f"<= {bar:g} {unit}", f"{value:.3g} {unit}", value <= bar)


def _none_lost(burst: Measured | None) -> Bar:
    name, promised = "burst", "none lost, none twice, none wrong"
    if burst is None:
        return Bar(name, promised, "-", None)
    counts = (burst.lost, burst.duplicates, len(burst.faults))
    return Bar(name, promised, f"{burst.sent} sent: {counts[0]}, {counts[1]}, {counts[2]}", not any(counts))


def _all_right(results: Sequence[Measured]) -> Bar:
    answered = sum(len(measured.samples) for measured in results)
    wrong = sum(len(measured.faults) + measured.lost + measured.duplicates for measured in results)
    name, promised = "answers of ours against the oracle", "all right, none lost, none twice"
    return Bar(
        name, promised, f"{answered} answers, {wrong} amiss" if answered else "-", not wrong if answered else None
    )
