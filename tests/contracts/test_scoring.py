from math import sqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contracts.scoring import avg_at_k, pass_at_k


def test_avg_at_k_is_the_mean_over_problems_of_means():
    # problem a: 1/2, problem b: 1/4; the problem is the unit, so (0.5 + 0.25) / 2
    estimate = avg_at_k({"a": [1.0, 0.0], "b": [1.0, 0.0, 0.0, 0.0]})
    assert estimate is not None
    assert estimate.value == 0.375
    # variance of (0.5, 0.25) with n - 1 is 0.03125; standard error sqrt(0.03125 / 2) = 0.125
    assert estimate.half_width == pytest.approx(1.96 * sqrt(0.03125 / 2))
    assert (estimate.problems, estimate.samples, estimate.ungraded) == (2, 6, 0)


def test_ungraded_samples_are_counted_and_left_out():
    estimate = avg_at_k({"a": [1.0, None], "b": [None, None], "c": [0.0]})
    assert estimate is not None
    assert estimate.value == 0.5  # a: 1, c: 0; b has no graded sample
    assert (estimate.problems, estimate.samples, estimate.ungraded) == (2, 2, 3)


def test_nothing_graded_is_none_and_not_zero():
    assert avg_at_k({"a": [None]}) is None
    assert avg_at_k({}) is None


def test_one_problem_has_no_interval():
    estimate = avg_at_k({"a": [1.0, 0.0]})
    assert estimate is not None
    assert estimate.half_width == 0.0


@pytest.mark.parametrize(
    ("n", "correct", "k", "value"),
    [
        (4, 0, 2, 0.0),
        (4, 4, 2, 1.0),
        (4, 1, 2, 0.5),  # 1 - C(3,2)/C(4,2) = 1 - 3/6
        (16, 4, 1, 0.25),
        (5, 4, 2, 1.0),  # only one wrong: two draws cannot both be wrong
    ],
)
def test_pass_at_k_by_hand(n, correct, k, value):
    assert pass_at_k(n, correct, k) == pytest.approx(value)


def test_pass_at_k_is_undefined_with_too_few_samples():
    assert pass_at_k(3, 3, 4) is None


@given(st.integers(1, 30), st.data())
def test_pass_at_1_is_the_share_of_right_samples(n, data):
    correct = data.draw(st.integers(0, n))
    assert pass_at_k(n, correct, 1) == pytest.approx(correct / n)
