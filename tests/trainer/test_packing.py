"""Micro-batches: the budget, the positions of trained tokens, and what has no gradient."""

import torch

from contracts.recipe import RlStage
from tests.trainer.tiny import make_model
from trainer.algorithm.packing import Row, pad_rows, split_micro_batches
from trainer.policy.learner import FixedLogprobs, Sample, accumulate_gradients, fix_logprobs
from trainer.policy.model import compute_logprobs


def test_rows_are_split_under_the_budget_longest_first() -> None:
    assert split_micro_batches([3, 9, 5, 5], 10) == [[1], [2, 3], [0]]
    assert split_micro_batches([3, 9, 5, 5], 1000) == [[1, 2, 3, 0]]
    assert split_micro_batches([50], 10) == [[0]]
    assert split_micro_batches([], 10) == []


def test_a_trained_token_is_predicted_one_position_before_it() -> None:
    batch = pad_rows([Row([7, 8], [1, 2, 3], [1, 0, 1]), Row([9], [4], [1])], pad_id=0)
    assert batch.ids.tolist() == [[7, 8, 1, 2, 3], [9, 4, 0, 0, 0]]
    assert batch.sources.tolist() == [1, 3, 5]
    assert batch.targets.tolist() == [1, 3, 4]


def samples() -> list[Sample]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for i in range(8):
        length = 5 + 3 * i
        ids = torch.randint(3, 60, (length,), generator=generator).tolist()
        mask = [int(j % 4 != 2) for j in range(length - 3)]
        made.append(Sample(Row(ids[:3], ids[3:], mask), f"g{i // 4}", (-1.0) ** i * (1 + i / 3), [0.0] * sum(mask)))
    return made


def test_masked_tokens_have_no_gradient() -> None:
    model = make_model()
    row = Row([5, 6], [7, 8, 9, 10], [1, 0, 0, 0])
    stage = RlStage(name="rl")
    fixed = FixedLogprobs(compute_logprobs(model, [row], 1.0), [torch.zeros(1)], None)
    results = []
    for tail in ([8, 9, 10], [20, 21, 22]):
        model.zero_grad()
        changed = Sample(Row(row.prompt_ids, [7, *tail], row.mask), "g", 1.0, [])
        accumulate_gradients(model, [changed], fixed, update=[0], stage=stage)
        results.append(model.lm_head.weight.grad.clone())
    torch.testing.assert_close(results[0], results[1])


def test_the_first_ratio_is_one() -> None:
    model = make_model()
    stage = RlStage(name="rl", sampling={"temperature": 0.7})
    fixed = fix_logprobs(model, samples(), stage=stage)
    terms = accumulate_gradients(model, samples(), fixed, update=range(8), stage=stage)
    assert max(t.ratio_max for t in terms) == 1.0
    assert sum(t.clipped_tokens for t in terms) == 0
