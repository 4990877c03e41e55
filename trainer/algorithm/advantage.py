"""Group-relative advantages over the kept rollouts (rStar2-Agent eq. 7)."""

from collections.abc import Sequence
from statistics import fmean

from contracts.recipe import AdvantageScale


def compute_advantages(rewards: Sequence[float], scale: AdvantageScale) -> list[float]:
    """(reward - mean) / std over the rollouts kept of one group; `none` leaves out the division.

    The paper does not say which std: it is the sample one (n - 1), as in the released code and verl, but
    without their epsilon, since a group of equal rewards is found by max == min and gets zeros: [1, 0, 0, 0]
    gives 1.5 and -0.5. Float64 throughout.
    """
    if not rewards or max(rewards) == min(rewards):
        return [0.0] * len(rewards)
    mean = fmean(rewards)
    centred = [reward - mean for reward in rewards]
    if scale is AdvantageScale.NONE:
        return centred
    std = (sum(c * c for c in centred) / (len(rewards) - 1)) ** 0.5
    return [c / std for c in centred]
