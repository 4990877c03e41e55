"""The boxes of a node and the one rule by which they get work: a clean box takes one job at a time.

A slot keeps one box alive: takes a job, runs it, waits until the box is clean again, replaces it when it is not.
"""

import asyncio
import contextlib
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from contracts.execution import MAX_CODE_BYTES, Execution, ExecutionCall, ExecutionStatus
from sandbox.box import Box, BoxError
from sandbox.jobs import Job, JobQueue
from sandbox.launcher import Launcher
from sandbox.tiers import Tier, choose_tier

log = logging.getLogger("sandbox.pool")

MAX_ATTEMPTS = 2
RECYCLE_CALLS = 500
RECYCLE_THREADS = 400
RESTART_BACKOFF_S = (0.2, 1.0, 5.0)
IMAGE_SETTLE_S = 0.3  # the spare child of the template warms itself up before the checkpoint
TYPICAL_CALL_S = 0.06  # before anything was measured


@dataclass
class Tally:
    """What the node has done since it started."""

    served: int = 0
    by_status: Counter[str] = field(default_factory=Counter)
    replaced: Counter[str] = field(default_factory=Counter)
    mean_call_s: float = TYPICAL_CALL_S  # moving average of a box's time per call


class Slot:
    """Keeps one box of a tier alive and feeds it from the queue."""

    def __init__(self, pool: "Pool", tier: Tier) -> None:
        self._pool = pool
        self.tier = tier
        self.box: Box | None = None
        self.is_busy = False

    @property
    def is_ready(self) -> bool:
        """True when it would take a job at once."""
        return self.box is not None and not self.is_busy

    async def serve(self) -> None:
        """Until cancelled: start, work, replace."""
        failures = 0
        while True:
            try:
                if self.box is None:
                    self.box = await Box.start(self._pool.launcher, self.tier)
                failures = 0
                reason = await self._work(self.box)
            except BoxError as error:
                reason = "start"
                delay_s = RESTART_BACKOFF_S[min(failures, len(RESTART_BACKOFF_S) - 1)]
                failures += 1
                log.error("%s; next try in %g s", error, delay_s)
                await asyncio.sleep(delay_s)
            self._pool.tally.replaced[reason] += 1
            await self.close()

    async def _work(self, box: Box) -> str:
        """Run jobs on the box until it has to go; returns why."""
        while True:
            job = await self._next_job(box)
            if job is None:
                log.info("an idle %s box died", self.tier)
                return "died idle"
            self.is_busy = True
            try:
                reason = await self._run(box, job)
            finally:
                self.is_busy = False
            if reason:
                log.info("replacing a %s box: %s", self.tier, reason)
                return reason.split(":")[0]

    async def _next_job(self, box: Box) -> Job | None:
        """The next job, or None when the box dies while it waits for one."""
        taking = asyncio.create_task(self._pool.queue.take(self.tier))
        dying = asyncio.create_task(box.wait_dead())
        try:
            await asyncio.wait({taking, dying}, return_when=asyncio.FIRST_COMPLETED)
            return taking.result() if taking.done() else None
        except asyncio.CancelledError:
            if taking.done() and not taking.cancelled():
                self._pool.fail(taking.result(), "the node is stopping")
            raise
        finally:
            for task in (taking, dying):
                task.cancel()

    async def _run(self, box: Box, job: Job) -> str:
        """One job on the box; the reason to replace the box afterwards, or ""."""
        job.attempts += 1
        job.is_running = True
        started = time.perf_counter()
        queue_s = started - job.queued_at
        try:
            reply = await box.run(job.call)
            self._pool.answer(job, reply, queue_s)
            tainted = await box.wait_ready()
        except BoxError as error:
            # Not answered yet means the box died under it: once more on another box, then it is our failure.
            self._pool.give_back(job, str(error))
            return f"{type(error).__name__}: {error}"
        except asyncio.CancelledError:
            self._pool.fail(job, "the node is stopping")
            raise
        self._pool.tally.mean_call_s += 0.05 * (time.perf_counter() - started - self._pool.tally.mean_call_s)
        if tainted or not reply["swept"]:
            return f"tainted: {tainted or 'processes left behind'}"
        if box.calls >= RECYCLE_CALLS:
            return "recycled"
        if box.calls % 20 == 0 and box.threads() > RECYCLE_THREADS:
            return "threads"
        return ""

    async def close(self) -> None:
        """End the box."""
        box, self.box = self.box, None
        if box is not None:
            await box.close()


class Pool:
    """All slots of a node."""

    def __init__(self, launcher: Launcher, *, boxes: Mapping[Tier, int], max_queued: int, node: str) -> None:
        self.launcher = launcher
        self.queue = JobQueue(max_queued)
        self.tally = Tally()
        self.node = node
        self.slots = [Slot(self, tier) for tier, count in boxes.items() for _ in range(count)]
        self._tasks: list[asyncio.Task[None]] = []
        self.on_answer: Callable[[Execution], None] = lambda _: None

    async def start(self, examine: Callable[[Box], Any]) -> None:
        """Start every box, let `examine` (a coroutine function) attack the first of them, then take jobs."""
        starting = [asyncio.create_task(Box.start(self.launcher, slot.tier)) for slot in self.slots]
        try:
            for slot, task in zip(self.slots, starting, strict=True):
                slot.box = await task
                if slot is self.slots[0]:
                    await examine(slot.box)
                    await slot.close()  # it was attacked: it does not serve
        except BaseException:
            await self._abort(starting)
            raise
        self._tasks = [asyncio.create_task(slot.serve()) for slot in self.slots]

    async def _abort(self, starting: list[asyncio.Task[Box]]) -> None:
        for task in starting:
            task.cancel()
        for slot, outcome in zip(self.slots, await asyncio.gather(*starting, return_exceptions=True), strict=True):
            if isinstance(outcome, Box) and slot.box is None:
                await outcome.close()
            await slot.close()

    def make_images(self) -> None:
        """In the background: save an image of each tier, so that replacements are restored and not started cold."""
        self._tasks.append(asyncio.create_task(self._make_images()))

    async def _make_images(self) -> None:
        for tier in dict.fromkeys(slot.tier for slot in self.slots):
            if not self.launcher.wants_image(tier):
                continue
            with contextlib.suppress(BoxError):
                template = await Box.start(self.launcher, tier, cold=True)
                try:
                    await asyncio.sleep(IMAGE_SETTLE_S)
                    saved = await template.save_image()
                except asyncio.CancelledError:
                    await template.close()
                    raise
                log.info("image of a %s box %s", tier, "saved" if saved else "not saved: replacements start cold")

    async def submit(self, call: ExecutionCall) -> Job:
        """Queue a call. The answer, whatever it is, comes by `job.done`; a full queue answers `rejected` at once."""
        job = Job.of(call, self._tier_for(call.code))
        if len(call.code.encode()) > MAX_CODE_BYTES:
            text = f"SyntaxError: the program is longer than {MAX_CODE_BYTES} bytes\n"
            self._finish(job, ExecutionStatus.ERROR, exit_code=1, stderr=text, stderr_bytes=len(text))
        elif not self.queue.put(job):
            self._finish(job, ExecutionStatus.REJECTED, reason="the queue is full", retry_after_s=self.drain_s())
        return job

    def _tier_for(self, code: str) -> Tier:
        """The tier of the code, or the only one this node has."""
        return choose_tier(code, {slot.tier for slot in self.slots})

    def drain_s(self) -> float:
        """When about the queue would have room again (seconds)."""
        return round(max(0.1, len(self.queue) * self.tally.mean_call_s / max(1, len(self.slots)) / 2), 2)

    def answer(self, job: Job, reply: dict[str, Any], queue_s: float) -> None:
        """Answer a job with what the box said."""
        fields = {name: reply[name] for name in _REPLY_FIELDS}
        self._finish(job, ExecutionStatus(reply["status"]), **fields, queue_ms=queue_s * 1000)

    def give_back(self, job: Job, reason: str) -> None:
        """A box died under this job, if it is not answered: retry once elsewhere, then admit it."""
        if job.done.done():
            return
        if job.attempts >= MAX_ATTEMPTS:
            self.fail(job, f"{job.attempts} boxes failed under this call, last: {reason}")
        else:
            self.queue.put(job, first=True)

    def fail(self, job: Job, reason: str) -> None:
        """Answer a job with our own failure."""
        self._finish(job, ExecutionStatus.SANDBOX_ERROR, reason=reason, retry_after_s=1.0)

    def _finish(self, job: Job, status: ExecutionStatus, **fields: Any) -> None:
        execution = Execution(
            id=job.call.id,
            status=status,
            attempts=max(1, job.attempts),
            node=self.node,
            isolation=self.launcher.isolation,
            **fields,
        )
        self.tally.served += not status.is_ours
        self.tally.by_status[status.value] += 1
        self.on_answer(execution)
        job.finish(execution)

    async def stop(self) -> None:
        """Answer everything that waits with our failure and end every box."""
        for job in self.queue.drain():
            self.fail(job, "the node is stopping")
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(slot.close() for slot in self.slots), return_exceptions=True)


_REPLY_FIELDS = (
    "exit_code", "signal", "stdout", "stderr", "stdout_bytes", "stderr_bytes", "truncated", "exec_ms", "cpu_ms",
    "max_rss_kb",
)  # fmt: skip
