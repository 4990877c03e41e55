"""Weights laid ready for engines on GPUs: in bfloat16, one after another, in a file in the memory of the first rank's
machine. Ranks write it tensor by tensor; the process that sends it to the engines maps the same memory."""

import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trainer.rollout.weights import digest, is_checkable

ENGINE_DTYPE = torch.bfloat16


@dataclass(frozen=True, slots=True)
class Offer:
    """What is in `path`, in the order of `names`. `checksums`: of what an engine can be asked about;
    `probe_logprobs`: of the ids of `draw_probe`, by the weights it was made of, nats."""

    path: Path
    names: list[str]
    shapes: list[list[int]]
    checksums: dict[str, str]
    probe_logprobs: list[float]


def write_offer(
    path: Path, weights: Iterable[tuple[str, Tensor]], *, size: int, vocabulary: int, probe_logprobs: list[float]
) -> Offer:
    """`size`: values in all. OSError where there is no room for them."""
    path.unlink(missing_ok=True)
    with path.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, size * ENGINE_DTYPE.itemsize)  # else a full memory is a SIGBUS later on
    held = _map(path, size)
    offer = Offer(path, [], [], {}, probe_logprobs)
    start = 0
    for name, weight in weights:
        here = held[start : start + weight.numel()].view(weight.shape)
        here.copy_(weight.detach().to(ENGINE_DTYPE))  # where it is: half as many bytes come from a GPU
        start += weight.numel()
        offer.names.append(name)
        offer.shapes.append(list(weight.shape))
        if is_checkable(name, here, vocabulary):
            offer.checksums[name] = digest(here)
    return offer


def read_offer(path: Path, shapes: Sequence[Sequence[int]]) -> Iterator[Tensor]:
    """Each tensor as it is in that memory, not copied."""
    sizes = [torch.Size(shape).numel() for shape in shapes]
    for part, shape in zip(_map(path, sum(sizes)).split(sizes), shapes, strict=True):
        yield part.view(torch.Size(shape))


def _map(path: Path, size: int) -> Tensor:
    return torch.from_file(str(path), shared=True, size=size, dtype=ENGINE_DTYPE)
