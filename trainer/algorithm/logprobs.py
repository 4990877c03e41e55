"""Log-probabilities and entropies from hidden states, in chunks: the full logits never exist at once.

Peak memory is a few chunks (of CHUNK_LOGITS floats). `score_tokens` makes each chunk's logits again in the backward
pass; `apply_loss` needs them once, since it is given the loss and makes its gradient on the way. Logits, scores and the
sum of the head's gradient are float32 whatever the type of the operands.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

CHUNK_LOGITS = 1 << 22  # 16 MB; half as many cost a tenth more time at a vocabulary of 32,000, twice as many a third


@dataclass(frozen=True, slots=True)
class TokenScores:
    """Both (tokens,), nats, and differentiable."""

    logprobs: Tensor
    entropies: Tensor


LossOf = Callable[[slice, TokenScores], Tensor]


def score_tokens(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float = 1.0) -> TokenScores:
    """Scores of `targets` (tokens,) under softmax(hidden @ head.T / temperature).

    `hidden`: (tokens, width) at the positions that predict the targets; `head`: (vocabulary, width).
    """
    logprobs, entropies = _ChunkedScores.apply(hidden, head, targets, temperature)
    return TokenScores(logprobs, entropies)


def apply_loss(
    hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, loss_of: LossOf
) -> tuple[Tensor, TokenScores]:
    """A loss that is a sum over tokens, differentiable, with the scores it was made of, which are not.

    `loss_of` gives the share of the loss of some neighbouring tokens from their scores; it is called for each chunk,
    for an empty one where there are no tokens. A quarter of what `score_tokens` multiplies in both passes is saved.
    """
    loss, logprobs, entropies = _ChunkedLoss.apply(hidden, head, targets, temperature, loss_of)
    return loss, TokenScores(logprobs, entropies)


class _ChunkedScores(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
        logprobs, entropies, normalisers = _empty(hidden, 3)
        for part in _chunks(hidden, head):
            chunk = _score(hidden[part], head, targets[part], temperature)
            logprobs[part], entropies[part], normalisers[part] = chunk.logprobs, chunk.entropies, chunk.normalisers
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
        for part in _chunks(hidden, head):
            logprobs = _multiply(hidden[part], head.t()).div_(ctx.temperature).sub_(normalisers[part, None])
            of_entropy = None if of_entropies is None else (of_entropies[part], entropies[part])
            delta = _differentiate(logprobs, logprobs.exp(), targets[part], of_logprobs[part], of_entropy)
            _add_gradients(delta, hidden, head, part, grad_hidden, grad_head)
        return grad_hidden, grad_head.to(head.dtype), None, None


class _ChunkedLoss(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, head: Tensor, targets: Tensor, temperature: float, loss_of: LossOf
    ) -> tuple[Tensor, Tensor, Tensor]:
        logprobs, entropies = _empty(hidden, 2)
        grad_hidden, grad_head = torch.empty_like(hidden), torch.zeros_like(head, dtype=entropies.dtype)
        loss = entropies.new_zeros(())
        for part in _chunks(hidden, head):
            chunk = _score(hidden[part], head, targets[part], temperature)
            logprobs[part], entropies[part] = chunk.logprobs, chunk.entropies
            with torch.enable_grad():
                leaves = TokenScores(chunk.logprobs.requires_grad_(), chunk.entropies.requires_grad_())
                share = loss_of(part, leaves)
                grads = torch.autograd.grad(share, (leaves.logprobs, leaves.entropies), allow_unused=True)
            loss += share.detach()
            of_logprobs = torch.zeros_like(logprobs[part]) if grads[0] is None else grads[0] / temperature
            of_entropy = None if grads[1] is None else (grads[1] / temperature, entropies[part])
            delta = _differentiate(chunk.all_logprobs, chunk.probabilities, targets[part], of_logprobs, of_entropy)
            _add_gradients(delta, hidden, head, part, grad_hidden, grad_head)
        ctx.save_for_backward(grad_hidden, grad_head.to(head.dtype))
        ctx.mark_non_differentiable(logprobs, entropies)
        ctx.set_materialize_grads(False)
        return loss, logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Tensor | None, Tensor | None, None, None, None]:
        if grads[0] is None:
            return None, None, None, None, None
        grad_hidden, grad_head = ctx.saved_tensors
        return grad_hidden * grads[0].to(grad_hidden.dtype), grad_head * grads[0].to(grad_head.dtype), None, None, None


@dataclass(frozen=True, slots=True)
class _Chunk:
    """(tokens,) but for the last two, which are (tokens, vocabulary)."""

    logprobs: Tensor
    entropies: Tensor
    normalisers: Tensor
    all_logprobs: Tensor
    probabilities: Tensor


def _score(hidden: Tensor, head: Tensor, targets: Tensor, temperature: float) -> _Chunk:
    logits = _multiply(hidden, head.t()).div_(temperature)
    normalisers = torch.logsumexp(logits, -1)
    all_logprobs = logits.sub_(normalisers[:, None])
    probabilities = all_logprobs.exp()
    entropies = -(probabilities * all_logprobs).sum(-1)
    return _Chunk(all_logprobs.gather(-1, targets[:, None])[:, 0], entropies, normalisers, all_logprobs, probabilities)


def _differentiate(
    all_logprobs: Tensor,
    probabilities: Tensor,
    targets: Tensor,
    of_logprobs: Tensor,
    of_entropies: tuple[Tensor, Tensor] | None,
) -> Tensor:
    """The loss by the logits, (tokens, vocabulary), from that by log-probabilities and, with their values, entropies.

    d logp / d logits = onehot - p, d H / d logits = - p * (log p + H). Overwrites the probabilities.
    """
    of_entropy = None
    if of_entropies is not None:
        gradients, values = of_entropies
        of_entropy = (all_logprobs + values[:, None]).mul_(probabilities).mul_(-gradients[:, None])
    delta = probabilities.mul_(-of_logprobs[:, None]).scatter_add_(1, targets[:, None], of_logprobs[:, None])
    return delta if of_entropy is None else delta.add_(of_entropy)


def _add_gradients(
    delta: Tensor, hidden: Tensor, head: Tensor, part: slice, grad_hidden: Tensor, grad_head: Tensor
) -> None:
    delta = delta.to(hidden.dtype)
    grad_hidden[part] = delta @ head
    if delta.dtype is grad_head.dtype:
        grad_head.addmm_(delta.t(), hidden[part])
    else:
        grad_head += _multiply(delta.t(), hidden[part])


def _multiply(a: Tensor, b: Tensor) -> Tensor:
    """a @ b in float32 (float64 for such operands), not rounded to half precision in between."""
    if a.dtype in (torch.bfloat16, torch.float16):
        return torch.mm(a, b, out_dtype=torch.float32) if a.is_cuda else a.float() @ b.float()
    return a @ b


def _empty(hidden: Tensor, count: int) -> list[Tensor]:
    """So many (tokens,) of at least float32."""
    kind = torch.promote_types(hidden.dtype, torch.float32)
    return [hidden.new_empty(hidden.shape[0], dtype=kind) for _ in range(count)]


def _chunks(hidden: Tensor, head: Tensor) -> Iterator[slice]:
    """At least one, if empty."""
    count, rows = hidden.shape[0], max(1, CHUNK_LOGITS // head.shape[0])
    for start in range(0, max(1, count), rows):
        yield slice(start, min(start + rows, count))
