"""Turns that wait for an engine, in order, and how long turns turn out to be: the scheduler's data, no decisions."""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Hashable
from dataclasses import dataclass

Key = Hashable  # of a trajectory


@dataclass(frozen=True, slots=True)
class Turn:
    """A turn that wants to be generated. `tokens`: ids there are; `max_new`: at most so many more."""

    trajectory: Key
    tokens: int
    max_new: int


class Tokens:
    """Tokens of KV cache by trajectory, and their sum."""

    def __init__(self) -> None:
        self.of: dict[Key, int] = {}
        self.sum = 0

    def __len__(self) -> int:
        return len(self.of)

    def add(self, key: Key, tokens: int) -> None:
        self.of[key] = tokens
        self.sum += tokens

    def remove(self, key: Key) -> int:
        """0: there were none."""
        tokens = self.of.pop(key, 0)
        self.sum -= tokens
        return tokens


class WaitingTurns:
    """A queue in the order of numbers, which are places: a turn may come back to one that is not the last."""

    def __init__(self) -> None:
        self._places: list[int] = []
        self._turns: dict[int, Turn] = {}

    def __len__(self) -> int:
        return len(self._places)

    def add(self, place: int, turn: Turn) -> None:
        insort(self._places, place)
        self._turns[place] = turn

    def remove(self, place: int) -> None:
        del self._places[bisect_left(self._places, place)]
        del self._turns[place]

    def first(self) -> tuple[int, Turn]:
        """The least place and its turn."""
        return self._places[0], self._turns[self._places[0]]

    def turns(self) -> list[Turn]:
        return [self._turns[place] for place in self._places]


class Lengths:
    """A quantile of the new tokens of the newest `window` turns, learned as they end.

    The first turns that end are the short ones, so a guess stands until `enough` have been seen.
    """

    def __init__(self, quantile: float, *, guess: int = 512, enough: int = 32, window: int = 512) -> None:
        self._quantile = quantile
        self._guess = guess
        self._enough = enough
        self._newest: deque[int] = deque()
        self._window = window
        self._sorted: list[int] = []

    def add(self, new_tokens: int) -> None:
        if len(self._newest) == self._window:
            oldest = self._newest.popleft()
            del self._sorted[bisect_left(self._sorted, oldest)]
        self._newest.append(new_tokens)
        insort(self._sorted, new_tokens)

    @property
    def value(self) -> int:
        """Tokens."""
        if len(self._sorted) < self._enough:
            return self._guess
        return self._sorted[min(len(self._sorted) - 1, int(self._quantile * len(self._sorted)))]
