"""Rollouts end to end without padding, in micro-batches under a token budget; no split changes a gradient."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Row:
    """One sequence to score: prompt and response ids; `mask` (of the response) is 1 on trained tokens."""

    prompt_ids: Sequence[int]
    response_ids: Sequence[int]
    mask: Sequence[int]

    @property
    def length(self) -> int:
        return len(self.prompt_ids) + len(self.response_ids)


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Rows one after another: `ids` and `positions` (tokens,), a row's positions counted from 0; `lengths` of the rows.

    The trained tokens of all rows, row after row, are `targets` (trained,), predicted at `sources` (trained,),
    indices into `ids`.
    """

    ids: Tensor
    positions: Tensor
    lengths: list[int]
    sources: Tensor
    targets: Tensor


def split_micro_batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Positions into `lengths`, longest first, each in the first micro-batch that has room (first-fit decreasing).

    A row longer than the budget is alone in its micro-batch.
    """
    batches: list[list[int]] = []
    rooms: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        place = next((b for b, room in enumerate(rooms) if lengths[i] <= room), None)
        if place is None:
            batches.append([i])
            rooms.append(token_budget - lengths[i])
        else:
            batches[place].append(i)
            rooms[place] -= lengths[i]
    return batches


def balance_rows(lengths: Sequence[int], ranks: int, width: int) -> list[list[int]]:
    """Positions into `lengths` for each rank: the costliest first, to the rank that has least to do (LPT).

    A row of L tokens costs L * (1 + L / (12 * width)): a layer multiplies about 24 * width^2 a token, and attention
    2 * L * width more. `width`: the model's hidden size.
    """
    costs = [length * (1 + length / (12 * width)) for length in lengths]
    loads = [0.0] * ranks
    dealt: list[list[int]] = [[] for _ in range(ranks)]
    for i in sorted(range(len(costs)), key=lambda i: (-costs[i], i)):
        rank = min(range(ranks), key=lambda r: (loads[r], len(dealt[r]), r))
        dealt[rank].append(i)
        loads[rank] += costs[i]
    return dealt


def pack_rows(rows: Sequence[Row]) -> PackedBatch:
    """A token at position t of a row is predicted at t - 1 of the same row; a prompt is never empty.

    Masks come from the rows, not from ids. No rows at all give one token that trains nothing.
    """
    lengths = [row.length for row in rows] or [1]
    ids = [i for row in rows for i in (*row.prompt_ids, *row.response_ids)] or [0]
    sources, start = [], 0
    for row in rows:
        first = start + len(row.prompt_ids)
        sources += [first + t - 1 for t, trained in enumerate(row.mask) if trained]
        start += row.length
    packed = torch.tensor(ids, dtype=torch.long)
    at = torch.tensor(sources, dtype=torch.long)
    positions = torch.cat([torch.arange(length) for length in lengths])
    return PackedBatch(packed, positions, lengths, at, packed[at + 1])
