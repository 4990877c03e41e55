"""One derivation for every seed, so that a resumed run draws what the uninterrupted one would have drawn."""

import random
from hashlib import blake2b

import numpy as np
import torch


def derive_seed(run_seed: int, *parts: int | str) -> int:
    """A 63-bit seed for (run, stage, step, prompt, sample, turn); any shorter tuple is its own seed.

    Stable over processes and versions (never Python's `hash`). Type and length of each part are hashed
    too, so (1, "2") and ("1", 2) and ("12",) differ.
    """
    digest = blake2b(digest_size=8, person=b"astrolabe-seed")
    for part in (run_seed, *parts):
        text = str(part).encode()
        digest.update(f"{'i' if isinstance(part, int) else 's'}{len(text)}:".encode())
        digest.update(text)
    return int.from_bytes(digest.digest(), "big") >> 1


def seed_generators(seed: int) -> None:
    """The global generators of Python, numpy and torch, for libraries that draw from them."""
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    torch.manual_seed(seed)
