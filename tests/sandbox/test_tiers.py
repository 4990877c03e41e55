"""The choice of the tier by the program's text."""

import pytest

from sandbox.settings import NodeSettings
from sandbox.tiers import Tier, choose_tier


@pytest.mark.parametrize(
    ("code", "tier"),
    [
        ("print(1)", Tier.LIGHT),
        ("import math\nmath.sqrt(2)", Tier.LIGHT),
        ("import numpy as np", Tier.SCIENCE),
        ("from sympy import *", Tier.SCIENCE),
        ("mysympy = 1", Tier.LIGHT),
    ],
)
def test_choice(code: str, tier: Tier) -> None:
    assert choose_tier(code) is tier


@pytest.mark.parametrize(("boxes", "light", "science"), [(2, 1, 1), (3, 2, 1), (9, 6, 3)])
def test_boxes_are_split(boxes: int, light: int, science: int) -> None:
    assert NodeSettings(boxes=boxes).box_counts() == {Tier.LIGHT: light, Tier.SCIENCE: science}


def test_a_single_box_takes_every_program() -> None:
    assert NodeSettings(boxes=1).box_counts() == {Tier.SCIENCE: 1}
