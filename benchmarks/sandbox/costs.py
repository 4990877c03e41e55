"""From a benchmark to what the simulator needs: the cost of a call by kind, and what comes on top of it."""

from dataclasses import asdict
from typing import Any

from benchmarks.sandbox.load import Measured, mean, quantile
from benchmarks.sandbox.machine import MachineFacts
from benchmarks.sandbox.workload import BLOCK, BLOCK_CALLS, Kind

QUANTILES = tuple((n + 0.5) / 20 for n in range(20))
_TIERS = {Kind.NUMPY: "numpy", Kind.SYMPY: "sympy"}


def measured_costs(quiet: Measured, busy: Measured, machine: MachineFacts) -> dict[str, Any]:
    """Costs in milliseconds; kinds that a short run did not hold are left out.

    `quiet` had one caller, so execution time is CPU time but for sleepers. `busy` was saturated: its CPU per call less
    front and execution is `after_ms`, what a box costs beyond execution (wiping, forking and warming the next child).
    That is the remainder of a mean, not a measurement of its own.
    """
    kinds: dict[str, Any] = {}
    for kind, count in BLOCK.items():
        execs = sorted(sample.exec_ms for sample in quiet.samples if sample.kind is kind)
        if execs:
            kinds[kind.value] = {
                "share": count / BLOCK_CALLS,
                "tier": _TIERS.get(kind, "light"),
                "is_sleep": kind is Kind.SLEEP,
                "exec_ms": [round(quantile(execs, q), 1) for q in QUANTILES],
            }
    total = sum(kind["share"] for kind in kinds.values())
    exec_cpu_ms = sum(kind["share"] * mean(kind["exec_ms"]) for kind in kinds.values() if not kind["is_sleep"]) / total
    after_ms = max(0.0, busy.cpu_ms_per_call - busy.front_ms_per_call - exec_cpu_ms)
    return {
        "machine": asdict(machine),
        "calls": len(quiet.samples),
        "kinds": kinds,
        "after_ms": round(after_ms, 1),
        "front_ms": round(busy.front_ms_per_call, 2),
    }
