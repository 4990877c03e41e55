"""Which kind of box a program needs: the choice is made by its text, before it runs."""

import re
from enum import StrEnum

_SCIENCE = re.compile(r"\b(?:numpy|sympy|mpmath|scipy)\b")


class Tier(StrEnum):
    """What is imported already when a call arrives. A wrong guess costs time, never correctness."""

    LIGHT = "light"  # what small programs use of the standard library
    SCIENCE = "science"  # numpy, sympy and mpmath too: three times the pages to copy at every fork


def choose_tier(code: str) -> Tier:
    """The cheapest tier that has imported what `code` names."""
    return Tier.SCIENCE if _SCIENCE.search(code) else Tier.LIGHT
