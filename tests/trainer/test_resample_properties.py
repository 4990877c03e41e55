"""Selection on groups of any make: the counts, the ledger, what the draw may and may not depend on."""

from collections import Counter
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from contracts.recipe import Resample
from contracts.trajectory import Decision
from trainer.algorithm.resample import Candidate, LedgerLine, SelectionRule, count_released, select_rollouts

SHARES = st.sampled_from([0.0, 0.25, 0.5, 1.0])
CANDIDATES = st.builds(Candidate, st.sampled_from([0.0, 1.0, None]), SHARES, SHARES, st.just(False))
GROUPS = st.lists(CANDIDATES, min_size=1, max_size=40)
RULES = st.builds(SelectionRule, st.sampled_from(list(Resample)), st.integers(2, 20))
SEEDS = st.integers(0, 2**32 - 1)


def select(group: list[Candidate], rule: SelectionRule, seed: int) -> list[LedgerLine]:
    return select_rollouts(group, rule, np.random.default_rng(seed))


@given(GROUPS, RULES, SEEDS)
def test_every_rollout_has_one_decision_and_the_kept_ones_add_up(
    group: list[Candidate], rule: SelectionRule, seed: int
) -> None:
    lines = select(group, rule, seed)
    assert len(lines) == len(group)
    assert [line.decision is Decision.UNGRADED for line in lines] == [c.reward is None for c in group]
    counts = Counter(line.decision for line in lines)
    kept = sum(line.is_kept for line in lines)
    rewards = [c.reward for c in group if c.reward is not None]
    if len(rewards) < 2:
        assert counts[Decision.TOO_FEW] == len(rewards)
    elif counts[Decision.EQUAL_REWARD]:
        assert counts[Decision.EQUAL_REWARD] == len(rewards)
        assert len(set(rewards)) == 1 or may_be_flat(rule)
    else:
        assert kept == expected_size(rewards, rule)
        assert kept + counts[Decision.NOT_SELECTED] == len(rewards)
        assert counts[Decision.KEPT_RIGHT] and counts[Decision.KEPT_WRONG]


def may_be_flat(rule: SelectionRule) -> bool:
    """Plain GRPO may draw equal rewards of a mixed group; the released minimums (2 and 2) ask for a G of at least 4."""
    return rule.resample is Resample.NONE or (rule.resample is Resample.RELEASED and rule.group_size < 4)


def expected_size(rewards: list[float], rule: SelectionRule) -> int:
    """G; all that are graded where those are fewer; all where the released code gives up on its minimums."""
    if rule.resample is Resample.RELEASED and len(rewards) > rule.group_size:
        return sum(count_released(rewards.count(0.0), rewards.count(1.0), rule.group_size))
    return min(rule.group_size, len(rewards))


@given(GROUPS, RULES, SEEDS, st.lists(st.tuples(SHARES, SHARES), min_size=40, max_size=40))
def test_penalties_of_wrong_rollouts_play_no_part(
    group: list[Candidate], rule: SelectionRule, seed: int, others: list[tuple[float, float]]
) -> None:
    changed = [
        c if c.is_right else replace(c, p_err=p_err, p_format=p_format)
        for c, (p_err, p_format) in zip(group, others, strict=False)
    ]
    assert select(group, rule, seed) == select(changed, rule, seed)


@given(GROUPS, RULES, SEEDS)
def test_a_seed_gives_the_same_ledger_again(group: list[Candidate], rule: SelectionRule, seed: int) -> None:
    assert select(group, rule, seed) == select(group, rule, seed)


@given(GROUPS, RULES, SEEDS)
def test_a_drawn_rollout_is_kept_by_its_place_in_the_draw(
    group: list[Candidate], rule: SelectionRule, seed: int
) -> None:
    lines = select(group, rule, seed)
    pairs = list(zip(group, lines, strict=True))
    sides = [pairs]
    if rule.resample is not Resample.NONE:
        sides = [[pair for pair in pairs if pair[0].is_right is is_right] for is_right in (True, False)]
    for side in sides:
        places = {line.draw: line for _, line in side if line.draw is not None}
        assert sorted(places) == list(range(1, len(places) + 1))
        if any(line.is_kept for line in places.values()):
            assert [places[i].is_kept for i in sorted(places)] == sorted(
                (line.is_kept for line in places.values()), reverse=True
            )


@given(GROUPS, RULES, SEEDS)
def test_weights_are_the_penalties_inverted_and_their_shares_add_up(
    group: list[Candidate], rule: SelectionRule, seed: int
) -> None:
    lines = select(group, rule, seed)
    shares = [line.draw_probability for line in lines if line.draw_probability is not None]
    assert not shares or abs(sum(shares) - 1) < 1e-9
    for candidate, line in zip(group, lines, strict=True):
        assert (line.weight is None) == (line.draw_probability is None)
        if line.weight is not None:
            assert candidate.is_right and rule.resample is Resample.PAPER
            assert line.weight == 1 / (candidate.p_err + candidate.p_format + 0.05)
