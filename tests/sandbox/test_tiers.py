"""The choice of the tier by the program's text."""

import pytest

from sandbox.settings import NodeSettings
from sandbox.tiers import Tier, choose_tier


@pytest.mark.parametrize(
    ("code", "tier"),
    [
        ("print(1)", Tier.LIGHT),
        ("import math\nmath.sqrt(2)", Tier.LIGHT),
        ("import numpy as np", Tier.NUMPY),
        ("from sympy import *", Tier.SYMPY),
        ("import numpy, sympy", Tier.SYMPY),
        ("import scipy.optimize", Tier.SYMPY),  # the richest of a node without the full tier
        ("mysympy = 1", Tier.LIGHT),
    ],
)
def test_choice(code: str, tier: Tier) -> None:
    assert choose_tier(code) is tier


def test_a_richer_tier_does_for_a_poorer_one() -> None:
    assert choose_tier("import numpy", [Tier.LIGHT, Tier.FULL]) is Tier.FULL
    assert choose_tier("import networkx", list(Tier)) is Tier.FULL
    assert choose_tier("print(1)", [Tier.SYMPY]) is Tier.SYMPY


@pytest.mark.parametrize(("boxes", "light", "numpy", "sympy"), [(2, 1, 0, 1), (3, 1, 1, 1), (5, 2, 1, 2), (8, 4, 1, 3)])
def test_boxes_are_split(boxes: int, light: int, numpy: int, sympy: int) -> None:
    counts = {Tier.LIGHT: light, Tier.NUMPY: numpy, Tier.SYMPY: sympy}
    assert NodeSettings(boxes=boxes).box_counts() == {tier: count for tier, count in counts.items() if count}


def test_a_single_box_takes_every_program() -> None:
    assert NodeSettings(boxes=1).box_counts() == {Tier.SYMPY: 1}
