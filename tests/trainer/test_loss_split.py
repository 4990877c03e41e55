"""The gradient of an update does not depend on how its rollouts are dealt to micro-batches and ranks (1e-6).

On the project's base model, with every term of the loss at work.
"""

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

from contracts.recipe import LossAggregation, LossTerm, RlStage
from trainer.algorithm.packing import Row
from trainer.policy.learner import FixedLogprobs, Sample, accumulate_gradients, fix_logprobs
from trainer.policy.model import load_model

TERMS = {LossTerm.DUAL_CLIP: 1.5, LossTerm.KL_K3: 0.1, LossTerm.ENTROPY: 0.01, LossTerm.TIS: 1.1}
ROLLOUTS, LENGTH = 8, 60  # all sequences as long as each other: a budget of n * LENGTH holds n of them


@cache
def base_model() -> Qwen3ForCausalLM:
    return load_model(Path(__file__).parents[2] / "models" / "tiny-base")


@cache
def samples() -> tuple[Sample, ...]:
    """Two groups; rollout i has 10 to 52 trained tokens, so that means of means would differ."""
    generator = torch.Generator().manual_seed(1)
    made = []
    for i in range(ROLLOUTS):
        ids = torch.randint(3, base_model().config.vocab_size, (LENGTH,), generator=generator).tolist()
        trained = 10 + 6 * i
        mask = [int(j < trained) for j in range(LENGTH - 4)]
        made.append(Sample(Row(ids[:4], ids[4:], mask), f"g{i // 4}", (-1.0) ** i * (1 + i / 3), [0.0] * trained))
    return tuple(made)


@cache
def fixed() -> FixedLogprobs:
    """Old, engine's and reference log-probabilities that differ from the model's by up to half a nat."""
    generator = torch.Generator().manual_seed(2)

    def move(rows: Sequence[Tensor]) -> list[Tensor]:
        return [row + torch.rand(row.shape, generator=generator) - 0.5 for row in rows]

    old = fix_logprobs(base_model(), samples(), stage=RlStage(name="rl")).old
    return FixedLogprobs(move(old), move(old), move(old), [None] * len(old))


def gradient(stage: RlStage, ranks: Sequence[Sequence[int]], rollouts_a_micro_batch: int) -> Tensor:
    """All gradients in one row, summed over the ranks; each rank has only its own rollouts."""
    model = base_model()
    total = torch.zeros(sum(p.numel() for p in model.parameters()))
    for own in ranks:
        model.zero_grad()
        shares = accumulate_gradients(
            model,
            samples(),
            fixed(),
            update=range(ROLLOUTS),
            stage=stage,
            own=own,
            token_budget=rollouts_a_micro_batch * LENGTH,
        )
        assert len(shares) == -(-len(own) // rollouts_a_micro_batch)
        total += torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    return total


RANKS = {
    "1": [range(8)],
    "2": [range(4), range(4, 8)],
    "2 uneven": [[1, 6, 3], [0, 2, 4, 5, 7]],
    "4": [[0, 7], [1, 6], [2, 5], [3, 4]],
}


@pytest.mark.parametrize("aggregation", list(LossAggregation))
def test_any_split_gives_the_same_gradient(aggregation: LossAggregation) -> None:
    stage = RlStage(name="rl", loss_aggregation=aggregation, loss_terms=TERMS)
    whole = gradient(stage, RANKS["1"], 8)
    assert whole.norm() > 0
    for name, ranks in RANKS.items():
        for rollouts in (8, 4, 2):  # 1, 2 and 4 micro-batches where one rank has all
            difference = (gradient(stage, ranks, rollouts) - whole).norm() / whole.norm()
            assert difference < 1e-6, f"{name} ranks, {rollouts} rollouts a micro-batch: {difference:.1e}"


def test_the_mean_of_micro_batch_means_would_be_another() -> None:
    """The mistake this guards against is larger than what is asserted."""
    stage = RlStage(name="rl", loss_aggregation=LossAggregation.TOKEN, loss_terms=TERMS)
    whole = gradient(stage, RANKS["1"], 8)
    wrong = torch.zeros_like(whole)
    for update in (range(4), range(4, 8)):
        base_model().zero_grad()
        accumulate_gradients(base_model(), samples(), fixed(), update=update, stage=stage)
        wrong += torch.cat([p.grad.flatten() for p in base_model().parameters() if p.grad is not None]) / 2
    base_model().zero_grad()
    assert (wrong - whole).norm() / whole.norm() > 1e-3
