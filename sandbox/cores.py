"""One core for a box at a time: its kernel and its program take turns, and a turn across cores costs an interrupt.

On the ptrace platform every system call and page fault of a program is such a turn. Before a call a box moves to the
core with the fewest boxes at work, if that is not its own.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Movable(Protocol):
    """What moves: a box."""

    cpu: int | None

    def move(self, cpu: int) -> bool:
        """Go to a core; False when it cannot or need not."""
        ...


class Cores:
    """How many boxes work on each core that this process may use."""

    def __init__(self, cpus: set[int] | None = None) -> None:
        self._working = dict.fromkeys(sorted(cpus or os.sched_getaffinity(0)), 0)

    @contextmanager
    def at_work(self, box: Movable) -> Iterator[None]:
        """For the time of a call: the box is on the least loaded core, its own where that is as good."""
        cpu = min(self._working, key=lambda number: (self._working[number], number != box.cpu))
        if cpu != box.cpu and not box.move(cpu) and box.cpu in self._working:
            cpu = box.cpu
        self._working[cpu] += 1
        try:
            yield
        finally:
            self._working[cpu] -= 1
