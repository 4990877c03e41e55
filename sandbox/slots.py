"""A slot keeps one box alive: takes a job, runs it, waits until the box is clean again, replaces it when it is not."""

import asyncio
import itertools
import logging
import signal
import time
from collections.abc import Mapping
from typing import Any, Protocol

from sandbox.box import Box, BoxError, BoxOutOfMemoryError
from sandbox.cores import Cores
from sandbox.jobs import Job
from sandbox.tally import Tally
from sandbox.tiers import Tier

log = logging.getLogger("sandbox.slots")

RECYCLE_CALLS = 500
RECYCLE_THREADS = 400
RECYCLE_GROWTH_MB = 128  # a box keeps what its programs freed, and gVisor of 2022 does not see it used again
CHECK_EVERY_CALLS = 20
LONG_MS = 100  # it takes longer to fill that much memory
RESTART_BACKOFF_S = (0.2, 1.0, 5.0)
_MEMORY_FAULTS = (signal.SIGSEGV, signal.SIGBUS, signal.SIGILL)
DROP_AFTER_S = 1.0  # most calls whose caller has gone end by themselves sooner
DROP_SAVES_S = 2.0  # a new box costs half a second of CPU: not for a call that ends soon anyway


class SlotOwner(Protocol):
    """Whom a slot works for: the pool."""

    tally: Tally
    where: Cores

    async def start_box(self, tier: Tier) -> Box:
        """A new box; raises BoxError."""
        ...

    def retire(self, box: Box) -> None:
        """End a box in the background."""
        ...

    def take(self, slot: "Slot") -> None:
        """The slot is ready for a job; it may get one at once."""
        ...

    def forget_idle(self, slot: "Slot") -> None:
        """The slot takes no jobs at the moment."""
        ...

    def wants_spare(self, tier: Tier) -> bool:
        """True when a box of the tier may idle after its call."""
        ...

    def answer(self, job: Job, reply: Mapping[str, Any], *, box: Box, queue_s: float) -> None:
        """Answer a job with what the box said."""
        ...

    def blame(self, job: Job, *, box: Box, spent_s: float, queue_s: float) -> None:
        """Answer a job whose program took so much memory that its box died."""
        ...

    def give_back(self, job: Job, reason: str) -> None:
        """A box died under this job."""
        ...


class Slot:
    """Keeps one box of a tier alive and runs the jobs that the pool hands to it."""

    def __init__(self, pool: SlotOwner, tier: Tier) -> None:
        self._pool = pool
        self.tier = tier
        self.box: Box | None = None
        self.job: Job | None = None
        self.idle_since = time.monotonic()
        self._started = 0.0  # when the current job began
        self._leaving = ""  # why the box has to go, said from outside
        self._is_dropped = False  # the box was killed because nobody waits for its answer
        self._offer: asyncio.Future[Job | str] | None = None
        self._is_over = False

    @property
    def is_ready(self) -> bool:
        """True when it would take a job at once."""
        return self.box is not None and self._offer is not None and not self._offer.done()

    @property
    def is_busy(self) -> bool:
        """True while its box runs a job or cleans up after it."""
        return self.box is not None and not self.is_ready

    def give(self, job: Job) -> None:
        """Hand a job to a ready slot."""
        assert self._offer is not None  # noqa: S101 - only ready slots are given jobs
        self.job = job
        self._offer.set_result(job)

    def replace(self, reason: str, *, tier: Tier | None = None) -> None:
        """Replace the box as soon as it is idle, if wanted by one of another tier."""
        self.tier = tier or self.tier
        self._leaving = self._leaving or reason
        if self.is_ready and self._offer is not None:
            self._offer.set_result(reason)

    def end(self) -> None:
        """End the box as soon as it is idle, and the slot with it."""
        self._is_over = True
        self.replace("not needed")

    def drop(self, job: Job) -> None:
        """The caller has gone: end the call by ending the box, where that saves more than a new box costs."""
        if self.job is job and self.box is not None:
            left_s = job.call.limits.wall_s - (time.monotonic() - self._started)
            if left_s > DROP_SAVES_S:
                self._is_dropped = True
                self._pool.retire(self.box)  # the wait for its answer ends at once

    async def serve(self) -> None:
        """Until cancelled or ended: start, work, replace."""
        while not self._is_over:
            box = self.box or await self._start()
            self.box = box
            watching = asyncio.create_task(self._watch(box))
            try:
                reason = await self._work(box)
            finally:
                watching.cancel()
                self.box, self._leaving, self._is_dropped = None, "", False
                self._pool.retire(box)
                if self.job is not None:
                    self._pool.give_back(self.job, "its slot ended")
                    self.job = None
            if not self._is_over:
                log.info("replacing a %s box: %s", self.tier, reason)
                self._pool.tally.replaced[reason.split(":")[0]] += 1

    async def _start(self) -> Box:
        for failures in itertools.count():
            try:
                return await self._pool.start_box(self.tier)
            except BoxError as error:
                delay_s = RESTART_BACKOFF_S[min(failures, len(RESTART_BACKOFF_S) - 1)]
                log.error("%s; next try in %g s", error, delay_s)
                self._pool.tally.replaced["start"] += 1
                await asyncio.sleep(delay_s)
        raise AssertionError("not reached")

    async def _watch(self, box: Box) -> None:
        """A box that dies idle is replaced before a call finds out."""
        await box.wait_dead()
        self._pool.forget_idle(self)
        self.replace("died idle")

    async def _work(self, box: Box) -> str:
        """Run jobs on the box until it has to go; returns why."""
        while True:
            found = await self._next()
            if isinstance(found, str):
                return found
            reason = await self._run(box, found)
            if reason:
                return reason

    async def _next(self) -> Job | str:
        """The next job, or the reason to replace the box."""
        if self._leaving:
            return self._leaving
        self._offer = asyncio.get_running_loop().create_future()
        self.idle_since = time.monotonic()
        self._pool.take(self)
        try:
            return await self._offer
        finally:
            self._offer = None
            self._pool.forget_idle(self)

    async def _run(self, box: Box, job: Job) -> str:
        """One job on the box; the reason to replace the box afterwards, or ""."""
        job.attempts += 1
        self._started = time.monotonic()
        queue_s = job.queued_s + self._started - job.queued_at
        try:
            with self._pool.where.at_work(box):
                reply = await box.run(job.call, spare=self._pool.wants_spare(self.tier))
                tainted = await box.prove() if _is_memory_fault(reply) else ""
                self._pool.answer(job, reply, box=box, queue_s=queue_s)
                self.job = None
                tainted = tainted or await box.wait_ready()
        except BoxOutOfMemoryError:
            self._pool.blame(job, box=box, spent_s=time.monotonic() - self._started, queue_s=queue_s)
            self.job = None
            return "out of memory"
        except BoxError as error:
            # Not answered yet means the box died under it: once more on another box, then it is our failure.
            self.job = None
            self._pool.give_back(job, str(error))
            return "caller gone" if self._is_dropped else f"{type(error).__name__}: {error}"
        self._pool.tally.observe(self.tier, time.monotonic() - self._started, reply["cpu_ms"] / 1000)
        return self._worn(box, reply, tainted)

    def _worn(self, box: Box, reply: dict[str, Any], tainted: str) -> str:
        if tainted or not reply["swept"]:
            return f"tainted: {tainted or 'processes left behind'}"
        if box.calls >= RECYCLE_CALLS:
            return "recycled"
        is_due = box.calls % CHECK_EVERY_CALLS == 0
        if (is_due or reply["exec_ms"] > LONG_MS) and box.growth_mb() > RECYCLE_GROWTH_MB:
            return "memory"
        if is_due and box.threads() > RECYCLE_THREADS:
            return "threads"
        return ""


def _is_memory_fault(reply: dict[str, Any]) -> bool:
    """A host that gives the box's kernel no more memory shows itself so in any program that maps a file."""
    return reply["status"] == "signal" and reply["signal"] in _MEMORY_FAULTS
