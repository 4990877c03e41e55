"""Rollouts of like length into padded micro-batches under a token budget; no split changes a gradient."""

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


@dataclass(frozen=True, slots=True)
class PaddedBatch:
    """`ids`: (rows, longest) right-padded. The trained tokens of all rows, row after row, are
    `targets` (tokens,), predicted at the flat positions `sources` (tokens,) of (rows * longest)."""

    ids: Tensor
    sources: Tensor
    targets: Tensor


def split_micro_batches(lengths: Sequence[int], token_budget: int) -> list[list[int]]:
    """Positions into `lengths`, longest first, so that rows * longest <= budget (one row may exceed it)."""
    batches: list[list[int]] = []
    for i in sorted(range(len(lengths)), key=lambda i: (-lengths[i], i)):
        if batches and (len(batches[-1]) + 1) * lengths[batches[-1][0]] <= token_budget:
            batches[-1].append(i)
        else:
            batches.append([i])
    return batches


def pad_rows(rows: Sequence[Row], pad_id: int) -> PaddedBatch:
    """Right padding: with causal attention no real position sees it. Masks come from lengths, not from ids.

    A token at position t is predicted by the hidden state at t - 1; a prompt is never empty.
    """
    longest = max(len(row.prompt_ids) + len(row.response_ids) for row in rows)
    ids = torch.full((len(rows), longest), pad_id, dtype=torch.long)
    sources, targets = [], []
    for r, row in enumerate(rows):
        start = len(row.prompt_ids)
        sequence = torch.tensor([*row.prompt_ids, *row.response_ids], dtype=torch.long)
        ids[r, : len(sequence)] = sequence
        trained = torch.tensor(row.mask, dtype=torch.bool).nonzero()[:, 0] + start
        sources.append(trained - 1 + r * longest)
        targets.append(sequence[trained])
    return PaddedBatch(ids, torch.cat(sources), torch.cat(targets))
