"""One step of learning from the kept rollouts: old log-probabilities once, then clipped updates."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW
from transformers import Qwen3ForCausalLM

from contracts.recipe import LossTerm, RlStage
from trainer.algorithm.loss import (
    DEFAULT_CAP,
    LossInputs,
    LossRule,
    LossShare,
    Mismatch,
    estimate_kl,
    make_weights,
    measure_mismatch,
    policy_loss,
)
from trainer.algorithm.packing import Row
from trainer.policy.model import MICRO_BATCH_TOKENS, ScoredPart, compute_logprobs, score_rows
from trainer.policy.optimizer import apply_update


@dataclass(frozen=True, slots=True)
class Sample:
    """A kept rollout. `sampling_logprobs`: of its trained tokens, as the engine gave them, nats."""

    row: Row
    group: str
    advantage: float
    sampling_logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class FixedLogprobs:
    """What stays the same over the updates of a step: of each sample's trained tokens (tokens,), nats."""

    old: list[Tensor]
    sampling: list[Tensor]
    reference: list[Tensor] | None


@dataclass(frozen=True, slots=True)
class LearnReport:
    """Means are over the updates; `mismatch` and `kl_reference` (None without a KL term) are before the first one."""

    updates: int
    loss: float
    grad_norm: float
    ratio_max: float
    clipped_share: float
    dual_clipped_share: float
    mismatch: Mismatch
    kl_reference: float | None


def learn(
    model: Qwen3ForCausalLM,
    optimizer: AdamW,
    samples: Sequence[Sample],
    *,
    stage: RlStage,
    rate: float,
    seed: int,
    reference: Qwen3ForCausalLM | None = None,
) -> LearnReport:
    """`stage.epochs` passes in mini-batches. The ratio's denominator is the trainer's own log-probability
    before the first update, so that numerical noise of the engine is measured but never learned from, unless
    the recipe weighs by it (TIS). `reference`: the policy that a KL term holds on to."""
    fixed = fix_logprobs(model, samples, stage=stage, reference=reference)
    order = np.random.default_rng(seed)
    norms, shares = [], []
    for _ in range(stage.epochs):
        permuted = [int(i) for i in order.permutation(len(samples))]
        size = stage.mini_batch or len(samples)
        for start in range(0, len(permuted), size):
            update = sorted(permuted[start : start + size])
            shares.append(accumulate_gradients(model, samples, fixed, update=update, stage=stage))
            norms.append(apply_update(optimizer, model.parameters(), rate))
    parts = [part for of_update in shares for part in of_update]
    tokens = max(1, sum(p.tokens for p in parts))
    return LearnReport(
        updates=len(norms),
        loss=fmean(sum(float(part.loss) for part in of_update) for of_update in shares),
        grad_norm=fmean(norms),
        ratio_max=max(part.ratio_max for part in parts),
        clipped_share=sum(p.clipped_tokens for p in parts) / tokens,
        dual_clipped_share=sum(p.dual_clipped_tokens for p in parts) / tokens,
        mismatch=_measure_mismatch(fixed, stage),
        kl_reference=_measure_kl(fixed),
    )


def fix_logprobs(
    model: Qwen3ForCausalLM,
    samples: Sequence[Sample],
    *,
    stage: RlStage,
    reference: Qwen3ForCausalLM | None = None,
) -> FixedLogprobs:
    """The log-probabilities of the step's samples before its first update."""
    rows, temperature = [s.row for s in samples], stage.sampling.temperature
    return FixedLogprobs(
        old=compute_logprobs(model, rows, temperature),
        sampling=[torch.tensor(s.sampling_logprobs, dtype=torch.float32) for s in samples],
        reference=None if reference is None else compute_logprobs(reference, rows, temperature),
    )


def accumulate_gradients(
    model: Qwen3ForCausalLM,
    samples: Sequence[Sample],
    fixed: FixedLogprobs,
    *,
    update: Sequence[int],
    stage: RlStage,
    own: Sequence[int] | None = None,
    token_budget: int = MICRO_BATCH_TOKENS,
) -> list[LossShare]:
    """Backward over the micro-batches of one update (positions into `samples`).

    `own`: the positions into `update` that this rank computes, by default all. The gradients of all ranks add
    up to the same sum however samples are dealt to ranks and micro-batches.
    """
    lengths = [sum(s.row.mask) for s in samples]
    weights = make_weights(stage.loss_aggregation, lengths, [s.group for s in samples], update)
    own_update = list(update) if own is None else [update[i] for i in own]
    own_weights = weights if own is None else [weights[i] for i in own]
    rule = LossRule(stage.clip_low, stage.clip_high, stage.loss_terms)
    rows = [samples[i].row for i in own_update]
    shares = []
    for part in score_rows(model, rows, temperature=stage.sampling.temperature, token_budget=token_budget):
        share = policy_loss(_gather(part, samples, fixed, own_update, own_weights), rule)
        share.loss.backward()
        shares.append(replace(share, loss=share.loss.detach()))
    return shares


def _gather(
    part: ScoredPart, samples: Sequence[Sample], fixed: FixedLogprobs, update: Sequence[int], weights: Sequence[float]
) -> LossInputs:
    """The inputs of a micro-batch, whose positions are into `update` and `weights`."""
    chosen = [update[i] for i in part.positions]
    return LossInputs(
        logprobs=part.scores.logprobs,
        old_logprobs=torch.cat([fixed.old[i] for i in chosen]),
        advantages=part.spread([samples[i].advantage for i in update]),
        weights=part.spread(weights),
        sampling_logprobs=torch.cat([fixed.sampling[i] for i in chosen]),
        reference_logprobs=None if fixed.reference is None else torch.cat([fixed.reference[i] for i in chosen]),
        entropies=part.scores.entropies,
    )


def _measure_mismatch(fixed: FixedLogprobs, stage: RlStage) -> Mismatch:
    cap = stage.loss_terms.get(LossTerm.TIS, DEFAULT_CAP)
    return measure_mismatch(torch.cat(fixed.old), torch.cat(fixed.sampling), cap)


def _measure_kl(fixed: FixedLogprobs) -> float | None:
    if fixed.reference is None:
        return None
    log_ratio = torch.cat(fixed.old).double() - torch.cat(fixed.reference).double()
    return float(estimate_kl(LossTerm.KL_K3, log_ratio).mean())
