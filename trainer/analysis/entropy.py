"""Entropies of the next-token distribution, nats: over the full vocabulary by the learner, or a bound from the top k.

Training rollouts are analysed with entropies over the full vocabulary: the engine's where it has them, else the
learner's. A bound is for the live view and for evaluations; a mean never takes both kinds (`trainer.analysis.report`).
"""

from collections.abc import Sequence
from math import exp, log

from torch import Tensor

from contracts.trajectory import EntropyKind
from trainer.rollout.trajectory import Trajectory


def is_bound(trajectory: Trajectory) -> bool:
    """It has sampled tokens whose entropies over the full vocabulary nobody knows yet."""
    return trajectory.entropy_kind is not EntropyKind.FULL and any(trajectory.mask)


def set_entropies(trajectory: Trajectory, entropies: Tensor) -> None:
    """In place of bounds: those of the policy tokens (tokens,), by the learner before the step's first update."""
    values = iter(entropies.tolist())
    trajectory.entropies = [max(0.0, next(values)) if m else 0.0 for m in trajectory.mask]
    trajectory.entropy_kind = EntropyKind.FULL


def bound_entropy(logprobs: Sequence[float]) -> float:
    """The least entropy a distribution can have whose k likeliest tokens have these log-probabilities.

    What is left over, r, is either one token or tokens each no likelier than the k-th: -r log min(r, p_k).
    """
    shares = [exp(p) for p in logprobs]
    rest = 1.0 - sum(shares)
    known = -sum(share * p for share, p in zip(shares, logprobs, strict=True))
    return max(0.0, known) if rest <= 0 or not shares else known - rest * log(min(rest, min(shares)))
