"""The clipped loss on small tensors by hand, and weights whose denominators span the update."""

import math

import pytest
import torch

from contracts.recipe import LossAggregation
from trainer.algorithm.loss import LossInputs, LossRule, make_weights, policy_loss

RULE = LossRule(0.2, 0.28)


def inputs(ratios: list[float], advantages: list[float], weights: list[float]) -> LossInputs:
    logprobs = torch.tensor([math.log(r) for r in ratios], requires_grad=True)
    return LossInputs(logprobs, torch.zeros(len(ratios)), torch.tensor(advantages), torch.tensor(weights))


def test_two_rollouts_of_three_tokens_by_hand() -> None:
    # A = 1: ratios 1, 1.5 (clipped to 1.28), 0.5; A = -1: 1, 1.5, 0.5 (clipped to 0.8)
    terms = policy_loss(inputs([1, 1.5, 0.5, 1, 1.5, 0.5], [1, 1, 1, -1, -1, -1], [1 / 6] * 6), RULE)
    assert float(terms.loss.detach()) == pytest.approx(-(1 + 1.28 + 0.5 - 1 - 1.5 - 0.8) / 6)
    assert (terms.clipped_tokens, terms.tokens) == (2, 6)
    assert terms.ratio_max == pytest.approx(1.5)


def test_clipped_tokens_have_no_gradient() -> None:
    given = inputs([1.5, 0.5, 1.5, 0.5], [1, 1, -1, -1], [1.0] * 4)
    policy_loss(given, RULE).loss.backward()
    assert given.logprobs.grad is not None
    assert given.logprobs.grad.tolist() == pytest.approx([0.0, -0.5, 1.5, 0.0])


def test_an_empty_micro_batch_is_zero_with_a_graph() -> None:
    terms = policy_loss(inputs([], [], []), RULE)
    terms.loss.backward()
    assert float(terms.loss.detach()) == 0.0


def test_a_huge_ratio_stays_finite() -> None:
    given = LossInputs(torch.tensor([500.0]), torch.zeros(1), torch.tensor([-1.0]), torch.ones(1))
    assert torch.isfinite(policy_loss(given, RULE).loss)


# rollouts of 1 and 3 tokens in group a, one of 4 in group b
LENGTHS, GROUPS = [1, 3, 4], ["a", "a", "b"]


def test_group_token_weights_are_equation_6() -> None:
    assert make_weights(LossAggregation.GROUP_TOKEN, LENGTHS, GROUPS, [0, 1, 2]) == [1 / 8, 1 / 8, 1 / 8]
    lengths = [1, 1, 8]
    assert make_weights(LossAggregation.GROUP_TOKEN, lengths, GROUPS, [0, 1, 2]) == [1 / 4, 1 / 4, 1 / 16]


def test_group_token_updates_average_to_the_whole_step() -> None:
    whole = make_weights(LossAggregation.GROUP_TOKEN, LENGTHS, GROUPS, [0, 1, 2])
    parts = [make_weights(LossAggregation.GROUP_TOKEN, LENGTHS, GROUPS, [i])[0] for i in range(3)]
    assert [part / 3 for part in parts] == pytest.approx(whole)


def test_token_weights_count_the_update() -> None:
    assert make_weights(LossAggregation.TOKEN, LENGTHS, GROUPS, [0, 2]) == [1 / 5, 1 / 5]


def test_sequence_weights_are_equation_1() -> None:
    assert make_weights(LossAggregation.SEQUENCE, LENGTHS, GROUPS, [0, 1, 2]) == pytest.approx([1 / 3, 1 / 9, 1 / 12])


@pytest.mark.parametrize("aggregation", list(LossAggregation))
def test_a_rollout_without_tokens_weighs_nothing(aggregation: LossAggregation) -> None:
    weights = make_weights(aggregation, [0, 2], ["a", "a"], [0, 1])
    assert all(math.isfinite(w) for w in weights)
    assert weights[1] == pytest.approx(0.5 if aggregation is not LossAggregation.SEQUENCE else 0.25)
