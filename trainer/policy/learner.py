"""One step of learning from the kept rollouts: old log-probabilities once, then clipped updates.

Ranks that share a sharded model (`trainer.policy.parallel`) call `learn` with the same arguments; each works on its own
part of the rollouts and all get the same report.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np
import torch
from torch import Tensor
from torch.optim import AdamW
from transformers import Qwen3ForCausalLM

from contracts.recipe import TIS_BOUND, LossTerm, RlStage
from trainer.algorithm.logprobs import TokenScores
from trainer.algorithm.loss import (
    LossInputs,
    LossRule,
    LossShare,
    Mismatch,
    add_shares,
    estimate_kl,
    make_weights,
    measure_mismatch,
    policy_loss,
)
from trainer.algorithm.packing import Row, balance_rows, pack_rows
from trainer.policy.model import compute_logprobs, compute_scores, plan_micro_batches, score_part
from trainer.policy.optimizer import apply_update
from trainer.policy.packed import lose_packed
from trainer.policy.parallel import Ranks, bind, ranks_of, set_last_backward


@dataclass(frozen=True, slots=True)
class Sample:
    """A kept rollout. `sampling_logprobs`: of its trained tokens, as the engine gave them, nats."""

    row: Row
    group: str
    advantage: float
    sampling_logprobs: Sequence[float]


@dataclass(frozen=True, slots=True)
class FixedLogprobs:
    """What stays the same over the updates of a step: of each sample's trained tokens (tokens,), nats.

    None in `old` and `entropies` is filled in by the update that comes upon it: right where a step has only one update.
    """

    old: list[Tensor | None]
    sampling: list[Tensor]
    reference: list[Tensor] | None
    entropies: list[Tensor | None]

    def fill(self, members: Sequence[int], logprobs: Sequence[Tensor], entropies: Sequence[Tensor]) -> None:
        for i, own, entropy in zip(members, logprobs, entropies, strict=True):
            self.old[i], self.entropies[i] = own, entropy


@dataclass(frozen=True, slots=True)
class LearnReport:
    """Means are over the updates; `mismatch` and `kl_reference` (None without a KL term) are before the first one,
    and so are `entropies`, of each sample's trained tokens (tokens,), nats."""

    updates: int
    loss: float
    grad_norm: float
    ratio_max: float
    clipped_share: float
    dual_clipped_share: float
    mismatch: Mismatch
    kl_reference: float | None
    entropies: list[Tensor] = field(default_factory=list, compare=False, repr=False)


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
    """One pass in mini-batches. The ratio's denominator is the trainer's own log-probability
    before the first update, so that numerical noise of the engine is measured but never learned from, unless
    the recipe weighs by it (TIS). `reference`: the policy that a KL term holds on to."""
    size, ranks = stage.mini_batch or len(samples), ranks_of(model)
    is_single = size >= len(samples)
    fixed = fix_logprobs(model, samples, stage=stage, reference=reference, with_old=not is_single)
    order = np.random.default_rng(seed)
    norms, totals = [], []
    permuted = [int(i) for i in order.permutation(len(samples))]
    for start in range(0, len(permuted), size):
        update = sorted(permuted[start : start + size])
        shares = accumulate_gradients(model, samples, fixed, update=update, stage=stage)
        totals.append(_add_up(shares, ranks))
        norms.append(apply_update(optimizer, model.parameters(), rate))
    old = _join_found(fixed.old, samples, ranks, is_shared=is_single)
    entropies = _join_found(fixed.entropies, samples, ranks, is_shared=is_single)
    tokens = max(1.0, sum(of_update.tokens for of_update in totals))
    return LearnReport(
        updates=len(norms),
        loss=fmean(of_update.loss for of_update in totals),
        grad_norm=fmean(norms),
        ratio_max=max(of_update.ratio_max for of_update in totals),
        clipped_share=sum(of_update.clipped_tokens for of_update in totals) / tokens,
        dual_clipped_share=sum(of_update.dual_clipped_tokens for of_update in totals) / tokens,
        mismatch=measure_mismatch(old, torch.cat(fixed.sampling), stage.loss_terms.get(LossTerm.TIS, TIS_BOUND)),
        kl_reference=_measure_kl(old, fixed.reference),
        entropies=list(entropies.split([sum(s.row.mask) for s in samples])),
    )


def imitate(model: Qwen3ForCausalLM, optimizer: AdamW, rows: Sequence[Row], rate: float) -> tuple[float, float]:
    """One update of SFT: the mean cross-entropy over all trained tokens, nats, and the gradient's norm."""
    ranks = ranks_of(model)
    tokens = sum(sum(row.mask) for row in rows)
    own = balance_rows([row.length for row in rows], ranks.size, model.config.hidden_size)[ranks.rank]
    mine = [rows[i] for i in own]
    batches = plan_micro_batches(model, mine)
    loss = 0.0
    for number, positions in enumerate(batches, start=1):
        set_last_backward(model, number == len(batches))
        share = -score_part(model, mine, positions).scores.logprobs.sum() / tokens
        share.backward()
        loss += float(share.detach())
    norm = apply_update(optimizer, model.parameters(), rate)
    return float(ranks.add(torch.tensor([loss], dtype=torch.float64))), norm


def fix_logprobs(
    model: Qwen3ForCausalLM,
    samples: Sequence[Sample],
    *,
    stage: RlStage,
    reference: Qwen3ForCausalLM | None = None,
    with_old: bool = True,
) -> FixedLogprobs:
    """The log-probabilities of the step's samples before its first update; `with_old` False leaves the model's own to
    the update, which saves a pass."""
    rows, temperature = [s.row for s in samples], stage.sampling.temperature
    none: list[TokenScores | None] = [None] * len(rows)
    scores = [*compute_scores(model, rows, temperature)] if with_old else none
    return FixedLogprobs(
        old=[None if of_row is None else of_row.logprobs for of_row in scores],
        entropies=[None if of_row is None else of_row.entropies for of_row in scores],
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
    token_budget: int | None = None,
) -> list[LossShare]:
    """Backward over the micro-batches of one update (positions into `samples`).

    `own`: the positions into `update` that this rank computes, by default its balanced part. The gradients of all
    ranks add up to the same sum however samples are dealt to ranks and micro-batches.
    """
    lengths = [sum(s.row.mask) for s in samples]
    weights = make_weights(stage.loss_aggregation, lengths, [s.group for s in samples], update)
    weight_of = dict(zip(update, weights, strict=True))
    if own is None:
        ranks = ranks_of(model)
        tokens = [samples[i].row.length for i in update]
        own = balance_rows(tokens, ranks.size, model.config.hidden_size)[ranks.rank]
    chosen = [update[i] for i in own]
    rule = LossRule(stage.clip_low, stage.clip_high, stage.loss_terms)
    batches = plan_micro_batches(model, [samples[i].row for i in chosen], token_budget)
    shares = []
    for number, positions in enumerate(batches, start=1):
        set_last_backward(model, number == len(batches))
        members = [chosen[p] for p in positions]
        constants = _Constants.gather(samples, fixed, members, weight_of, ranks_of(model).device)
        clipped = _ClippedLoss(constants, rule)
        batch = pack_rows([samples[i].row for i in members])
        loss, *scores = bind(lose_packed, model)(batch, stage.sampling.temperature, clipped.lose)
        loss.backward()
        shares.append(add_shares(clipped.shares))
        if constants.old is None:
            counts = [lengths[i] for i in members]
            fixed.fill(members, *(found.float().cpu().split(counts) for found in scores))
    return shares


@dataclass(frozen=True, slots=True)
class _Constants:
    """What the loss of a micro-batch takes beside the policy's scores: (tokens,) each, see `LossInputs`.

    `old` None: the policy's own, without gradient.
    """

    old: Tensor | None
    advantages: Tensor
    weights: Tensor
    sampling: Tensor
    reference: Tensor | None

    @classmethod
    def gather(
        cls,
        samples: Sequence[Sample],
        fixed: FixedLogprobs,
        members: Sequence[int],
        weight_of: Mapping[int, float],
        device: torch.device,
    ) -> "_Constants":
        """Of these samples, one after another."""
        counts = torch.tensor([sum(samples[i].row.mask) for i in members], dtype=torch.long)

        def spread(values: list[float]) -> Tensor:
            return torch.tensor(values, dtype=torch.float32).repeat_interleave(counts).to(device)

        def join(rows: Sequence[Tensor | None]) -> Tensor | None:
            own = [row for i in members if (row := rows[i]) is not None]
            return torch.cat([torch.empty(0), *own]).to(device) if len(own) == len(members) else None

        return cls(
            old=join(fixed.old),
            advantages=spread([samples[i].advantage for i in members]),
            weights=spread([weight_of[i] for i in members]),
            sampling=torch.cat([torch.empty(0), *(fixed.sampling[i] for i in members)]).to(device),
            reference=None if fixed.reference is None else join(fixed.reference),
        )


@dataclass(slots=True)
class _ClippedLoss:
    """The loss of a micro-batch, chunk by chunk, and the shares it has come to so far."""

    constants: _Constants
    rule: LossRule
    shares: list[LossShare] = field(default_factory=list)

    def lose(self, part: slice, scores: TokenScores) -> Tensor:
        given = self.constants
        inputs = LossInputs(
            logprobs=scores.logprobs,
            old_logprobs=scores.logprobs.detach() if given.old is None else given.old[part],
            advantages=given.advantages[part],
            weights=given.weights[part],
            sampling_logprobs=given.sampling[part],
            reference_logprobs=None if given.reference is None else given.reference[part],
            entropies=scores.entropies,
        )
        share = policy_loss(inputs, self.rule)
        self.shares.append(replace(share, loss=share.loss.detach()))
        return share.loss


@dataclass(frozen=True, slots=True)
class _Totals:
    """Of an update, over its micro-batches and ranks."""

    loss: float
    clipped_tokens: float
    dual_clipped_tokens: float
    tokens: float
    ratio_max: float


def _add_up(shares: Sequence[LossShare], ranks: Ranks) -> _Totals:
    counts = [(float(s.loss), s.clipped_tokens, s.dual_clipped_tokens, s.tokens) for s in shares]
    sums = ranks.add(torch.tensor([sum(column) for column in zip(*counts, strict=True)], dtype=torch.float64))
    loss, clipped, dual_clipped, tokens = sums.tolist()
    return _Totals(loss, clipped, dual_clipped, tokens, ranks.largest(max(share.ratio_max for share in shares)))


def _join_found(found: Sequence[Tensor | None], samples: Sequence[Sample], ranks: Ranks, *, is_shared: bool) -> Tensor:
    """Of all samples, one after another; `is_shared`: each was found by one rank only, and the others have None."""
    own = [torch.zeros(sum(s.row.mask)) if row is None else row for row, s in zip(found, samples, strict=True)]
    return ranks.add(torch.cat(own)) if is_shared else torch.cat(own)


def _measure_kl(old: Tensor, reference: list[Tensor] | None) -> float | None:
    if reference is None:
        return None
    return float(estimate_kl(LossTerm.KL_K3, old.double() - torch.cat(reference).double()).mean())
