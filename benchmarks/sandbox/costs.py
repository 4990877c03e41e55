"""From a benchmark to what the simulator needs: the cost of a call by kind, and what comes on top of it."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from benchmarks.sandbox.load import Measured, mean, quantile
from benchmarks.sandbox.machine import MachineFacts
from benchmarks.sandbox.workload import BLOCK, BLOCK_CALLS, Kind

QUANTILES = tuple((n + 0.5) / 20 for n in range(20))
_TIERS = {Kind.NUMPY: "numpy", Kind.SYMPY: "sympy"}


def measured_costs(closed: Sequence[Measured], machine: MachineFacts) -> dict[str, Any]:
    """Costs in milliseconds. With few callers a core runs one call, so execution time is CPU time but for sleepers.

    `after_ms` is what a box costs beyond execution (wiping, forking and warming the next child), from the CPU of the
    whole tree; it is the remainder of a mean, not a measurement of its own.
    """
    quiet = min(closed, key=lambda measured: len(measured.samples) and measured.latencies()[0])
    kinds = {}
    for kind, count in BLOCK.items():
        execs = sorted(sample.exec_ms for sample in quiet.samples if sample.kind is kind)
        if not execs and kind is Kind.SUBPROCESS:
            continue  # rare: a short run may hold none
        kinds[kind.value] = {
            "share": count / BLOCK_CALLS,
            "tier": _TIERS.get(kind, "light"),
            "is_sleep": kind is Kind.SLEEP,
            "exec_ms": [round(quantile(execs, q), 1) for q in QUANTILES],
        }
    work = [sample.exec_ms for sample in quiet.samples if sample.kind is not Kind.SLEEP]
    exec_cpu_ms = mean(work) * len(work) / max(1, len(quiet.samples))
    after_ms = max(0.0, quiet.cpu_ms_per_call - quiet.front_ms_per_call - exec_cpu_ms)
    return {
        "machine": asdict(machine),
        "calls": len(quiet.samples),
        "kinds": kinds,
        "after_ms": round(after_ms, 1),
        "front_ms": round(quiet.front_ms_per_call, 2),
    }
