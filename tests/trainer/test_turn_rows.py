import numpy as np
import pytest
import torch

from trainer.rollout.engine import SamplingSpec
from trainer.rollout.turn_rows import TurnRows


def begin(rows: TurnRows, row: int, max_tokens: int, *stop: int) -> None:
    spec = SamplingSpec(max_tokens, 0.5 + row, seed=0, stop_ids=stop)
    rows.begin(row, spec, np.arange(max_tokens) / 10 + row / 100)


def add(rows: TurnRows, where: slice, *ids: int, version: int = 0) -> list[int]:
    numbers = torch.tensor(ids)
    return rows.add(where, version, numbers, -numbers / 2, numbers / 4)


def test_a_turn_ends_with_a_stop_id_or_at_its_limit():
    rows = TurnRows(3, 8)
    begin(rows, 0, 8, 7, 9)
    begin(rows, 1, 2)
    begin(rows, 2, 8, 5)
    assert add(rows, slice(0, 3), 5, 9, 1) == []  # a stop id of another turn is none
    assert add(rows, slice(0, 3), 9, 3, 2) == [0, 1]
    assert rows.turn(0) == ([5, 9], [-2.5, -4.5], [1.25, 2.25])
    assert rows.turn(2, start=1) == ([2], [-1.0], [0.5])


def test_each_token_has_its_own_draw():
    rows = TurnRows(2, 4)
    begin(rows, 0, 3)
    begin(rows, 1, 3)
    add(rows, slice(1, 2), 6)
    temperatures, uniforms = rows.draws(slice(0, 2))
    assert temperatures.tolist() == [0.5, 1.5]
    assert uniforms.tolist() == pytest.approx([0.0, 0.11])


def test_a_turn_goes_on_in_another_row():
    rows = TurnRows(3, 4)
    for row in range(3):
        begin(rows, row, 4, 9)
    add(rows, slice(0, 3), 1, 2, 3)
    rows.move(2, 0)
    assert rows.newest(2).tolist() == [[3], [2]]
    assert rows.draws(slice(0, 2))[1].tolist() == pytest.approx([0.12, 0.11])
    assert add(rows, slice(0, 2), 9, 4) == [0]
    assert rows.turn(0)[0] == [3, 9]


def test_rows_are_used_again_with_fewer_stop_ids():
    rows = TurnRows(1, 4)
    begin(rows, 0, 4, 1, 2, 3)
    begin(rows, 0, 4, 8)
    assert add(rows, slice(0, 1), 2) == []
    assert rows.count(0) == 1


def test_versions_of_a_turn_s_tokens_are_spans():
    rows = TurnRows(1, 8)
    begin(rows, 0, 8)
    for version in (3, 3, 4, 6, 6):
        add(rows, slice(0, 1), 1, version=version)
    assert rows.spans(0) == [(3, 0, 2), (4, 2, 3), (6, 3, 5)]
