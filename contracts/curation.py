"""The checks of a curate stage, as a recipe names them, in the order in which they are applied.

Those of rules cost seconds. `agreement M of N` and `difficulty A to B of N` sample the newest policy N times a
problem: the first keeps a problem that at least M answers match, the second one that A to B answers match, both
ends included. They share the samples, so they name the same N. `length` may name how many characters a problem may
have: `length 800`.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from contracts.base import Frozen


class Check(StrEnum):
    UNVERIFIABLE = "unverifiable answer"  # words, a choice of letters: nothing a rule can compare
    COMPOSITE = "composite answer"  # more than one quantity
    HUGE = "huge number"  # too long to compare in time, or to be written out
    INTEGER = "integer answer"  # whatever else is no integer (rStar2-Agent 4.2)
    LENGTH = "length"
    DUPLICATE = "duplicate"
    NEAR_DUPLICATE = "near-duplicate"
    CONTAMINATION = "contamination"
    AGREEMENT = "agreement"
    DIFFICULTY = "difficulty"


class RejectedRow(Frozen):
    """One line of a rejected file: which row, the first check that refused it, and all of the row."""

    source: str
    line: int
    id: str
    filter: str
    reason: str
    match: str = ""  # id of its duplicate, or of the benchmark's problem
    problem: str
    answer: str
    row: str  # JSON of its columns; what was read, where it is no row


SCHEMA = "schema"  # always the first: rows without a problem and an answer
SAMPLED = (Check.AGREEMENT, Check.DIFFICULTY)
RULES = [check.value for check in Check if check not in SAMPLED]
MAX_PROBLEM_CHARS = 4000
_LENGTH = re.compile(r"length (\d{1,7})")
_AGREEMENT = re.compile(r"agreement (\d{1,4}) of (\d{1,4})")
_DIFFICULTY = re.compile(r"difficulty (\d{1,4}) to (\d{1,4}) of (\d{1,4})")


@dataclass(frozen=True, slots=True)
class Screening:
    """Which counts of right answers among `samples` a problem may have; a bound that is None is not asked for."""

    samples: int
    agree: int | None = None
    low: int | None = None
    high: int | None = None


@dataclass(frozen=True, slots=True)
class Checks:
    rules: frozenset[Check]
    screening: Screening | None
    max_problem_chars: int = MAX_PROBLEM_CHARS


def parse_checks(texts: Sequence[str]) -> Checks:
    """ValueError with a sentence for an unknown check, one named twice, or counts that cannot be."""
    rules: list[Check] = []
    bounds: dict[str, int] = {}
    max_problem_chars = MAX_PROBLEM_CHARS
    for text in texts:
        if text in RULES:
            rules.append(Check(text))
        elif match := _LENGTH.fullmatch(text):
            rules.append(Check.LENGTH)
            max_problem_chars = int(match[1])
        elif match := _AGREEMENT.fullmatch(text):
            rules.append(Check.AGREEMENT)
            _add(bounds, agree=int(match[1]), samples=int(match[2]))
        elif match := _DIFFICULTY.fullmatch(text):
            rules.append(Check.DIFFICULTY)
            _add(bounds, low=int(match[1]), high=int(match[2]), samples=int(match[3]))
        else:
            known = ", ".join(RULES)
            raise ValueError(
                f"there is no check {text[:80]!r}; known are {known}, 'length N', 'agreement M of N' and "
                "'difficulty A to B of N'"
            )
    if twice := sorted({rule for rule in rules if rules.count(rule) > 1}):
        raise ValueError(f"the check {twice[0].value!r} is named twice")
    if max_problem_chars < 10:
        raise ValueError(f"length {max_problem_chars}: no problem is that short")
    return Checks(frozenset(rules), Screening(**bounds) if bounds else None, max_problem_chars)


def _add(bounds: dict[str, int], samples: int, **counts: int) -> None:
    if bounds.get("samples", samples) != samples:
        raise ValueError(f"agreement and difficulty share their samples: {bounds['samples']} and {samples} differ")
    if samples < 1 or any(count > samples for count in counts.values()):
        raise ValueError(f"at most {samples} of {samples} samples can match")
    if counts.get("low", 0) > counts.get("high", samples):
        raise ValueError(f"difficulty {counts['low']} to {counts['high']}: the lower count comes first")
    bounds.update(counts, samples=samples)
