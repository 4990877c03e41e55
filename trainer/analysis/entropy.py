"""Entropies of the next-token distribution, nats: over the full vocabulary by the learner, or a bound from the top k.

Training rollouts are analysed with the learner's entropies, whatever engine sampled them. A bound is for the live
view and for rows nobody learned from; a mean never takes both kinds (`trainer.analysis.report`).
"""

from collections.abc import Sequence
from math import exp, log

import torch
from transformers import Qwen3ForCausalLM

from contracts.trajectory import EntropyKind
from trainer.algorithm.packing import Row
from trainer.policy.model import score_rows
from trainer.rollout.trajectory import Trajectory


@torch.no_grad()
def fill_entropies(model: Qwen3ForCausalLM, trajectories: Sequence[Trajectory], temperature: float) -> None:
    """Give every trajectory the full-vocabulary entropies of softmax(logits / temperature), in place.

    `model` must still hold the weights that sampled: call it before the step's first update.
    """
    sampled = [t for t in trajectories if any(t.mask)]
    rows = [Row(t.prompt_ids, t.response_ids, t.mask) for t in sampled]
    for part in score_rows(model, rows, temperature=temperature):
        for i, entropies in zip(part.positions, part.scores.entropies.split(part.lengths), strict=True):
            values = iter(entropies.tolist())
            sampled[i].entropies = [max(0.0, next(values)) if m else 0.0 for m in sampled[i].mask]
            sampled[i].entropy_kind = EntropyKind.FULL


def bound_entropy(logprobs: Sequence[float]) -> float:
    """The least entropy a distribution can have whose k likeliest tokens have these log-probabilities.

    What is left over, r, is either one token or tokens each no likelier than the k-th: -r log min(r, p_k).
    """
    shares = [exp(p) for p in logprobs]
    rest = 1.0 - sum(shares)
    known = -sum(share * p for share, p in zip(shares, logprobs, strict=True))
    return max(0.0, known) if rest <= 0 or not shares else known - rest * log(min(rest, min(shares)))
