"""Group-relative advantages over the kept rollouts (rStar2-Agent eq. 7)."""

from collections.abc import Sequence
from statistics import fmean

from contracts.recipe import AdvantageScale


def compute_advantages(groups: Sequence[Sequence[float]], scale: AdvantageScale) -> list[list[float]]:
    """(reward - mean of the group) / std for the rewards kept of each group of a step.

    `std`: of the group (eq. 7). `batch`: of all rewards kept in the step. `none`: no division.
    The paper does not say which std: it is the sample one (n - 1), as in the released code and verl, but
    without their epsilon, since a group of equal rewards is found by max == min and gets zeros: [1, 0, 0, 0]
    gives 1.5 and -0.5. Float64 throughout.
    """
    rewards = [reward for group in groups for reward in group]
    batch_std = _sample_std(rewards) if scale is AdvantageScale.BATCH else 1.0
    return [_of_group(group, scale, batch_std) for group in groups]


def _of_group(rewards: Sequence[float], scale: AdvantageScale, batch_std: float) -> list[float]:
    if not rewards or max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    std = _sample_std(rewards) if scale is AdvantageScale.STD else batch_std
    mean = fmean(rewards)
    return [(reward - mean) / std for reward in rewards]


def _sample_std(rewards: Sequence[float]) -> float:
    """0 for fewer than two rewards."""
    if len(rewards) < 2:
        return 0.0
    mean = fmean(rewards)
    return float((sum((reward - mean) ** 2 for reward in rewards) / (len(rewards) - 1)) ** 0.5)
