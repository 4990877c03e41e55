"""Advantages by hand, and what truncation does to a reward."""

import pytest

from contracts.recipe import AdvantageScale, Overlong
from trainer.algorithm.advantage import compute_advantages
from trainer.algorithm.overlong import shape_reward


def of_group(rewards: list[float], scale: AdvantageScale = AdvantageScale.STD) -> list[float]:
    return compute_advantages([rewards], scale)[0]


def test_sample_standard_deviation() -> None:
    # mean 1/4, sum of squares 9/16 + 3/16 = 3/4, over n - 1 = 3: std 1/2
    assert of_group([1, 0, 0, 0]) == pytest.approx([1.5, -0.5, -0.5, -0.5])


def test_without_scaling_only_the_mean_goes() -> None:
    assert of_group([1, 0, 0, 0], AdvantageScale.NONE) == pytest.approx([0.75, -0.25, -0.25, -0.25])


def test_the_batch_s_standard_deviation_is_over_all_groups() -> None:
    # 3 of 8 are right: sum of squares 3 * (5/8)^2 + 5 * (3/8)^2 = 15/8, over 7: std 0.517549. Means are the groups'.
    first, second = compute_advantages([[1, 0, 0, 0], [1, 1, 0, 0]], AdvantageScale.BATCH)
    assert first == pytest.approx([0.75 / 0.517549, *[-0.25 / 0.517549] * 3], rel=1e-5)
    assert second == pytest.approx([0.5 / 0.517549] * 2 + [-0.5 / 0.517549] * 2, rel=1e-5)


@pytest.mark.parametrize("scale", list(AdvantageScale))
@pytest.mark.parametrize("rewards", [[0.7] * 7, [1.0, 1.0], [0.0], []])
def test_equal_rewards_give_exact_zeros(rewards: list[float], scale: AdvantageScale) -> None:
    assert of_group(rewards, scale) == [0.0] * len(rewards)
    assert compute_advantages([rewards, [1.0, 0.0]], scale)[0] == [0.0] * len(rewards)


def test_the_sum_is_zero_and_order_is_kept() -> None:
    rewards = [1.0, 0.0, 1.0, 1.0, 0.0]
    values = of_group(rewards)
    assert sum(values) == pytest.approx(0)
    assert of_group(rewards[::-1]) == pytest.approx(values[::-1])


# limit 100: the buffer is its last 20 tokens
@pytest.mark.parametrize(
    ("reward", "tokens", "is_truncated", "expected"),
    [
        (1, 80, False, 1),
        (1, 90, False, 0.5),
        (0, 95, False, -0.75),
        (1, 100, False, 0),
        (0, 100, True, -1),
        (0, 70, True, -1),
    ],
)
def test_the_penalty_grows_over_the_buffer(reward: float, tokens: int, is_truncated: bool, expected: float) -> None:
    shaped = shape_reward(reward, Overlong.PENALTY, response_tokens=tokens, limit=100, is_truncated=is_truncated)
    assert shaped == pytest.approx(expected)


@pytest.mark.parametrize("rule", [Overlong.KEEP, Overlong.MASK])
def test_other_rules_leave_the_reward(rule: Overlong) -> None:
    assert shape_reward(0.0, rule, response_tokens=100, limit=100, is_truncated=True) == 0.0
    assert shape_reward(1.0, rule, response_tokens=99, limit=100, is_truncated=False) == 1.0
