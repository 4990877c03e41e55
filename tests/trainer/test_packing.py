"""Micro-batches: the budget, the positions of trained tokens, and what has no gradient."""

from collections.abc import Callable

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedModel

from contracts.recipe import RlStage
from tests.trainer.tiny import make_model
from trainer.algorithm.logprobs import score_tokens
from trainer.algorithm.packing import Row, balance_rows, pack_rows, split_micro_batches
from trainer.policy import packed
from trainer.policy.learner import FixedLogprobs, Sample, accumulate_gradients, fix_logprobs
from trainer.policy.model import compute_logprobs, compute_scores, score_part


def test_rows_are_split_under_the_budget_first_fit_decreasing() -> None:
    assert split_micro_batches([3, 9, 5, 5], 12) == [[1, 0], [2, 3]]
    assert split_micro_batches([3, 9, 5, 5], 10) == [[1], [2, 3], [0]]
    assert split_micro_batches([3, 9, 5, 5], 22) == [[1, 2, 3, 0]]
    assert split_micro_batches([50], 10) == [[0]]
    assert split_micro_batches([], 10) == []


def test_rows_are_dealt_to_ranks_longest_first_to_the_least_loaded() -> None:
    assert balance_rows([7, 1, 5, 4, 3], 2, width=10_000) == [[0, 4], [2, 3, 1]]
    assert balance_rows([1], 2, width=8) == [[0], []]
    assert balance_rows([4, 4], 1, width=8) == [[0, 1]]
    # Attention costs as much as the rest at 12 * width tokens: one row of 24 is dearer than two of 12.
    assert balance_rows([24, 12, 12, 1], 2, width=1) == [[0], [1, 2, 3]]


def test_a_trained_token_is_predicted_one_position_before_it() -> None:
    batch = pack_rows([Row([7, 8], [1, 2, 3], [1, 0, 1]), Row([9], [4], [1])])
    assert batch.ids.tolist() == [7, 8, 1, 2, 3, 9, 4]
    assert batch.positions.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert batch.lengths == [5, 2]
    assert batch.sources.tolist() == [1, 3, 5]
    assert batch.targets.tolist() == [1, 3, 4]


def make_llama() -> LlamaForCausalLM:
    torch.manual_seed(0)
    sizes = {"vocab_size": 267, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2}
    return LlamaForCausalLM(LlamaConfig(**sizes, num_attention_heads=2, num_key_value_heads=1)).eval()


@pytest.mark.parametrize("make", [make_model, make_llama])
def test_a_row_scores_the_same_whatever_it_is_packed_with(make: Callable[[], PreTrainedModel]) -> None:
    model = make()
    rows = [sample.row for sample in samples()]
    packed = compute_scores(model, rows, 0.7)
    for row, scores in zip(rows, packed, strict=True):
        ids = torch.tensor([[*row.prompt_ids, *row.response_ids]])
        naive = torch.log_softmax(model(input_ids=ids).logits[0] / 0.7, -1)
        at = [len(row.prompt_ids) + t for t, m in enumerate(row.mask) if m]
        picked = torch.stack([naive[t - 1, ids[0, t]] for t in at])
        torch.testing.assert_close(scores.logprobs, picked, atol=1e-5, rtol=1e-5)
        entropies = torch.stack([-(naive[t - 1].exp() * naive[t - 1]).sum() for t in at])
        torch.testing.assert_close(scores.entropies, entropies, atol=1e-5, rtol=1e-5)


def test_the_head_is_never_run_on_other_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []
    monkeypatch.setattr(packed, "score_tokens", lambda hidden, *_: seen.append(len(hidden)) or score_tokens(hidden, *_))
    rows = [sample.row for sample in samples()]
    compute_scores(make_model(), rows, 1.0)
    assert sum(seen) == sum(sum(row.mask) for row in rows)


def test_no_rows_at_all_have_a_loss_of_zero_with_a_graph() -> None:
    model = make_model()
    part = score_part(model, [], [])
    part.scores.logprobs.sum().backward()
    stage = RlStage(name="rl")
    fixed = fix_logprobs(model, samples(), stage=stage)
    assert accumulate_gradients(model, samples(), fixed, update=range(8), stage=stage, own=[]) == []
    assert all(p.grad is None or not p.grad.any() for p in model.parameters())


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
    fixed = FixedLogprobs(compute_logprobs(model, [row], 1.0), [torch.zeros(1)], None, [None])
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


def test_one_update_takes_its_old_logprobs_from_its_own_pass() -> None:
    """As if they had been computed before it, bit for bit."""
    model, stage = make_model(), RlStage(name="rl", loss_terms={"tis": 1.5})
    gradients = []
    for with_old in (True, False):
        model.zero_grad()
        fixed = fix_logprobs(model, samples(), stage=stage, with_old=with_old)
        accumulate_gradients(model, samples(), fixed, update=range(8), stage=stage)
        gradients.append([p.grad.clone() for p in model.parameters()])
        olds = torch.cat(fixed.old)
        assert torch.equal(olds, torch.cat(compute_logprobs(model, [s.row for s in samples()], 1.0)))
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))
