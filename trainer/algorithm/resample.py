"""Which rollouts of a group are learned from: GRPO-RoC (rStar2-Agent 2.2.3), the released rule, plain GRPO.

Where the paper is silent, docs/decisions/roc-selection.md decides, and says why.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from contracts.recipe import Resample
from contracts.trajectory import Decision, StopReason
from trainer.rollout.trajectory import Trajectory

ANSWER_TAG = "<answer>"
NO_TOOL_PENALTY = 0.5
PENALTY_FLOOR = 0.05  # added to p_err + p_format: the paper has 1/0 for a clean rollout
RELEASED_MIN_NEGATIVES = 2
RELEASED_MIN_POSITIVES = 2
TRUNCATED = frozenset({StopReason.MAX_RESPONSE_TOKENS, StopReason.CONTEXT_OVERFLOW})


@dataclass(frozen=True, slots=True)
class Candidate:
    """What the selection knows of one rollout. `reward` is None when it could not be graded."""

    reward: float | None
    p_err: float
    p_format: float
    is_truncated: bool = False

    @property
    def is_right(self) -> bool:
        return self.reward is not None and self.reward > 0


@dataclass(frozen=True, slots=True)
class LedgerLine:
    """What became of one rollout.

    `weight` and `draw_probability` (of the first draw): of the right rollouts of a mixed group under `paper`.
    `draw`: the place in the draw, from 1, among those it was drawn from: the right or the wrong rollouts under
    `paper`, all graded ones under `none`. None where nothing was drawn.
    """

    decision: Decision
    weight: float | None = None
    draw_probability: float | None = None
    draw: int | None = None

    @property
    def is_kept(self) -> bool:
        return self.decision.is_kept


def error_penalty(tool_calls: int, tool_errors: int) -> float:
    """p_err: errored / all tool calls, 0.5 without any (2.2.3). Errors come from structured statuses."""
    return tool_errors / tool_calls if tool_calls else NO_TOOL_PENALTY


def format_penalty(turn_texts: Sequence[str]) -> float:
    """p_format: 1 without an answer tag in any assistant turn, else min(1, (tags - 1) / turns) (2.2.3).

    The turns are the policy's own, the first included; what the tool printed does not count.
    """
    tags = sum(text.count(ANSWER_TAG) for text in turn_texts)
    return 1.0 if tags == 0 else min(1.0, (tags - 1) / len(turn_texts))


def make_candidate(trajectory: Trajectory, turn_texts: Sequence[str]) -> Candidate:
    """The penalties of a trajectory; `turn_texts` are its decoded assistant turns in order."""
    return Candidate(
        reward=trajectory.reward,
        p_err=error_penalty(len(trajectory.tool_calls), trajectory.tool_errors),
        p_format=format_penalty(turn_texts),
        is_truncated=trajectory.stop_reason in TRUNCATED,
    )


@dataclass(frozen=True, slots=True)
class SelectionRule:
    """`group_size` is the paper's G."""

    resample: Resample
    group_size: int


@dataclass(frozen=True, slots=True)
class _Choice:
    """Positions in the group: those that are kept, and the place of each one drawn."""

    kept: frozenset[int]
    places: dict[int, int]


def select_rollouts(group: Sequence[Candidate], rule: SelectionRule, rng: np.random.Generator) -> list[LedgerLine]:
    """One ledger line for each rollout of one prompt, in the order given."""
    graded = [i for i, c in enumerate(group) if c.reward is not None]
    if len(graded) < 2:
        return [_line(c, Decision.TOO_FEW) for c in group]
    if len({group[i].reward for i in graded}) == 1:
        return [_line(c, Decision.EQUAL_REWARD) for c in group]
    choice = _choose(group, graded, rule, rng)
    is_flat = len({group[i].reward for i in choice.kept}) == 1
    weights = _draw_weights(group, rule)
    total = sum(weights.values())
    lines = []
    for i, candidate in enumerate(group):
        decision = _kept_decision(candidate) if i in choice.kept else Decision.NOT_SELECTED
        line = _line(candidate, Decision.EQUAL_REWARD if is_flat else decision)
        share = weights[i] / total if i in weights else None
        lines.append(replace(line, weight=weights.get(i), draw_probability=share, draw=choice.places.get(i)))
    return lines


def _line(candidate: Candidate, decision: Decision) -> LedgerLine:
    return LedgerLine(Decision.UNGRADED if candidate.reward is None else decision)


def _kept_decision(candidate: Candidate) -> Decision:
    if candidate.is_right:
        return Decision.KEPT_RIGHT
    return Decision.KEPT_TRUNCATED if candidate.is_truncated else Decision.KEPT_WRONG


def _draw_weights(group: Sequence[Candidate], rule: SelectionRule) -> dict[int, float]:
    """Index of each positive -> 1 / (p_err + p_format + floor); empty where nothing is drawn by weight."""
    if rule.resample is not Resample.PAPER:
        return {}
    return {i: 1 / (c.p_err + c.p_format + PENALTY_FLOOR) for i, c in enumerate(group) if c.is_right}


def _choose(
    group: Sequence[Candidate], graded: Sequence[int], rule: SelectionRule, rng: np.random.Generator
) -> _Choice:
    """What is kept of a group with both rewards."""
    if len(graded) <= rule.group_size:
        return _Choice(frozenset(graded), {})
    negatives = [i for i in graded if not group[i].is_right]
    positives = [i for i in graded if group[i].is_right]
    match rule.resample:
        case Resample.NONE:
            drawn = [int(i) for i in rng.permutation(graded)]
            return _Choice(frozenset(drawn[: rule.group_size]), _places(drawn))
        case Resample.PAPER:
            n_neg, n_pos = count_paper(len(negatives), len(positives), rule.group_size)
            drawn_neg = [int(i) for i in rng.permutation(negatives)]
            weights = list(_draw_weights(group, rule).values())
            drawn_pos = [positives[j] for j in draw_by_weight(weights, rng)]
            kept = frozenset(drawn_neg[:n_neg] + drawn_pos[:n_pos])
            return _Choice(kept, _places(drawn_neg) | _places(drawn_pos))
        case Resample.RELEASED:
            n_neg, n_pos = count_released(len(negatives), len(positives), rule.group_size)
            ranked = sorted(positives, key=lambda i: group[i].p_err + group[i].p_format)
            return _Choice(frozenset(negatives[:n_neg] + ranked[:n_pos]), {})


def _places(drawn: Sequence[int]) -> dict[int, int]:
    return {i: place for place, i in enumerate(drawn, start=1)}


def count_paper(negatives: int, positives: int, group_size: int) -> tuple[int, int]:
    """How many negatives and positives are kept of a mixed group larger than G; they add up to G.

    With 2G rollouts: floor(negatives / 2), at least 1, and the rest positives (never more than there are,
    since G - floor(negatives * G / n) = ceil(positives * G / n)).
    """
    kept_neg = max(1, negatives * group_size // (negatives + positives))
    return kept_neg, group_size - kept_neg


def count_released(negatives: int, positives: int, group_size: int) -> tuple[int, int]:
    """Counts of the released code with its recipe's minimums 2 and 2 (roc.py `resample_of_correct`).

    Rounds half to even. Both sides under their minimum (G of 2 or 3): all rollouts are kept, more than G.
    Where its closing assertion would stop the run (an odd G with a tie), the positives fill up to G.
    """
    total = negatives + positives
    kept_neg, kept_pos = round(negatives * group_size / total), round(positives * group_size / total)
    if kept_neg < RELEASED_MIN_NEGATIVES and kept_pos < RELEASED_MIN_POSITIVES:
        return negatives, positives
    if kept_neg <= (least := min(RELEASED_MIN_NEGATIVES, negatives)):
        kept_neg, kept_pos = least, group_size - least
    if kept_pos <= (least := min(RELEASED_MIN_POSITIVES, positives)):
        kept_neg, kept_pos = group_size - least, least
    return kept_neg, group_size - kept_neg


def draw_by_weight(weights: Sequence[float], rng: np.random.Generator) -> list[int]:
    """All positions in the order drawn, without replacement: each draw has probability weight / sum of what is left.

    By exponential clocks: the first of independent Exp(w_i) arrivals is i with probability w_i / sum w.
    """
    arrivals = rng.exponential(size=len(weights)) / np.asarray(weights)
    return [int(i) for i in np.argsort(arrivals, kind="stable")]
