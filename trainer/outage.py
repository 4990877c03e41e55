"""Most rollouts without a grade: a part of ours is broken, and the run ends, to be resumed when it is repaired."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.scoring import Ungraded
from trainer.rollout.trajectory import Trajectory

MAX_UNGRADED_SHARE = 0.5
LEAST_PROMPTS = 2


class InfrastructureDown(Exception):
    """Most rollouts failed for a reason of ours; the message says which."""


@dataclass(frozen=True, slots=True)
class Occasion:
    """What rollouts are for; shown as progress."""

    stage: int
    step: int
    what: str


@dataclass(slots=True)
class _Count:
    """The rollouts of an occasion so far."""

    occasion: Occasion
    rollouts: int = 0
    prompts: set[str] = field(default_factory=set)
    ungraded: list[Ungraded] = field(default_factory=list)


class OutageWatch:
    """Judges over all rollouts of an occasion so far, a step's rounds of refill included: one round may be tiny.

    And over `LEAST_PROMPTS` prompts or more, if need be those of the occasions before: a single prompt, whose
    reference nobody can read or whose answers hang the grader, tells nothing of our parts. It is left out of its
    step and counted.
    """

    def __init__(self) -> None:
        self._counts: list[_Count] = []

    def check(self, trajectories: Sequence[Trajectory], occasion: Occasion) -> None:
        """Learning from, or scoring, the minority that needed none of what is broken would mislead:
        InfrastructureDown instead."""
        self._add(trajectories, occasion)
        ungraded = [grade for count in self._counts for grade in count.ungraded]
        rollouts = sum(count.rollouts for count in self._counts)
        if self._prompts() < LEAST_PROMPTS or len(ungraded) <= MAX_UNGRADED_SHARE * rollouts:
            return
        reason, most = Counter(grade.reason.value for grade in ungraded).most_common(1)[0]
        detail = next(grade.detail for grade in ungraded if grade.reason.value == reason)
        first = self._counts[0].occasion.step
        steps = f"step {first}" if first == occasion.step else f"steps {first} to {occasion.step}"
        raise InfrastructureDown(
            f"{len(ungraded)} of {rollouts} {occasion.what} of {steps} have no grade, "
            f"{most} of them by {reason} ({detail[:300]}). Nothing was learned from them; resume when it is repaired"
        )

    def _add(self, trajectories: Sequence[Trajectory], occasion: Occasion) -> None:
        self._counts = [c for c in self._counts if c.occasion.what == occasion.what]
        if not self._counts or self._counts[-1].occasion != occasion:
            self._counts.append(_Count(occasion))
        newest = self._counts[-1]
        newest.rollouts += len(trajectories)
        newest.prompts |= {t.problem.id for t in trajectories}
        newest.ungraded += [t.grade for t in trajectories if isinstance(t.grade, Ungraded)]
        while len(self._counts) > 1 and self._prompts(without_oldest=True) >= LEAST_PROMPTS:
            del self._counts[0]

    def _prompts(self, *, without_oldest: bool = False) -> int:
        return sum(len(count.prompts) for count in self._counts[int(without_oldest) :])
