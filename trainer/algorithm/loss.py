"""The clipped policy loss (rStar2-Agent eq. 6), and what a recipe may add to it by name.

A loss is a masked sum weighted per rollout; the weights are made before the rollouts are split into
micro-batches or ranks, so any split gives the same gradient. docs/decisions/loss.md says where each
addition comes from. The paper has none of them.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from contracts.recipe import LossAggregation, LossTerm

MAX_LOG_RATIO = 20.0


@dataclass(frozen=True, slots=True)
class LossRule:
    """The ratio is clipped to [1 - low, 1 + high]; `high` > `low` is clip-higher. `terms`: see `LossTerm`."""

    low: float
    high: float
    terms: Mapping[LossTerm, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LossInputs:
    """One micro-batch: (tokens,) each, policy tokens only, rollouts one after another; log-probabilities in nats.

    `advantages` and `weights`: each rollout's value on its tokens. The others are of use to one term each:
    `sampling_logprobs` (the engine's) to TIS, `reference_logprobs` to KL, `entropies` (with gradient) to entropy.
    """

    logprobs: Tensor
    old_logprobs: Tensor
    advantages: Tensor
    weights: Tensor
    sampling_logprobs: Tensor | None = None
    reference_logprobs: Tensor | None = None
    entropies: Tensor | None = None


@dataclass(frozen=True, slots=True)
class LossShare:
    """`loss` is this micro-batch's share of the update's loss: shares add up. Counts are of policy tokens."""

    loss: Tensor
    clipped_tokens: int
    dual_clipped_tokens: int
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


def policy_loss(inputs: LossInputs, rule: LossRule) -> LossShare:
    """- sum of weight * min(ratio * A, clip(ratio) * A), with the rule's terms; 0 with a graph without tokens.

    ValueError for a term whose input is missing.
    """
    ratio = (inputs.logprobs - inputs.old_logprobs).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).exp()
    advantages = inputs.advantages
    if LossTerm.KL_K1 in rule.terms:
        advantages = advantages - rule.terms[LossTerm.KL_K1] * _log_ratio_to_reference(inputs.old_logprobs, inputs)
    plain = ratio * advantages
    clipped = ratio.clamp(1 - rule.low, 1 + rule.high) * advantages
    gain = torch.minimum(plain, clipped)
    dual_clipped = 0
    if LossTerm.DUAL_CLIP in rule.terms:
        bound = rule.terms[LossTerm.DUAL_CLIP] * advantages
        is_below = (advantages < 0) & (gain < bound)
        dual_clipped = int(is_below.sum())
        gain = torch.where(is_below, bound, gain)
    if LossTerm.TIS in rule.terms:
        sampling = _required(inputs.sampling_logprobs, LossTerm.TIS)
        gain = gain * importance_weights(inputs.old_logprobs, sampling, rule.terms[LossTerm.TIS])
    gain = gain + _regularisers(inputs, rule.terms) if rule.terms else gain
    tokens = ratio.numel()
    return LossShare(
        loss=-(gain * inputs.weights).sum(),
        clipped_tokens=int((clipped < plain).sum()),
        dual_clipped_tokens=dual_clipped,
        tokens=tokens,
        ratio_max=float(ratio.detach().max()) if tokens else 0.0,
    )


def add_shares(shares: Sequence[LossShare]) -> LossShare:
    """Of at least one part of a micro-batch, the whole."""
    return LossShare(
        loss=torch.stack([share.loss for share in shares]).sum(),
        clipped_tokens=sum(share.clipped_tokens for share in shares),
        dual_clipped_tokens=sum(share.dual_clipped_tokens for share in shares),
        tokens=sum(share.tokens for share in shares),
        ratio_max=max(share.ratio_max for share in shares),
    )


def importance_weights(old_logprobs: Tensor, sampling_logprobs: Tensor, cap: float) -> Tensor:
    """min(trainer / engine, cap) token by token, without gradient: truncated importance sampling."""
    log_weights = (old_logprobs - sampling_logprobs).detach().clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    return log_weights.exp().clamp(max=cap)


def estimate_kl(term: LossTerm, log_ratio: Tensor) -> Tensor:
    """Schulman's estimators of KL(policy, reference) token by token, from log(policy / reference) of policy samples.

    k1 = x, k2 = x^2 / 2, k3 = exp(-x) - 1 + x.
    """
    match term:
        case LossTerm.KL_K1:
            return log_ratio
        case LossTerm.KL_K2:
            return log_ratio.square() / 2
        case LossTerm.KL_K3:
            return torch.expm1(-log_ratio) + log_ratio
    raise ValueError(f"{term} is no estimator of KL")


def _regularisers(inputs: LossInputs, terms: Mapping[LossTerm, float]) -> Tensor:
    """- coefficient * KL + coefficient * entropy, (tokens,)."""
    total = torch.zeros_like(inputs.logprobs)
    for term, coefficient in terms.items():
        if term in (LossTerm.KL_K2, LossTerm.KL_K3):
            total = total - coefficient * estimate_kl(term, _log_ratio_to_reference(inputs.logprobs, inputs))
        if term is LossTerm.ENTROPY:
            total = total + coefficient * _required(inputs.entropies, term)
    return total


def _log_ratio_to_reference(logprobs: Tensor, inputs: LossInputs) -> Tensor:
    reference = _required(inputs.reference_logprobs, "a KL term")
    return (logprobs - reference).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)


def _required(values: Tensor | None, term: str) -> Tensor:
    if values is None:
        raise ValueError(f"{term} has nothing to work with: its values were not given")
    return values


@dataclass(frozen=True, slots=True)
class Mismatch:
    """How far trainer and engine disagree on the same tokens and weights, before the first update."""

    gap_mean: float  # mean |trainer - engine|, nats
    gap_max: float
    kl: float  # KL(engine, trainer), k3 estimate over the engine's samples, nats
    capped_share: float  # share of tokens whose weight trainer / engine exceeds the cap


def measure_mismatch(old_logprobs: Tensor, sampling_logprobs: Tensor, cap: float) -> Mismatch:
    """Of (tokens,) log-probabilities, at least one; in float64, since equal ones cancel."""
    gaps = old_logprobs.double() - sampling_logprobs.double()
    return Mismatch(
        gap_mean=float(gaps.abs().mean()),
        gap_max=float(gaps.abs().max()),
        kl=float(estimate_kl(LossTerm.KL_K3, -gaps.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)).mean()),
        capped_share=float((gaps.exp() > cap).double().mean()),
    )
