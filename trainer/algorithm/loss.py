"""The clipped policy loss (rStar2-Agent eq. 6) with denominators counted over the whole step or update.

A loss is a masked sum weighted per rollout; the weights are made before the rollouts are split into
micro-batches, so any split gives the same gradient. No KL and no entropy term.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from contracts.recipe import LossAggregation

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class Clip:
    """The ratio is clipped to [1 - low, 1 + high]; `high` > `low` is clip-higher."""

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One micro-batch. `logprobs`, `old_logprobs`: (tokens,) nats, policy tokens only, rollouts one after
    another; `advantages`, `weights`: (tokens,), each rollout's value spread on its tokens."""

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    weights: Tensor


@dataclass(frozen=True, slots=True)
class LossTerms:
    """`loss` is this micro-batch's share of the update's loss: shares add up. Counts are of policy tokens."""

    loss: Tensor
    clipped_tokens: int
    tokens: int
    ratio_max: float


def make_weights(
    aggregation: LossAggregation, lengths: Sequence[int], groups: Sequence[str], update: Sequence[int]
) -> list[float]:
    """The weight of every token of each rollout in `update` (positions into `lengths` and `groups`).

    `lengths` are policy tokens, `groups` the prompt ids of all rollouts kept in the step.
    group_token: 1 / (tokens of its group in the step * groups of the step), scaled by step / update size, so
    that the updates' gradients average to that of eq. 6 however groups fall into mini-batches.
    token: 1 / tokens of the update. sequence: 1 / (own tokens * rollouts of the update) (eq. 1).
    """
    match aggregation:
        case LossAggregation.GROUP_TOKEN:
            tokens = Counter[str]()
            for group, length in zip(groups, lengths, strict=True):
                tokens[group] += length
            scale = len(lengths) / len(update) / sum(1 for count in tokens.values() if count)
            return [scale / tokens[groups[i]] if lengths[i] else 0.0 for i in update]
        case LossAggregation.TOKEN:
            total = sum(lengths[i] for i in update)
            return [1 / total if total else 0.0 for _ in update]
        case LossAggregation.SEQUENCE:
            return [1 / (lengths[i] * len(update)) if lengths[i] else 0.0 for i in update]


def policy_loss(inputs: LossInputs, clip: Clip) -> LossTerms:
    """- sum of weight * min(ratio * A, clip(ratio) * A); 0 with a graph for an empty micro-batch."""
    log_ratio = (inputs.logprobs - inputs.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    ratio = log_ratio.exp()
    plain = ratio * inputs.advantages
    clipped = ratio.clamp(1 - clip.low, 1 + clip.high) * inputs.advantages
    loss = -(torch.minimum(plain, clipped) * inputs.weights).sum()
    tokens = ratio.numel()
    return LossTerms(
        loss=loss,
        clipped_tokens=int((clipped < plain).sum()),
        tokens=tokens,
        ratio_max=float(ratio.detach().max()) if tokens else 0.0,
    )
