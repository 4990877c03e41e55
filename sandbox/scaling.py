"""How many boxes of which tier: at start by cores and memory, then one box more, less or turned over at a time.

A box is added or turned over only where it would find a core: one is idle, or the calls that wait mostly sleep.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sandbox.tiers import Tier

TYPICAL_BOX_MB = {Tier.LIGHT: 50, Tier.NUMPY: 60, Tier.SYMPY: 120, Tier.FULL: 250}  # of an idle box
WORK_SHARE = {Tier.LIGHT: 2, Tier.NUMPY: 1, Tier.SYMPY: 2, Tier.FULL: 1}  # of box time, on the mix of the benchmark
MEMORY_SHARE = 0.5  # of what is available; the rest is for what programs allocate
WAITED_S = 2.0  # calls of a tier have been waiting so long before anything is done
IDLE_S = 3.0  # a box has been idle so long before it is turned over
SHRINK_S = 30.0  # an extra box has been idle so long before it ends
IDLE_CORES = 0.5
SLEEPY_SHARE = 0.2  # of the time that calls hold a box they use the CPU: less is sleep, whoever else uses the cores


@dataclass(frozen=True)
class TierLoad:
    """One tier as it is now."""

    tier: Tier
    boxes: int
    waiting: int = 0
    waited_s: float = 0.0
    idle_s: tuple[float, ...] = ()  # of each box that waits for a call
    cpu_share: float = 1.0  # CPU time of recent calls by the time they held a box


@dataclass(frozen=True)
class Move:
    """One box: from a tier to another, or new (no source), or ended (no target)."""

    source: Tier | None
    target: Tier | None


def plan(loads: Sequence[TierLoad], *, base: int, most: int, idle_cores: float) -> Move | None:
    """The next move, or None. `base` boxes are there without load, never more than `most`."""
    total = sum(load.boxes for load in loads)
    starved = [load for load in loads if load.waiting and load.waited_s >= WAITED_S]
    helped = [load for load in starved if idle_cores >= IDLE_CORES or load.cpu_share < SLEEPY_SHARE]
    if helped:
        target = max(helped, key=lambda load: load.waiting / load.boxes)
        sources = [load for load in loads if load is not target and _can_give(load, IDLE_S)]
        if sources:
            return Move(max(sources, key=lambda load: len(load.idle_s)).tier, target.tier)
        return Move(None, target.tier) if total < most else None
    extra = [load for load in loads if _can_give(load, SHRINK_S)]
    if total > base and extra and not starved:
        return Move(max(extra, key=lambda load: len(load.idle_s)).tier, None)
    return None


def _can_give(load: TierLoad, idle_s: float) -> bool:
    """The last box of a tier stays."""
    return load.boxes > 1 and not load.waiting and any(idle >= idle_s for idle in load.idle_s)


def count_boxes(tiers: Sequence[Tier], *, total: int) -> dict[Tier, int]:
    """Boxes per tier: one each, the others by WORK_SHARE (highest averages, the cheaper tier on a tie).

    With fewer boxes than tiers the richest has one first, because it runs everything, then the cheapest.
    """
    if total < len(tiers):
        chosen = {tiers[-1], *tiers[: total - 1]}
        return {tier: 1 for tier in tiers if tier in chosen}
    counts = dict.fromkeys(tiers, 1)
    for _ in range(total - len(tiers)):
        counts[max(tiers, key=lambda tier: WORK_SHARE[tier] / (counts[tier] + 1))] += 1
    return counts


def fit_total(tiers: Sequence[Tier], *, wanted: int, memory_mb: float) -> int:
    """The largest number of boxes up to `wanted` whose memory fits; at least one."""
    for total in range(wanted, 1, -1):
        if needed_mb(count_boxes(tiers, total=total)) <= memory_mb * MEMORY_SHARE:
            return total
    return 1


def needed_mb(counts: Mapping[Tier, int]) -> int:
    """Memory of idle boxes."""
    return sum(count * TYPICAL_BOX_MB[tier] for tier, count in counts.items())
