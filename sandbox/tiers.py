"""Which kind of box a program needs: the choice is made by its text, before it runs."""

import re
from enum import StrEnum

_SCIENCE = re.compile(r"\b(?:sympy|mpmath)\b")


class Tier(StrEnum):
    """What is imported already when a call arrives. A wrong guess costs time, never correctness."""

    LIGHT = "light"  # the standard library, and numpy: forking it costs hardly more
    SCIENCE = "science"  # sympy and mpmath too: four times the pages to copy


def choose_tier(code: str) -> Tier:
    """The cheapest tier that has imported what `code` names."""
    return Tier.SCIENCE if _SCIENCE.search(code) else Tier.LIGHT
