"""Selection: hand-worked counts of the paper's and the released rule, penalties, draws, the ledger."""

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import chisquare

from contracts.recipe import Resample
from contracts.scoring import Graded
from contracts.trajectory import Decision, StopReason, ToolCallRow, ToolStatus, TurnRow
from trainer.algorithm.resample import (
    Candidate,
    SelectionRule,
    count_paper,
    count_released,
    draw_by_weight,
    error_penalty,
    format_penalty,
    make_candidate,
    select_rollouts,
)
from trainer.rollout.trajectory import Problem, Trajectory

KEPT = (Decision.KEPT_RIGHT, Decision.KEPT_WRONG, Decision.KEPT_TRUNCATED)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def rule(resample: Resample = Resample.PAPER, group_size: int = 16) -> SelectionRule:
    return SelectionRule(resample, group_size)


def right(p_err: float = 0.0, p_format: float = 0.0) -> Candidate:
    return Candidate(1.0, p_err, p_format)


def wrong(p_err: float = 0.0, *, is_truncated: bool = False) -> Candidate:
    return Candidate(0.0, p_err, 0.0, is_truncated)


UNGRADED = Candidate(None, 0.5, 1.0)


# facts a.3, probe: 32 -> 16 with minimums 2 and 2
@pytest.mark.parametrize(
    ("negatives", "expected"),
    [
        *[(1, (1, 15)), (2, (2, 14)), (3, (2, 14)), (4, (2, 14)), (5, (2, 14)), (6, (3, 13)), (7, (4, 12))],
        *[(8, (4, 12)), (9, (4, 12)), (16, (8, 8)), (23, (12, 4)), (24, (12, 4)), (25, (12, 4))],
        *[(27, (14, 2)), (28, (14, 2)), (29, (14, 2)), (30, (14, 2)), (31, (15, 1))],
    ],
)
def test_released_counts_are_those_of_the_released_code(negatives: int, expected: tuple[int, int]) -> None:
    assert count_released(negatives, 32 - negatives, 16) == expected


def test_released_counts_add_up_where_the_released_code_would_stop() -> None:
    assert count_released(4, 4, 3) == (1, 2)
    assert count_released(6, 6, 5) == (2, 3)
    assert count_released(1, 1, 2) == (1, 1)


@pytest.mark.parametrize(
    ("negatives", "expected"),
    [(1, (1, 15)), (2, (1, 15)), (3, (1, 15)), (7, (3, 13)), (16, (8, 8)), (25, (12, 4)), (30, (15, 1)), (31, (15, 1))],
)
def test_paper_keeps_half_the_negatives_rounded_down_and_the_rest_positives(
    negatives: int, expected: tuple[int, int]
) -> None:
    assert count_paper(negatives, 32 - negatives, 16) == expected


@pytest.mark.parametrize("oversample", range(2, 33))
def test_paper_never_asks_for_more_than_there_are(oversample: int) -> None:
    for group_size in range(2, oversample):
        for negatives in range(1, oversample):
            kept_neg, kept_pos = count_paper(negatives, oversample - negatives, group_size)
            assert kept_neg + kept_pos == group_size
            assert 1 <= kept_neg <= negatives
            assert 0 <= kept_pos <= oversample - negatives


# facts a.3, the table of probes: what the paper means
@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        (["The answer. <answer>\\boxed{1}</answer>"], 0.0),
        (["calling", "<answer>1</answer>"], 0.0),
        (["<answer>1</answer>", "<answer>1</answer>"], 0.5),
        (["nothing here"], 1.0),
        (["I will use <answer> tags", "<answer>1</answer>"], 0.5),
        (["<answer>1</answer><answer>2</answer><answer>3</answer>"], 1.0),
        (["<answer>\\boxed{1}</answer"], 0.0),
        ([], 1.0),
    ],
)
def test_format_penalty(turns: list[str], expected: float) -> None:
    assert format_penalty(turns) == expected


def test_error_penalty() -> None:
    assert error_penalty(0, 0) == 0.5
    assert error_penalty(4, 1) == 0.25
    assert error_penalty(1, 1) == 1.0
    assert error_penalty(2, 0) == 0.0


def trajectory(*calls: tuple[ToolStatus, str], stop: StopReason = StopReason.ANSWERED) -> Trajectory:
    rows = [
        ToolCallRow(
            **{"turn": i, "name": "python", "code": "", "status": status, "response_text": text},
            **dict.fromkeys(("call_start", "call_end", "response_start", "response_end"), 0),
        )
        for i, (status, text) in enumerate(calls)
    ]
    turns = [TurnRow(turn=i, start=0, end=0) for i in range(len(rows) + 1)]
    made = Trajectory(Problem("p", "p", "1"), 0, [1], turns=turns, tool_calls=rows, stop_reason=stop)
    made.grade = Graded(reward=0.0)
    return made


# facts a.3, the table of probes: errors come from the status, whatever the text says
@pytest.mark.parametrize(
    ("status", "text", "expected"),
    [
        (ToolStatus.OK, "relative error 1e-9", 0.0),
        (ToolStatus.OK, "Traceback (most recent call last): only printed", 0.0),
        (ToolStatus.INVALID_CALL, "Failed to decode tool call: Expecting ',' delimiter", 1.0),
        (ToolStatus.UNKNOWN_TOOL, "there is no 'WolframAlpha'", 1.0),
        (ToolStatus.ERROR, "ZeroDivisionError", 1.0),
        (ToolStatus.TIMEOUT, "Suicide from timeout.", 1.0),
        (ToolStatus.MEMORY, "", 1.0),
        (ToolStatus.KILLED, "", 1.0),
        (ToolStatus.OUTPUT_LIMIT, "1 2 3", 1.0),
    ],
)
def test_a_tool_error_is_a_status(status: ToolStatus, text: str, expected: float) -> None:
    assert make_candidate(trajectory((status, text)), ["call", "<answer>1</answer>"]).p_err == expected


def test_penalties_of_a_trajectory_by_hand() -> None:
    # one of two calls failed; three turns with two answer tags, the first turn's included: (2 - 1) / 3
    made = trajectory((ToolStatus.OK, "2"), (ToolStatus.TIMEOUT, ""))
    candidate = make_candidate(made, ["<answer>", "call", "<answer>\\boxed{1}</answer>"])
    assert (candidate.p_err, candidate.p_format) == (0.5, pytest.approx(1 / 3))
    assert make_candidate(trajectory(), ["<answer>\\boxed{1}</answer>"]).p_err == 0.5


@pytest.mark.parametrize("stop", list(StopReason))
def test_truncated_is_by_length_or_context(stop: StopReason) -> None:
    expected = stop in (StopReason.MAX_RESPONSE_TOKENS, StopReason.CONTEXT_OVERFLOW)
    assert make_candidate(trajectory(stop=stop), [""]).is_truncated is expected


def test_a_group_of_2g_keeps_g_and_the_ledger_adds_up() -> None:
    group = [right() for _ in range(9)] + [wrong() for _ in range(6)] + [wrong(is_truncated=True)]
    lines = select_rollouts(group, rule(group_size=8), rng())
    counts = Counter(line.decision for line in lines)
    assert sum(counts.values()) == 16
    assert counts[Decision.KEPT_RIGHT] == 5
    assert counts[Decision.KEPT_WRONG] + counts[Decision.KEPT_TRUNCATED] == 3
    assert counts[Decision.NOT_SELECTED] == 8


def test_truncated_negatives_that_are_kept_have_their_own_line() -> None:
    lines = select_rollouts([right(), wrong(is_truncated=True)], rule(), rng())
    assert [line.decision for line in lines] == [Decision.KEPT_RIGHT, Decision.KEPT_TRUNCATED]


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_equal_rewards_drop_the_group(reward: float) -> None:
    group = [Candidate(reward, 0.0, 0.0) for _ in range(4)] + [UNGRADED]
    decisions = [line.decision for line in select_rollouts(group, rule(group_size=2), rng())]
    assert decisions == [Decision.EQUAL_REWARD] * 4 + [Decision.UNGRADED]


def test_fewer_than_two_graded_are_too_few() -> None:
    decisions = [line.decision for line in select_rollouts([right(), UNGRADED], rule(), rng())]
    assert decisions == [Decision.TOO_FEW, Decision.UNGRADED]


@pytest.mark.parametrize("resample", list(Resample))
def test_a_group_no_larger_than_g_is_kept_whole(resample: Resample) -> None:
    lines = select_rollouts([right(), wrong(), UNGRADED, UNGRADED], rule(resample, 2), rng())
    assert [line.is_kept for line in lines] == [True, True, False, False]


def test_a_group_made_short_by_ungraded_members_keeps_the_proportion() -> None:
    group = [right() for _ in range(7)] + [wrong() for _ in range(6)] + [UNGRADED] * 3
    counts = Counter(line.decision for line in select_rollouts(group, rule(group_size=8), rng()))
    assert (counts[Decision.KEPT_RIGHT], counts[Decision.KEPT_WRONG]) == (5, 3)
    assert counts[Decision.UNGRADED] == 3


def test_a_lone_negative_stays() -> None:
    lines = select_rollouts([wrong()] + [right() for _ in range(31)], rule(), rng())
    assert lines[0].decision is Decision.KEPT_WRONG
    assert sum(line.is_kept for line in lines) == 16


def test_weights_and_probabilities_are_those_of_the_positives() -> None:
    lines = select_rollouts([right(0.5), right(0.0, 0.2), wrong(1.0), wrong()], rule(group_size=2), rng())
    assert lines[0].weight == pytest.approx(1 / 0.55)
    assert lines[1].weight == pytest.approx(1 / 0.25)
    assert lines[0].draw_probability == pytest.approx((1 / 0.55) / (1 / 0.55 + 1 / 0.25))
    assert lines[2].weight is None
    assert lines[3].draw_probability is None


def test_first_draws_follow_the_weights() -> None:
    weights, draws = np.array([1 / 0.05, 1 / 0.30, 1 / 0.55, 1 / 1.05]), 4000
    generator = rng(7)
    counts = Counter(draw_by_weight(weights, generator)[0] for _ in range(draws))
    assert chisquare([counts[i] for i in range(4)], weights / weights.sum() * draws).pvalue > 0.001


def test_second_draws_follow_the_weights_that_are_left() -> None:
    # Of weights 3, 2, 1: first i with w_i / 6, then j with w_j / (6 - w_i), e.g. (0, 1): 3/6 * 2/3 = 1/3.
    weights, draws, generator = {0: 3, 1: 2, 2: 1}, 6000, rng(3)
    counts = Counter(tuple(draw_by_weight(list(weights.values()), generator)[:2]) for _ in range(draws))
    pairs = list(permutations(weights, 2))
    expected = [draws * weights[i] / 6 * weights[j] / (6 - weights[i]) for i, j in pairs]
    assert chisquare([counts[pair] for pair in pairs], expected).pvalue > 0.001


def test_a_group_s_positives_are_kept_as_their_weights_say() -> None:
    # Weights 20, 20 / 11, 20 / 21 (p_total 0, 0.5, 1); one of three is kept, as 231, 21 and 11 of 263.
    group = [right(0.0), right(0.5), right(0.5, 0.5), wrong(), wrong(), wrong()]
    kept = Counter(
        next(i for i in range(3) if lines[i].is_kept)
        for lines in (select_rollouts(group, rule(group_size=2), rng(seed)) for seed in range(3000))
    )
    assert chisquare([kept[i] for i in range(3)], [3000 * w / 263 for w in (231, 21, 11)]).pvalue > 0.001


def test_negatives_are_never_ranked() -> None:
    group = [right(), right()] + [wrong(1.0) for _ in range(3)] + [wrong(0.0) for _ in range(3)]
    bad = sum(
        line.is_kept for seed in range(800) for line in select_rollouts(group, rule(group_size=4), rng(seed))[2:5]
    )
    assert bad / (800 * 3) == pytest.approx(0.5, abs=0.03)


def test_released_takes_the_best_positives_and_the_first_negatives() -> None:
    group = [right(1.0), right(0.0), right(0.5), right(0.1), wrong(1.0), wrong(), wrong(), wrong()]
    lines = select_rollouts(group, rule(Resample.RELEASED, 4), rng())
    assert [line.is_kept for line in lines] == [False, True, False, True, True, True, False, False]


def test_plain_grpo_draws_whatever_the_reward() -> None:
    group = [right(1.0) for _ in range(8)] + [wrong() for _ in range(8)]
    kept_right = 0
    for seed in range(300):
        lines = select_rollouts(group, rule(Resample.NONE, 8), rng(seed))
        assert sum(line.is_kept for line in lines) == 8
        kept_right += sum(line.is_kept for line in lines[:8])
    assert kept_right / 300 == pytest.approx(4, abs=0.25)


def test_plain_grpo_that_drew_equal_rewards_has_no_gradient() -> None:
    group = [right()] * 15 + [wrong()]
    decisions = {select_rollouts(group, rule(Resample.NONE, 2), rng(seed))[0].decision for seed in range(10)}
    assert Decision.EQUAL_REWARD in decisions


def test_the_same_seed_selects_the_same() -> None:
    group = [right(i / 10) for i in range(8)] + [wrong() for _ in range(8)]
    assert select_rollouts(group, rule(group_size=8), rng(5)) == select_rollouts(group, rule(group_size=8), rng(5))
