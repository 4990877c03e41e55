"""Calls that wait for a box: bounded, first come first served by tier, forgotten when nobody waits any more."""

import asyncio
import time
from collections import deque
from dataclasses import dataclass, field

from contracts.execution import Execution, ExecutionCall
from sandbox.tiers import Tier


@dataclass(eq=False)
class Job:
    """One call on its way through the node. `done` is set exactly once."""

    call: ExecutionCall
    tier: Tier
    done: asyncio.Future[Execution]
    queued_at: float = field(default_factory=time.perf_counter)
    attempts: int = 0
    is_running: bool = False

    @classmethod
    def of(cls, call: ExecutionCall, tier: Tier) -> "Job":
        """A job for `call` in the running loop."""
        return cls(call, tier, asyncio.get_running_loop().create_future())

    def finish(self, execution: Execution) -> None:
        """Answer it, unless it is answered or abandoned."""
        if not self.done.done():
            self.done.set_result(execution)

    def abandon(self) -> None:
        """The client has gone: a queued job never runs, a running one ends unheard."""
        self.done.cancel()


class JobQueue:
    """The bounded queue between the service and the boxes."""

    def __init__(self, max_queued: int) -> None:
        self.max_queued = max_queued
        self._jobs: dict[Tier, deque[Job]] = {tier: deque() for tier in Tier}
        self._takers: dict[Tier, deque[asyncio.Future[None]]] = {tier: deque() for tier in Tier}

    def __len__(self) -> int:
        return sum(1 for jobs in self._jobs.values() for job in jobs if not job.done.done())

    def put(self, job: Job, *, first: bool = False) -> bool:
        """Queue it; False when the queue is full. A job put back `first` is always taken."""
        if not first and len(self) >= self.max_queued:
            return False
        jobs = self._jobs[job.tier]
        (jobs.appendleft if first else jobs.append)(job)
        self._wake(job.tier)
        return True

    def _wake(self, tier: Tier) -> None:
        takers = self._takers[tier]
        while takers:
            taker = takers.popleft()
            if not taker.done():
                taker.set_result(None)
                return

    async def take(self, tier: Tier) -> Job:
        """The next job of the tier that somebody still waits for. Cancelling it loses no job."""
        jobs = self._jobs[tier]
        while True:
            while jobs:
                job = jobs.popleft()
                if not job.done.done():
                    return job
            taker: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._takers[tier].append(taker)
            try:
                await taker
            except asyncio.CancelledError:
                if taker.done() and not taker.cancelled():
                    self._wake(tier)  # woken and cancelled at once: the job is for the next one
                raise

    def drain(self) -> list[Job]:
        """Take out everything that waits."""
        jobs = [job for waiting in self._jobs.values() for job in waiting]
        for waiting in self._jobs.values():
            waiting.clear()
        return jobs
