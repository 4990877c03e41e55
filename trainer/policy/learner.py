"""One step of learning from the kept rollouts: old log-probabilities once, then clipped updates."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np
import torch
from torch.optim import AdamW
from transformers import Qwen3ForCausalLM

from contracts.recipe import RlStage
from trainer.algorithm.loss import Clip, LossInputs, LossTerms, make_weights, policy_loss
from trainer.algorithm.packing import Row
from trainer.policy.model import MICRO_BATCH_TOKENS, compute_logprobs, score_rows
from trainer.policy.optimizer import apply_update


@dataclass(frozen=True, slots=True)
class Sample:
    """A kept rollout. `sampling_logprobs`: of its trained tokens, as the engine gave them, nats."""

    row: Row
    group: str
    advantage: float
    sampling_logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class LearnReport:
    """Means are over the updates; the gap is |trainer - sampling log-probability| before the first one."""

    updates: int
    loss: float
    grad_norm: float
    ratio_max: float
    clipped_share: float
    gap_mean: float
    gap_max: float


def learn(
    model: Qwen3ForCausalLM, optimizer: AdamW, samples: Sequence[Sample], *, stage: RlStage, rate: float, seed: int
) -> LearnReport:
    """`stage.epochs` passes in mini-batches. The ratio's denominator is the trainer's own log-probability
    before the first update, so that numerical noise of the engine is measured but never learned from."""
    old = compute_logprobs(model, [s.row for s in samples], stage.sampling.temperature)
    gaps = (torch.cat(old) - torch.tensor([p for s in samples for p in s.sampling_logprobs])).abs()
    order = np.random.default_rng(seed)
    norms, terms = [], []
    for _ in range(stage.epochs):
        permuted = [int(i) for i in order.permutation(len(samples))]
        size = stage.mini_batch or len(samples)
        for start in range(0, len(permuted), size):
            update = sorted(permuted[start : start + size])
            terms.append(accumulate_gradients(model, samples, old, update=update, stage=stage))
            norms.append(apply_update(optimizer, model.parameters(), rate))
    parts = [part for update_terms in terms for part in update_terms]
    return LearnReport(
        updates=len(norms),
        loss=fmean(sum(float(part.loss) for part in update_terms) for update_terms in terms),
        grad_norm=fmean(norms),
        ratio_max=max(part.ratio_max for part in parts),
        clipped_share=sum(p.clipped_tokens for p in parts) / max(1, sum(p.tokens for p in parts)),
        gap_mean=float(gaps.mean()),
        gap_max=float(gaps.max()),
    )


def accumulate_gradients(
    model: Qwen3ForCausalLM,
    samples: Sequence[Sample],
    old: Sequence[torch.Tensor],
    *,
    update: Sequence[int],
    stage: RlStage,
    token_budget: int = MICRO_BATCH_TOKENS,
) -> list[LossTerms]:
    """Backward over the micro-batches of one update; the gradients do not depend on the split."""
    lengths = [sum(s.row.mask) for s in samples]
    weights = make_weights(stage.loss_aggregation, lengths, [s.group for s in samples], update)
    advantages = [samples[i].advantage for i in update]
    clip = Clip(stage.clip_low, stage.clip_high)
    terms = []
    rows = [samples[i].row for i in update]
    for part in score_rows(model, rows, temperature=stage.sampling.temperature, token_budget=token_budget):
        old_logprobs = torch.cat([old[update[i]] for i in part.positions])
        inputs = LossInputs(part.scores.logprobs, old_logprobs, part.spread(advantages), part.spread(weights))
        result = policy_loss(inputs, clip)
        result.loss.backward()
        terms.append(LossTerms(result.loss.detach(), result.clipped_tokens, result.tokens, result.ratio_max))
    return terms
