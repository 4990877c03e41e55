"""Chunked scores against naive ones in fp32."""

import math

import pytest
import torch

from trainer.algorithm import logprobs
from trainer.algorithm.logprobs import apply_loss, score_tokens

VOCABULARY, WIDTH, TOKENS = 37, 8, 29


def tensors(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator, dtype=dtype, requires_grad=True)
    head = torch.randn(VOCABULARY, WIDTH, generator=generator, dtype=dtype, requires_grad=True)
    return hidden, head, torch.randint(0, VOCABULARY, (TOKENS,), generator=generator)


@pytest.mark.parametrize("rows", [1, 4, 1000])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_values_and_gradients_equal_the_naive_ones(
    rows: int, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", rows * VOCABULARY)
    hidden, head, targets = tensors()
    scale = torch.linspace(-1, 2, TOKENS)
    scores = score_tokens(hidden, head, targets, temperature)
    got = torch.autograd.grad((scores.logprobs * scale).sum(), (hidden, head))
    naive = torch.log_softmax(hidden @ head.t() / temperature, -1)
    picked = naive.gather(-1, targets[:, None])[:, 0]
    expected = torch.autograd.grad((picked * scale).sum(), (hidden, head))
    torch.testing.assert_close(scores.logprobs, picked, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(scores.entropies, -(naive.exp() * naive).sum(-1), atol=1e-5, rtol=1e-5)
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("rows", [1, 4, 1000])
@pytest.mark.parametrize("with_logprobs", [True, False])
def test_entropies_have_the_naive_gradient(rows: int, with_logprobs: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", rows * VOCABULARY)
    hidden, head, targets = tensors(torch.float64)
    scale = torch.linspace(-1, 2, TOKENS, dtype=torch.float64)
    scores = score_tokens(hidden, head, targets, 0.6)
    naive = torch.log_softmax(hidden @ head.t() / 0.6, -1)
    entropies = -(naive.exp() * naive).sum(-1)
    picked = naive.gather(-1, targets[:, None])[:, 0] if with_logprobs else torch.zeros(TOKENS)
    got = torch.autograd.grad((scores.entropies * scale + with_logprobs * scores.logprobs).sum(), (hidden, head))
    expected = torch.autograd.grad((entropies * scale + picked).sum(), (hidden, head))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_the_gradient_of_an_entropy_by_hand() -> None:
    # logits log 3 and 0: p = 3/4, 1/4, H = 0.562335; dH/dz = -p (log p + H) = -0.205990 and 0.205990
    hidden = torch.tensor([[1.0]], requires_grad=True)
    head = torch.tensor([[math.log(3)], [0.0]])
    entropy = score_tokens(hidden, head, torch.tensor([0])).entropies
    assert float(entropy.detach()) == pytest.approx(0.562335)
    entropy.sum().backward()
    assert hidden.grad is not None and float(hidden.grad) == pytest.approx(-0.205990 * math.log(3), rel=1e-5)


def test_no_tokens_at_all() -> None:
    hidden, head, _ = tensors()
    scores = score_tokens(hidden[:0], head, torch.empty(0, dtype=torch.long))
    scores.logprobs.sum().backward()
    assert scores.logprobs.shape == (0,)


@pytest.mark.parametrize("rows", [1, 4, 1000])
@pytest.mark.parametrize("with_entropy", [True, False])
def test_a_loss_made_on_the_way_has_the_gradient_of_one_made_after(
    rows: int, with_entropy: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logprobs, "CHUNK_LOGITS", rows * VOCABULARY)
    hidden, head, targets = tensors(torch.float64)
    scale = torch.linspace(-1, 2, TOKENS, dtype=torch.float64)

    def loss_of(part: slice, scores: logprobs.TokenScores) -> torch.Tensor:
        share = (scores.logprobs.exp() * scale[part]).sum()
        return share + scores.entropies.square().sum() if with_entropy else share

    loss, scores = apply_loss(hidden, head, targets, 0.6, loss_of)
    got = torch.autograd.grad(3 * loss, (hidden, head))
    later = score_tokens(hidden, head, targets, 0.6)
    expected = torch.autograd.grad(3 * loss_of(slice(None), later), (hidden, head))
    assert torch.equal(scores.logprobs, later.logprobs)
    assert torch.equal(scores.entropies, later.entropies)
    assert not scores.logprobs.requires_grad
    torch.testing.assert_close(loss, loss_of(slice(None), later))
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def test_half_precision_scores_in_float32() -> None:
    hidden, head, targets = (t.detach().bfloat16() if t.is_floating_point() else t for t in tensors())
    hidden.requires_grad_()
    head.requires_grad_()
    scores = score_tokens(hidden, head, targets)
    exact = score_tokens(hidden.float(), head.float(), targets)
    assert scores.logprobs.dtype is torch.float32
    torch.testing.assert_close(scores.logprobs, exact.logprobs)
    loss, _ = apply_loss(hidden, head, targets, 1.0, lambda _, chunk: chunk.logprobs.sum())
    for made in (scores.logprobs.sum(), loss):
        grads = torch.autograd.grad(made, (hidden, head))
        expected = torch.autograd.grad(exact.logprobs.sum(), (hidden, head), retain_graph=True)
        for a, b in zip(grads, expected, strict=True):
            assert a.dtype is torch.bfloat16
            torch.testing.assert_close(a, b, atol=0.05, rtol=0.02)
