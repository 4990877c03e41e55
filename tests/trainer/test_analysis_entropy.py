"""The learner's entropies, and what the k likeliest tokens say of an entropy."""

from math import exp, log

import pytest
import torch

from contracts.recipe import RlStage, Sampling
from contracts.trajectory import EntropyKind
from tests.trainer.tiny import make_model
from trainer.algorithm.packing import Row
from trainer.analysis.entropy import bound_entropy, is_bound, set_entropies
from trainer.policy.learner import Sample, learn
from trainer.policy.model import compute_scores
from trainer.policy.optimizer import make_optimizer
from trainer.rollout.trajectory import Problem, Trajectory


def trajectory(prompt: list[int], response: list[int], mask: list[int]) -> Trajectory:
    return Trajectory(
        Problem("p", "?", "1"),
        0,
        prompt_ids=prompt,
        response_ids=response,
        mask=mask,
        logprobs=[-1.0] * len(mask),
        entropies=[9.0] * len(mask),
        entropy_kind=EntropyKind.TOPK_BOUND,
    )


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_bound_is_replaced_by_the_learner_s_entropy_over_the_full_vocabulary(temperature):
    model = make_model()
    one = trajectory([1, 2, 3], [4, 5, 6, 7], [1, 1, 0, 1])
    other = trajectory([3, 1], [2, 2], [1, 1])
    assert is_bound(one) and is_bound(other)
    rows = [Row(t.prompt_ids, t.response_ids, t.mask) for t in (one, other)]
    for t, scores in zip((one, other), compute_scores(model, rows, temperature), strict=True):
        set_entropies(t, scores.entropies)
    with torch.no_grad():
        logits = model(torch.tensor([[1, 2, 3, 4, 5, 6, 7]])).logits[0] / temperature
    expected = torch.distributions.Categorical(logits=logits).entropy()
    # token i is predicted at the position before it; a masked token keeps 0
    assert one.entropies == pytest.approx([float(expected[2]), float(expected[3]), 0.0, float(expected[5])], abs=1e-5)
    assert len(other.entropies) == 2 and one.entropy_kind is other.entropy_kind is EntropyKind.FULL
    assert not is_bound(one)


@pytest.mark.parametrize("mini_batch", [0, 1])
def test_a_step_learns_and_has_the_entropies_from_before_it(mini_batch):
    """From the update itself where there is one, else from the pass for the old log-probabilities."""
    model = make_model()
    rows = [Row([1, 2, 3], [4, 5, 6, 7], [1, 1, 0, 1]), Row([3, 1], [2, 2], [1, 1])]
    expected = compute_scores(model, rows, 0.7)
    stage = RlStage(name="rl", mini_batch=mini_batch, sampling=Sampling(temperature=0.7))
    samples = [Sample(row, "g", (-1.0) ** i, [-5.0] * sum(row.mask)) for i, row in enumerate(rows)]
    report = learn(model, make_optimizer(model), samples, stage=stage, rate=1e-2, seed=1)
    for found, scores in zip(report.entropies, expected, strict=True):
        torch.testing.assert_close(found, scores.entropies, atol=1e-6, rtol=1e-6)


def test_a_trajectory_without_a_sampled_token_has_no_bound():
    assert not is_bound(trajectory([1], [], []))


def test_the_bound_of_a_uniform_distribution_is_its_entropy():
    # 4 of 8 equal tokens are known: the rest, 1/2, cannot be on tokens likelier than 1/8
    assert bound_entropy([log(1 / 8)] * 4) == pytest.approx(log(8))


def test_the_bound_by_hand():
    # 0.5 and 0.3 are known; the rest is 0.2, which may be one token
    expected = -(0.5 * log(0.5) + 0.3 * log(0.3) + 0.2 * log(0.2))
    assert bound_entropy([log(0.5), log(0.3)]) == pytest.approx(expected)
    # 0.4 and 0.1: the rest, 0.5, is at least five tokens of 0.1
    assert bound_entropy([log(0.4), log(0.1)]) == pytest.approx(-(0.4 * log(0.4) + 0.1 * log(0.1)) - 0.5 * log(0.1))


def test_a_certain_token_has_no_entropy():
    assert bound_entropy([0.0, -80.0]) == pytest.approx(0.0)
    assert bound_entropy([]) == 0.0


def test_the_bound_is_never_above_the_entropy():
    shares = torch.softmax(torch.tensor([3.0, 2.5, 1.0, 0.3, -0.5, -2.0], dtype=torch.float64), 0).tolist()
    entropy = -sum(p * log(p) for p in shares)
    bounds = [bound_entropy([log(p) for p in shares[:k]]) for k in range(1, 7)]
    assert bounds == sorted(bounds)  # the more is known, the closer
    assert all(b <= entropy + 1e-12 for b in bounds) and bounds[-1] == pytest.approx(entropy)
    assert exp(-entropy) < 1
