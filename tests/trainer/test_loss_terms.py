"""Each addition to the loss on numbers worked by hand."""

import math

import pytest
import torch
from torch import Tensor

from contracts.recipe import LossTerm
from trainer.algorithm.loss import (
    LossInputs,
    LossRule,
    LossShare,
    estimate_kl,
    importance_weights,
    measure_mismatch,
    policy_loss,
)


def logs(*probabilities: float) -> Tensor:
    return torch.tensor([math.log(p) for p in probabilities])


def lose(terms: dict[LossTerm, float], ratios: list[float], advantages: list[float], **more: Tensor) -> LossShare:
    """Weights 1, old probabilities 1."""
    count = len(ratios)
    old, ones = torch.zeros(count), torch.ones(count)
    inputs = LossInputs(logs(*ratios), old, torch.tensor(advantages), ones, **more)
    return policy_loss(inputs, LossRule(0.2, 0.28, terms))


def gradient(terms: dict[LossTerm, float], logprobs: Tensor, **more: Tensor) -> list[float]:
    """Of the loss by `logprobs`, which are the old ones too; advantages and weights 1."""
    own = logprobs.clone().requires_grad_()
    ones = torch.ones(len(own))
    policy_loss(LossInputs(own, logprobs, ones, ones, **more), LossRule(0.2, 0.28, terms)).loss.backward()
    assert own.grad is not None
    return list(own.grad.tolist())


def test_dual_clip_bounds_the_ratio_of_negative_advantages() -> None:
    # A = -1: ratio 5 gives -3, not -5; ratio 2 stays -2; ratio 0.5 is clipped to -0.8. A = 1: ratio 5 gives 1.28.
    share = lose({LossTerm.DUAL_CLIP: 3.0}, [5, 2, 0.5, 5], [-1, -1, -1, 1])
    assert float(share.loss) == pytest.approx(3 + 2 + 0.8 - 1.28)
    assert (share.dual_clipped_tokens, share.clipped_tokens) == (1, 2)
    assert float(lose({}, [5], [-1]).loss) == pytest.approx(5)


def test_a_token_at_the_dual_clip_has_no_gradient() -> None:
    own = logs(5, 2).requires_grad_()
    inputs = LossInputs(own, torch.zeros(2), torch.tensor([-1.0, -1.0]), torch.ones(2))
    policy_loss(inputs, LossRule(0.2, 0.28, {LossTerm.DUAL_CLIP: 3.0})).loss.backward()
    assert own.grad is not None and own.grad.tolist() == pytest.approx([0.0, 2.0])


def test_estimators_of_kl() -> None:
    # policy 0.5, reference 0.25: x = log 2 = 0.693147; k1 = x, k2 = x^2 / 2, k3 = 1/2 - 1 + x
    x = torch.tensor([math.log(2)])
    assert float(estimate_kl(LossTerm.KL_K1, x)) == pytest.approx(0.693147)
    assert float(estimate_kl(LossTerm.KL_K2, x)) == pytest.approx(0.240227, abs=1e-6)
    assert float(estimate_kl(LossTerm.KL_K3, x)) == pytest.approx(0.193147)
    with pytest.raises(ValueError, match="entropy is no estimator of KL"):
        estimate_kl(LossTerm.ENTROPY, x)


@pytest.mark.parametrize(
    ("term", "loss", "slope"),
    [
        (LossTerm.KL_K1, -(1 - 0.1 * 0.693147), -(1 - 0.1 * 0.693147)),  # advantage less 0.1 * x
        (LossTerm.KL_K2, -(1 - 0.1 * 0.240227), -(1 - 0.1 * 0.693147)),  # d k2 = x: on-policy the gradient of k1
        (LossTerm.KL_K3, -(1 - 0.1 * 0.193147), -(1 - 0.1 * 0.5)),  # d k3 = 1 - 0.25 / 0.5
    ],
)
def test_kl_to_the_reference(term: LossTerm, loss: float, slope: float) -> None:
    policy, reference, one = logs(0.5), logs(0.25), torch.ones(1)
    inputs = LossInputs(policy, policy, one, one, reference_logprobs=reference)
    assert float(policy_loss(inputs, LossRule(0.2, 0.28, {term: 0.1})).loss) == pytest.approx(loss)
    assert gradient({term: 0.1}, policy, reference_logprobs=reference) == pytest.approx([slope])


def test_entropy_is_a_bonus() -> None:
    # ratio 1 and A 1: 2; entropies 2 and 1 nats at 0.01: 0.03
    share = lose({LossTerm.ENTROPY: 0.01}, [1, 1], [1, 1], entropies=torch.tensor([2.0, 1.0]))
    assert float(share.loss) == pytest.approx(-2.03)


def test_importance_weights_are_truncated_from_above() -> None:
    # trainer / engine: 0.5 / 0.1 = 5, at most 2; 0.2 / 0.4 = 0.5 stays
    trainer, engine = logs(0.5, 0.2), logs(0.1, 0.4)
    assert importance_weights(trainer, engine, 2.0).tolist() == pytest.approx([2.0, 0.5])
    assert gradient({LossTerm.TIS: 2.0}, trainer, sampling_logprobs=engine) == pytest.approx([-2.0, -0.5])


def test_tis_weighs_the_policy_term_only() -> None:
    # 0.5 * 1 of the policy, 0.01 * 2 of the entropy
    terms = {LossTerm.TIS: 2.0, LossTerm.ENTROPY: 0.01}
    share = lose(terms, [1], [1], sampling_logprobs=logs(2), entropies=torch.tensor([2.0]))
    assert float(share.loss) == pytest.approx(-0.52)


def test_huge_differences_stay_finite() -> None:
    terms = {LossTerm.TIS: 2.0, LossTerm.KL_K3: 0.1}
    far = torch.tensor([-500.0])
    assert torch.isfinite(lose(terms, [1], [1], sampling_logprobs=far, reference_logprobs=far).loss)


def test_mismatch_of_engine_and_trainer() -> None:
    # gaps log 2 and -log 2; k3 of engine / trainer 1/2 and 2: 2 - 1 - log 2 and 1/2 - 1 + log 2, mean 1/4
    found = measure_mismatch(logs(0.5, 0.2), logs(0.25, 0.4), cap=1.5)
    assert (found.gap_mean, found.gap_max) == pytest.approx((0.693147, 0.693147))
    assert found.kl == pytest.approx(0.25)
    assert found.capped_share == 0.5  # ratios 2 and 1/2


def test_equal_log_probabilities_are_no_mismatch() -> None:
    found = measure_mismatch(logs(0.3, 0.9), logs(0.3, 0.9), cap=2.0)
    assert (found.gap_mean, found.gap_max, found.kl, found.capped_share) == (0, 0, 0, 0)


@pytest.mark.parametrize("term", [LossTerm.TIS, LossTerm.KL_K1, LossTerm.KL_K3, LossTerm.ENTROPY])
def test_a_term_without_its_values_is_an_error(term: LossTerm) -> None:
    with pytest.raises(ValueError, match="nothing to work with"):
        lose({term: 2.0}, [1], [1])
