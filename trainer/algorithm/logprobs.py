"""Log-probabilities and entropies from hidden states, in chunks: the full logits never exist at once.

The backward pass makes each chunk's logits again, so peak memory is one chunk (CHUNK_LOGITS floats). Logits, scores and
the sum of the head's gradient are float32 whatever the type of the operands.
"""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK_LOGITS = 1 << 21


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Both (tokens,), nats, and differentiable."""

    logprobs: Tensor
    entropies: Tensor


def score_tokens(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float = 1.0) -> TokenScores:
    """Scores of `targets` (tokens,) under softmax(hidden @ head.T / temperature).

    `hidden`: (tokens, width) at the positions that predict the targets; `head`: (vocabulary, width).
    """
    logprobs, entropies = _ChunkedScores.apply(hidden, head, targets, temperature)
    return TokenScores(logprobs, entropies)


class _ChunkedScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        count = hidden.shape[0]
        kind = torch.promote_types(hidden.dtype, torch.float32)
        logprobs, entropies, normalisers = (hidden.new_empty(count, dtype=kind) for _ in range(3))
        rows = _chunk_rows(head)
        for start in range(0, count, rows):
            part = slice(start, min(start + rows, count))
            logits = _multiply(hidden[part], head.t()).div_(temperature)
            normaliser = torch.logsumexp(logits, -1)
            normalisers[part] = normaliser
            logprobs[part] = logits.gather(-1, targets[part, None])[:, 0] - normaliser
            # H = log Z - sum p * logit
            entropies[part] = normaliser - ((logits - normaliser[:, None]).exp_() * logits).sum(-1)
        ctx.save_for_backward(hidden, head, targets, normalisers, entropies)
        ctx.temperature = temperature
        ctx.set_materialize_grads(False)  # entropies cost nothing where the loss does not use them
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor, Tensor, None, None]:
        hidden, head, targets, normalisers, entropies = ctx.saved_tensors
        of_logprobs = torch.zeros_like(entropies) if grads[0] is None else grads[0] / ctx.temperature
        of_entropies = None if grads[1] is None else grads[1] / ctx.temperature
        grad_hidden, grad_head = torch.empty_like(hidden), torch.zeros_like(head, dtype=entropies.dtype)
        rows = _chunk_rows(head)
        for start in range(0, hidden.shape[0], rows):
            part = slice(start, min(start + rows, hidden.shape[0]))
            logprobs = _multiply(hidden[part], head.t()).div_(ctx.temperature).sub_(normalisers[part, None])
            of_entropy = None
            if of_entropies is not None:  # d H / d logits = - p * (log p + H)
                of_entropy = (logprobs + entropies[part, None]).mul_(logprobs.exp()).mul_(-of_entropies[part, None])
            # d logp / d logits = onehot - softmax
            delta = logprobs.exp_().mul_(-of_logprobs[part, None])
            delta.scatter_add_(1, targets[part, None], of_logprobs[part, None])
            if of_entropy is not None:
                delta.add_(of_entropy)
            delta = delta.to(hidden.dtype)
            grad_hidden[part] = delta @ head
            if delta.dtype is grad_head.dtype:
                grad_head.addmm_(delta.t(), hidden[part])
            else:
                grad_head += _multiply(delta.t(), hidden[part])
        return grad_hidden, grad_head.to(head.dtype), None, None


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in float32 (float64 for such operands), not rounded to half precision in between."""
    if a.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()
    return a @ b


def _chunk_rows(head: Tensor) -> int:
    return max(1, CHUNK_LOGITS // head.shape[0])
