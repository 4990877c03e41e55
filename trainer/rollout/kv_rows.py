"""Which tokens each row of the KV cache holds, and moving rows so that the decoding ones stay contiguous."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

MIN_SHARED_PREFIX = 8  # tokens; a shorter common prefix is cheaper to compute than to copy


class KvRows:
    """`cache` [2, layers, rows, kv_heads, tokens, head_dim]; `lengths` [rows]: tokens whose keys are in it."""

    def __init__(self, cache: Tensor) -> None:
        self.cache = cache
        self.count: int = cache.shape[2]
        self.lengths = np.zeros(self.count, dtype=np.int64)
        self._ids = np.zeros((self.count, cache.shape[4]), dtype=np.int64)
        self._used = np.zeros(self.count, dtype=np.int64)
        self._is_old = np.zeros(self.count, dtype=bool)  # decodes on, but holds keys of older weights
        self._clock = 0

    def place(self, ids: Sequence[int], at: int) -> int:
        """Make row `at`, the first that does not decode, the row of `ids`; how many of them it holds already.

        At most len(ids) - 1, for the last one must be fed to have its logits. An idle row that is a prefix
        of `ids` is continued; otherwise the least recently used one gives way and the longest common
        prefix of any row is copied.
        """
        shared = self._shared(np.asarray(ids[:-1], dtype=np.int64))
        idle = np.arange(self.count) >= at
        own = np.where(idle & (shared == self.lengths), shared, 0)
        if own.max(initial=0) > 0:
            self._swap(int(own.argmax()), at)
            return int(self.lengths[at])
        donor = int(shared.argmax())
        length = int(shared[donor]) if shared[donor] >= MIN_SHARED_PREFIX else 0
        victim = self._victim(at)
        self._swap(victim, at)
        donor = {at: victim, victim: at}.get(donor, donor)
        if length and donor != at:
            self.cache[:, :, at, :, :length] = self.cache[:, :, donor, :, :length]
            self._ids[at, :length] = self._ids[donor, :length]
        self.lengths[at] = length
        self._is_old[at] = False
        return length

    def extend(self, ids: np.ndarray) -> None:
        """Note that the key of `ids[i]` was written to row i, behind what it held."""
        count = len(ids)
        self._ids[np.arange(count), self.lengths[:count]] = ids
        self.lengths[:count] += 1

    def append(self, row: int, ids: Sequence[int]) -> None:
        """Note that the keys of `ids` were written to the row, behind what it held."""
        end = self.lengths[row] + len(ids)
        self._ids[row, self.lengths[row] : end] = ids
        self.lengths[row] = end

    def retire(self, row: int, last: int, *, keep: bool) -> None:
        """Row stops decoding: it changes places with `last`, the last decoding row, and is kept for reuse."""
        self._clock += 1
        self._used[row] = self._clock
        if not keep:
            self.lengths[row] = 0
        self._swap(row, last)

    def forget(self, first: int) -> None:
        """Nothing in the rows from `first` on is worth reusing, and nothing may be copied from those before."""
        self.lengths[first:] = 0
        self._is_old[:first] = True

    def _shared(self, ids: np.ndarray) -> np.ndarray:
        """Length of the common prefix of each row with `ids`."""
        if not ids.size:
            return np.zeros_like(self.lengths)
        differs = self._ids[:, : ids.size] != ids
        common = np.where(differs.any(axis=1), differs.argmax(axis=1), ids.size)
        return np.where(self._is_old, 0, np.minimum(common, self.lengths))

    def _victim(self, at: int) -> int:
        empty = np.flatnonzero(self.lengths[at:] == 0)
        return at + int(empty[0] if empty.size else self._used[at:].argmin())

    def _swap(self, a: int, b: int) -> None:
        if a == b:
            return
        length = int(max(self.lengths[a], self.lengths[b]))
        with torch.inference_mode():
            kept = self.cache[:, :, a, :, :length].clone()
            self.cache[:, :, a, :, :length] = self.cache[:, :, b, :, :length]
            self.cache[:, :, b, :, :length] = kept
        for array in (self._ids, self.lengths, self._used, self._is_old):
            array[[a, b]] = array[[b, a]]
