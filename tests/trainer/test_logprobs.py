"""Chunked scores against naive ones in fp32."""

import pytest
import torch

from trainer.algorithm import logprobs
from trainer.algorithm.logprobs import score_tokens

VOCABULARY, WIDTH, TOKENS = 37, 8, 29


def tensors() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(3)
    hidden = torch.randn(TOKENS, WIDTH, generator=generator, requires_grad=True)
    head = torch.randn(VOCABULARY, WIDTH, generator=generator, requires_grad=True)
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


def test_entropies_carry_no_gradient() -> None:
    assert not score_tokens(*tensors()).entropies.requires_grad


def test_no_tokens_at_all() -> None:
    hidden, head, _ = tensors()
    scores = score_tokens(hidden[:0], head, torch.empty(0, dtype=torch.long))
    scores.logprobs.sum().backward()
    assert scores.logprobs.shape == (0,)
