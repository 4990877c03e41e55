"""From the trajectories of a step to the numbers of `contracts.metrics`; means are sums divided by counts."""

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from contracts.trajectory import Decision
from trainer.algorithm.resample import TRUNCATED, LedgerLine
from trainer.policy.learner import LearnReport
from trainer.rollout.trajectory import Trajectory

_LEDGER = {
    Decision.KEPT_RIGHT: "ledger/kept_right",
    Decision.KEPT_WRONG: "ledger/kept_wrong",
    Decision.KEPT_TRUNCATED: "ledger/kept_truncated",
    Decision.NOT_SELECTED: "ledger/not_selected",
    Decision.EQUAL_REWARD: "ledger/equal_reward",
    Decision.TOO_FEW: "ledger/too_few",
    Decision.UNGRADED: "ledger/ungraded",
}


def tool_error_ratio(trajectories: Sequence[Trajectory]) -> float | None:
    """Errored / all tool calls; None when there was no call."""
    calls = sum(len(t.tool_calls) for t in trajectories)
    return sum(t.tool_errors for t in trajectories) / calls if calls else None


def is_right(trajectory: Trajectory) -> bool:
    return trajectory.reward is not None and trajectory.reward > 0


def measure_rollouts(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """reward/mean, response/*, tools/* over all rollouts of a step; a name is absent where it is undefined."""
    lengths = [len(t.response_ids) for t in trajectories]
    calls = [call for t in trajectories for call in t.tool_calls]
    executed = [call for call in calls if call.node or call.exec_ms > 0]
    rewards = [t.reward for t in trajectories if t.reward is not None]
    p10, p50, p90 = np.percentile(lengths, [10, 50, 90])
    values = {
        "reward/mean": _mean(rewards),
        "response/tokens_mean": _mean(lengths),
        "response/tokens_p10": float(p10),
        "response/tokens_p50": float(p50),
        "response/tokens_p90": float(p90),
        "response/truncated_ratio": _mean([t.stop_reason in TRUNCATED for t in trajectories]),
        "response/turns_mean": _mean([len(t.turns) for t in trajectories]),
        "tools/calls_mean": _mean([len(t.tool_calls) for t in trajectories]),
        "tools/error_ratio": tool_error_ratio(trajectories),
        "tools/error_ratio_right": tool_error_ratio([t for t in trajectories if is_right(t)]),
        "tools/error_ratio_wrong": tool_error_ratio([t for t in trajectories if t.reward == 0]),
        "tools/no_tool_ratio": _mean([not t.tool_calls for t in trajectories]),
        "tools/exec_ms_mean": _mean([call.exec_ms for call in executed]),
        "tools/queue_ms_mean": _mean([call.queue_ms for call in executed]),
    }
    return {name: value for name, value in values.items() if value is not None}


def measure_ledger(groups: Sequence[Sequence[tuple[Trajectory, LedgerLine]]]) -> dict[str, float]:
    """ledger/* (they add up to the rollouts generated), groups/* and reward/kept_mean."""
    pairs = [pair for group in groups for pair in group]
    counts = Counter(line.decision for _, line in pairs)
    values = {name: float(counts[decision]) for decision, name in _LEDGER.items()}
    kinds = Counter(_group_kind(group) for group in groups)
    values |= {f"groups/{kind}": float(kinds[kind]) for kind in ("kept", "equal_right", "equal_wrong", "too_few")}
    kept = _mean([t.reward for t, line in pairs if line.is_kept and t.reward is not None])
    return values if kept is None else values | {"reward/kept_mean": kept}


def _group_kind(group: Sequence[tuple[Trajectory, LedgerLine]]) -> str:
    """A mixed group of which plain GRPO drew equal rewards counts by what most of it is."""
    if any(line.is_kept for _, line in group):
        return "kept"
    if any(line.decision is Decision.EQUAL_REWARD for _, line in group):
        rewards = [t.reward for t, _ in group if t.reward is not None]
        return "equal_right" if sum(rewards) * 2 > len(rewards) else "equal_wrong"
    return "too_few"


def measure_learning(report: LearnReport, rate: float) -> dict[str, float]:
    values = {
        "policy/loss": report.loss,
        "policy/grad_norm": report.grad_norm,
        "policy/lr": rate,
        "policy/ratio_max": report.ratio_max,
        "policy/clipped_share": report.clipped_share,
        "policy/dual_clipped_share": report.dual_clipped_share,
        "policy/logprob_gap_mean": report.mismatch.gap_mean,
        "policy/logprob_gap_max": report.mismatch.gap_max,
        "policy/logprob_kl": report.mismatch.kl,
        "policy/importance_capped_share": report.mismatch.capped_share,
    }
    return values if report.kl_reference is None else values | {"policy/kl_reference": report.kl_reference}


def measure_staleness(trajectories: Sequence[Trajectory], version: int) -> dict[str, float]:
    """policy/staleness_* and policy/older_share of all policy tokens, before `version` learns from them."""
    counts = Counter[int]()
    for trajectory in trajectories:
        for span in trajectory.version_spans:
            counts[version - span.version] += sum(trajectory.mask[span.start : span.end])
    counts = +counts
    tokens = max(1, counts.total())
    return {
        "policy/staleness_mean": sum(age * count for age, count in counts.items()) / tokens,
        "policy/staleness_max": float(max(counts, default=0)),
        "policy/older_share": (tokens - counts[0]) / tokens if counts else 0.0,
    }


def measure_time(seconds: Mapping[str, float], tokens_per_s: float) -> dict[str, float]:
    """`seconds`: 'step', 'generate', 'learn'."""
    return {f"time/{name}_s": value for name, value in seconds.items()} | {"time/tokens_per_s": tokens_per_s}


def _mean(values: Sequence[float | int | bool]) -> float | None:
    return sum(values) / len(values) if values else None
