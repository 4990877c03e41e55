"""The turns that decode, an array for each quantity: row i belongs to the request of cache row i.

A step reads and writes whole columns; what is asked of a single turn is asked when it has ended or is watched.
"""

import numpy as np
from torch import Tensor

from trainer.rollout.engine import SamplingSpec

NO_STOP = -1


class TurnRows:
    """`rows` turns of at most `max_tokens` sampled tokens. Memory is taken where it is first written."""

    def __init__(self, rows: int, max_tokens: int) -> None:
        shape = (rows, max_tokens)
        self._uniforms = np.empty(shape)
        self._ids = np.empty(shape, dtype=np.int64)
        self._logprobs = np.empty(shape, dtype=np.float32)
        self._entropies = np.empty(shape, dtype=np.float32)
        self._versions = np.empty(shape, dtype=np.int64)  # of the policy that sampled the token
        self._temperatures = np.empty(rows, dtype=np.float32)
        self._counts = np.zeros(rows, dtype=np.int64)  # sampled so far
        self._limits = np.zeros(rows, dtype=np.int64)
        self._stops = np.full((rows, 1), NO_STOP)

    def begin(self, row: int, spec: SamplingSpec, uniforms: np.ndarray) -> None:
        """A turn with one number in [0, 1) for each of its tokens."""
        self._uniforms[row, : spec.max_tokens] = uniforms
        self._temperatures[row] = spec.temperature
        self._counts[row], self._limits[row] = 0, spec.max_tokens
        if (wider := len(spec.stop_ids) - self._stops.shape[1]) > 0:
            self._stops = np.pad(self._stops, ((0, 0), (0, wider)), constant_values=NO_STOP)
        self._stops[row] = NO_STOP
        self._stops[row, : len(spec.stop_ids)] = spec.stop_ids

    def move(self, row: int, to: int) -> None:
        """The turn of `row` goes on in row `to`, whose own has ended."""
        count, limit = self._counts[row], self._limits[row]
        self._uniforms[to, :limit] = self._uniforms[row, :limit]
        self._ids[to, :count] = self._ids[row, :count]
        self._logprobs[to, :count] = self._logprobs[row, :count]
        self._entropies[to, :count] = self._entropies[row, :count]
        self._versions[to, :count] = self._versions[row, :count]
        self._temperatures[to] = self._temperatures[row]
        self._stops[to] = self._stops[row]
        self._counts[to], self._limits[to] = count, limit

    def newest(self, rows: int) -> np.ndarray:
        """The last token of the first `rows` turns, [rows, 1]."""
        every = np.arange(rows)
        return self._ids[every, self._counts[:rows] - 1][:, None]

    def draws(self, rows: slice) -> tuple[np.ndarray, np.ndarray]:
        """Temperatures, and the uniform number of each turn's next token."""
        counts = self._counts[rows]
        return self._temperatures[rows], self._uniforms[np.arange(rows.start, rows.stop), counts]

    def add(self, rows: slice, version: int, ids: Tensor, logprobs: Tensor, entropies: Tensor) -> list[int]:
        """A token for each turn, sampled by policy `version`; the rows of those that ended with it."""
        counts, new = self._counts[rows], ids.numpy()
        at = np.arange(rows.start, rows.stop), counts
        self._ids[at], self._logprobs[at], self._entropies[at] = new, logprobs.numpy(), entropies.numpy()
        self._versions[at] = version
        counts += 1
        has_ended = (counts >= self._limits[rows]) | (self._stops[rows] == new[:, None]).any(axis=1)
        ended: list[int] = (rows.start + np.flatnonzero(has_ended)).tolist()
        return ended

    def count(self, row: int) -> int:
        """Tokens sampled so far."""
        return int(self._counts[row])

    def turn(self, row: int, start: int = 0) -> tuple[list[int], list[float], list[float]]:
        """Ids, log-probabilities and entropies of the turn's tokens from `start` on."""
        part = slice(start, self._counts[row])
        return self._ids[row, part].tolist(), self._logprobs[row, part].tolist(), self._entropies[row, part].tolist()

    def spans(self, row: int) -> list[tuple[int, int, int]]:
        """(version, start, end) of the turn's tokens, in order."""
        versions = self._versions[row, : self._counts[row]]
        starts: list[int] = [0, *(1 + np.flatnonzero(np.diff(versions))).tolist()]
        return [(int(versions[s]), s, e) for s, e in zip(starts, [*starts[1:], len(versions)], strict=True)]
