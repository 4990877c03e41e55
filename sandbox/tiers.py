"""Which kind of box a program needs: the choice is made by its text, before it runs."""

import re
from collections.abc import Collection
from enum import StrEnum


class Tier(StrEnum):
    """What is imported already when a call arrives, each more than the one before.

    A richer tier runs everything a poorer one can, and has more pages to copy at every fork. A wrong guess costs
    time, never correctness.
    """

    LIGHT = "light"  # what small programs use of the standard library
    NUMPY = "numpy"
    SYMPY = "sympy"  # numpy, sympy and mpmath
    FULL = "full"  # scipy, pandas and networkx too, where the image has them


# The packages that a box of the tier needs beyond those of the tier before.
PACKAGES = {
    Tier.LIGHT: (),
    Tier.NUMPY: ("numpy",),
    Tier.SYMPY: ("sympy", "mpmath"),
    Tier.FULL: ("scipy", "pandas", "networkx"),
}
_NAMED = {tier: re.compile(rf"\b(?:{'|'.join(PACKAGES[tier])})\b") for tier in (Tier.FULL, Tier.SYMPY, Tier.NUMPY)}
DEFAULT_TIERS = (Tier.LIGHT, Tier.NUMPY, Tier.SYMPY)


def packages_of(tiers: Collection[Tier]) -> list[str]:
    """What an image must hold for boxes of `tiers`."""
    order = list(Tier)
    richest = max(tiers, key=order.index)
    return [name for tier in order[: order.index(richest) + 1] for name in PACKAGES[tier]]


def choose_tier(code: str, have: Collection[Tier] = DEFAULT_TIERS) -> Tier:
    """The cheapest tier among `have` that has imported what `code` names; else the richest there is."""
    wanted = next((tier for tier in _NAMED if _names(code, tier)), Tier.LIGHT)
    order = list(Tier)
    enough = [tier for tier in have if order.index(tier) >= order.index(wanted)]
    return min(enough, key=order.index) if enough else max(have, key=order.index)


def _names(code: str, tier: Tier) -> bool:
    """True when the code names a package of the tier. The plain search first: it is a hundred times faster."""
    return any(package in code for package in PACKAGES[tier]) and _NAMED[tier].search(code) is not None
