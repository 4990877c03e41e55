"""What a node has done since it started, and how fast it is."""

from collections import Counter
from collections.abc import Sequence

from contracts.execution import ExecutionStatus
from sandbox.tiers import Tier

TYPICAL_CALL_S = 0.06  # before anything was measured; weighs as much as PRIOR_CALLS calls
PRIOR_CALLS = 5
MEMORY_CALLS = 100  # a moving average over about so many: calls that run out of time are rare and long
RATE_SHARE = 0.3  # of the newest second in the measured rate
RATE_KEPT_S = 30.0  # after the last second in which calls waited: later ones may be of another kind


class Tally:
    """Counters and moving averages."""

    def __init__(self, tiers: Sequence[Tier]) -> None:
        self.served = 0
        self.abandoned = 0
        self.crashes = 0
        self.by_status: Counter[str] = Counter()
        self.replaced: Counter[str] = Counter()
        self.mean_call_s = dict.fromkeys(tiers, TYPICAL_CALL_S)  # how long a call holds a box, cleaning included
        self.mean_cpu_s = dict.fromkeys(tiers, TYPICAL_CALL_S)  # of it on the CPU
        self.saturated_per_s = 0.0  # calls a second while calls were waiting; 0: not lately
        self._calls: Counter[Tier] = Counter()
        self._saturated_at = 0.0
        self._at_tick: tuple[float, int, bool] | None = None

    def count(self, status: ExecutionStatus) -> None:
        """One answer."""
        self.served += not status.is_ours
        self.by_status[status.value] += 1

    def observe(self, tier: Tier, spent_s: float, cpu_s: float) -> None:
        """A box was held so long by one call, which used so much CPU time."""
        self._calls[tier] += 1
        share = 1 / min(MEMORY_CALLS, self._calls[tier] + PRIOR_CALLS)
        self.mean_call_s[tier] += (spent_s - self.mean_call_s[tier]) * share
        self.mean_cpu_s[tier] += (cpu_s - self.mean_cpu_s[tier]) * share

    def tick(self, now: float, *, is_saturated: bool) -> None:
        """Measure the rate over the time since the last tick, if calls were waiting then and are now."""
        if self._at_tick is not None and is_saturated and self._at_tick[2]:
            before, served, _ = self._at_tick
            rate = (self.served - served) / (now - before)
            self.saturated_per_s += (rate - self.saturated_per_s) * (RATE_SHARE if self.saturated_per_s else 1.0)
            self._saturated_at = now
        elif now - self._saturated_at > RATE_KEPT_S:
            self.saturated_per_s = 0.0
        self._at_tick = (now, self.served, is_saturated)
