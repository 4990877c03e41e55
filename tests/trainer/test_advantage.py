"""Advantages by hand."""

import pytest

from contracts.recipe import AdvantageScale
from trainer.algorithm.advantage import compute_advantages


def test_sample_standard_deviation() -> None:
    assert compute_advantages([1, 0, 0, 0], AdvantageScale.STD) == pytest.approx([1.5, -0.5, -0.5, -0.5])


def test_without_scaling_only_the_mean_goes() -> None:
    assert compute_advantages([1, 0, 0, 0], AdvantageScale.NONE) == pytest.approx([0.75, -0.25, -0.25, -0.25])


@pytest.mark.parametrize("rewards", [[0.7] * 7, [1.0, 1.0], [0.0], []])
def test_equal_rewards_give_exact_zeros(rewards: list[float]) -> None:
    assert compute_advantages(rewards, AdvantageScale.STD) == [0.0] * len(rewards)


def test_the_sum_is_zero_and_order_is_kept() -> None:
    rewards = [1.0, 0.0, 1.0, 1.0, 0.0]
    values = compute_advantages(rewards, AdvantageScale.STD)
    assert sum(values) == pytest.approx(0)
    assert compute_advantages(rewards[::-1], AdvantageScale.STD) == pytest.approx(values[::-1])
