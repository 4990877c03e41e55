"""Grades and the statistics over them. A failure of ours is `Ungraded`, never a number."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from math import comb, sqrt
from statistics import fmean
from typing import Annotated, Literal

from pydantic import BeforeValidator, Field

from contracts.base import Frozen
from contracts.text import clean_text


class UngradedReason(StrEnum):
    """Which of our own parts failed, so that the trajectory has no reward at all."""

    GRADER_CRASH = "grader_crash"
    GRADER_TIMEOUT = "grader_timeout"
    BAD_REFERENCE = "bad_reference"
    SANDBOX_UNAVAILABLE = "sandbox_unavailable"
    ENGINE_FAILURE = "engine_failure"
    CANCELLED = "cancelled"


SHOWN_CHARS = 2000


def _showable(text: object) -> object:
    """A model's text as JSON and PostgreSQL can hold it: no NUL, no lone surrogate, not without end."""
    return clean_text(text[:SHOWN_CHARS]) if isinstance(text, str) else text


Shown = Annotated[str, BeforeValidator(_showable)]


class Graded(Frozen):
    """The grader's number: 1 right, 0 wrong (outcome reward, rStar2-Agent eq. 3)."""

    kind: Literal["graded"] = "graded"
    reward: float = Field(allow_inf_nan=False)
    answer: Shown | None = Field(None, description="what was extracted, cut; None: no answer in the required place")


class Ungraded(Frozen):
    """No reward: counted and shown, never 0 and never NaN."""

    kind: Literal["ungraded"] = "ungraded"
    reason: UngradedReason
    detail: Shown = ""


Grade = Annotated[Graded | Ungraded, Field(discriminator="kind")]


class Estimate(Frozen):
    """A mean over problems with its 95 % half-width; the problem is the unit (clustered by problem)."""

    value: float
    half_width: float = Field(description="1.96 standard errors over problems; 0 when there is one problem")
    problems: int
    samples: int
    ungraded: int = 0


def avg_at_k(rewards_by_problem: Mapping[str, Sequence[float | None]]) -> Estimate | None:
    """Mean over problems of the mean reward of their graded samples; None when nothing was graded.

    `None` in a problem's samples is an ungraded one: it is counted and left out.
    """
    ungraded = sum(r is None for rs in rewards_by_problem.values() for r in rs)
    graded = [[r for r in rs if r is not None] for rs in rewards_by_problem.values()]
    means = [fmean(rs) for rs in graded if rs]
    if not means:
        return None
    mean = fmean(means)
    n = len(means)
    variance = sum((m - mean) ** 2 for m in means) / (n - 1) if n > 1 else 0.0
    return Estimate(
        value=mean,
        half_width=1.96 * sqrt(variance / n),
        problems=n,
        samples=sum(map(len, graded)),
        ungraded=ungraded,
    )


def pass_at_k(n: int, correct: int, k: int) -> float | None:
    """Unbiased 1 - C(n-c, k) / C(n, k); None when n < k (undefined)."""
    if n < k:
        return None
    return 1.0 - comb(n - correct, k) / comb(n, k)
