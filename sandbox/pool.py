"""The boxes of a node and the rule by which they get work: a clean box takes one job at a time.

A job goes to a box of its own tier, the longest warm first. A box of a richer tier, which has imported more than the
job needs and so costs more CPU, takes it only while fewer boxes work than there are cores.
"""

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping
from typing import Any

from contracts.execution import MAX_CODE_BYTES, Execution, ExecutionCall, ExecutionStatus
from sandbox.box import Box, BoxError
from sandbox.cores import Cores
from sandbox.jobs import Answers, Job, JobQueue
from sandbox.launcher import Launcher
from sandbox.machine import count_cores, cpu_ticks, idle_share
from sandbox.scaling import Move, TierLoad, plan
from sandbox.slots import DROP_AFTER_S, Slot
from sandbox.tally import Tally
from sandbox.tiers import Tier, choose_tier

log = logging.getLogger("sandbox.pool")

MAX_ATTEMPTS = 2
MAX_UNREAD_BYTES = 256 << 20  # of one request; a caller that reads slower gets no further calls run
CRASH_PAUSE_S = 1.0
TICK_S = 1.0
MOVE_PAUSE_S = 3.0  # between two changes of the boxes: the first has to show its effect
RETRY_S = (0.1, 30.0)  # the shortest and the longest wait we ask a caller for
STOPPING = "the node is stopping"


class Pool:
    """All slots of a node, and the queue before them."""

    def __init__(
        self,
        launcher: Launcher,
        *,
        boxes: Mapping[Tier, int],
        node: str,
        max_queued: int,
        max_queued_bytes: int = 512 << 20,
        max_boxes: int = 0,
    ) -> None:
        self.launcher = launcher
        self.node = node
        self.cores = count_cores()
        self.where = Cores()
        self.tiers = [tier for tier in Tier if boxes.get(tier)]
        self.queue = JobQueue(max_calls=max_queued, max_bytes=max_queued_bytes, tiers=self.tiers)
        self.tally = Tally(self.tiers)
        self.slots = [Slot(self, tier) for tier in self.tiers for _ in range(boxes[tier])]
        self.on_answer: Callable[[Execution], None] = lambda _: None
        self._boxes = Counter(slot.tier for slot in self.slots)
        self._base_boxes = len(self.slots)
        self._max_boxes = max(max_boxes, self._base_boxes)
        self._idle: dict[Tier, dict[Slot, None]] = {tier: {} for tier in self.tiers}
        self._tasks: set[asyncio.Task[None]] = set()
        self._closing: dict[Box, asyncio.Task[None]] = {}
        self._is_stopping = False

    # Start and stop

    async def start(self, examine: Callable[[Box], Any]) -> None:
        """Start every box, let `examine` (a coroutine function) attack the first of them, then take jobs."""
        starting = [asyncio.create_task(self.start_box(slot.tier)) for slot in self.slots]
        try:
            for slot, task in zip(self.slots, starting, strict=True):
                slot.box = await task
                if slot is self.slots[0]:
                    await examine(slot.box)
                    self.retire(slot.box)  # it was attacked: it does not serve
                    slot.box = None
        except BaseException:
            await self._abort(starting)
            raise
        for slot in self.slots:
            self._spawn(slot.serve)
        self._spawn(self._tend)

    async def start_box(self, tier: Tier) -> Box:
        """A new box; raises BoxError."""
        return await Box.start(self.launcher, tier)

    async def _abort(self, starting: list[asyncio.Task[Box]]) -> None:
        for task in starting:
            task.cancel()
        for slot, outcome in zip(self.slots, await asyncio.gather(*starting, return_exceptions=True), strict=True):
            if isinstance(outcome, Box) and slot.box is None:
                self.retire(outcome)
        await self.stop()

    def make_images(self) -> None:
        """In the background: save an image of each tier, so that replacements are restored and not started cold."""
        self._spawn(self._make_images, restart=False)

    async def _make_images(self) -> None:
        for tier in self.tiers:
            if not self.launcher.wants_image(tier):
                continue
            with contextlib.suppress(BoxError):
                template = await Box.start(self.launcher, tier, cold=True)
                try:
                    saved = await template.save_image()
                except asyncio.CancelledError:
                    await template.close()
                    raise
                log.info("image of a %s box %s", tier, "saved" if saved else "not saved: replacements start cold")

    async def stop(self) -> None:
        """Answer everything that waits with our failure and end every box."""
        self._is_stopping = True
        for job in self.queue.drain():
            self.fail(job, STOPPING)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for slot in self.slots:
            if slot.box is not None:  # it never served
                self.retire(slot.box)
                slot.box = None
        await asyncio.gather(*self._closing.values(), return_exceptions=True)

    def retire(self, box: Box) -> None:
        """End a box in the background: its successor does not wait for that."""
        if box not in self._closing:
            self._closing[box] = asyncio.create_task(box.close())
            self._closing[box].add_done_callback(lambda _: self._closing.pop(box, None))

    def _spawn(self, main: Callable[[], Coroutine[Any, Any, None]], *, restart: bool = True) -> None:
        """Run a part of the node; when it crashes, say so and start it again."""

        def ended(task: asyncio.Task[None]) -> None:
            self._tasks.discard(task)
            error = None if task.cancelled() else task.exception()
            if error is not None and not self._is_stopping:
                log.error("%s crashed", main.__qualname__, exc_info=error)
                self.tally.crashes += 1
                if restart:
                    asyncio.get_running_loop().call_later(CRASH_PAUSE_S, again)

        def again() -> None:
            if not self._is_stopping:
                self._spawn(main)

        task = asyncio.create_task(main())
        self._tasks.add(task)
        task.add_done_callback(ended)

    # Jobs in

    def submit(self, calls: Iterable[ExecutionCall], *, run_id: str = "", deadline_s: float | None = None) -> Answers:
        """Queue calls. Each is answered, whatever the answer is; what cannot be served in time is rejected at once."""
        answers = Answers()
        loop = asyncio.get_running_loop()
        deadline = None if deadline_s is None else loop.time() + deadline_s
        for call in calls:
            size = _text_bytes(call.code) + sum(map(_text_bytes, call.history))
            job = Job(call, choose_tier(call.code, self.tiers), answers, run_id, deadline, size + len(call.stdin))
            answers.open_jobs.add(job)
            if self._is_stopping:
                self.fail(job, STOPPING)
            elif size > MAX_CODE_BYTES:
                text = f"SyntaxError: the program is longer than {MAX_CODE_BYTES} bytes\n"
                self._finish(job, ExecutionStatus.ERROR, exit_code=1, stderr=text, stderr_bytes=len(text))
            else:
                self._admit(job, deadline_s)
        if deadline is not None and answers.open_jobs:
            answers.expiry = loop.call_at(deadline, self._expire, answers)
        return answers

    def _admit(self, job: Job, deadline_s: float | None) -> None:
        wait_s = self.wait_s(job.tier, job.run_id) if deadline_s is not None else 0.0
        if deadline_s is not None and wait_s > deadline_s:
            reason = f"the wait of about {wait_s:.1f} s is longer than the deadline of {deadline_s:g} s"
            self._reject(job, reason, wait_s - deadline_s)
        elif self.queue.put(job):
            self._match()
        else:
            self._reject(job, "the queue is full", self.drain_s() / 2)

    def _expire(self, answers: Answers) -> None:
        """The deadline of a request has come: what still waits never runs."""
        for job in [job for job in answers.open_jobs if self.queue.remove(job)]:
            self._reject(job, "the deadline passed in the queue", self.drain_s() / 2)

    def abandon(self, answers: Answers) -> None:
        """The caller has gone: queued jobs never run, running ones are ended where that saves something."""
        abandoned = answers.abandon()
        for job in abandoned:
            self.queue.remove(job)
            self.tally.abandoned += 1
        for slot in self.slots:
            if slot.job is not None and slot.job in abandoned:
                asyncio.get_running_loop().call_later(DROP_AFTER_S, slot.drop, slot.job)

    # Jobs to boxes

    def take(self, slot: Slot) -> None:
        """A slot is ready for a job; it may get one at once."""
        self._idle[slot.tier][slot] = None
        self._match()

    def forget_idle(self, slot: Slot) -> None:
        """The slot takes no jobs at the moment."""
        for idle in self._idle.values():
            idle.pop(slot, None)

    def _match(self) -> None:
        """Hand jobs to ready slots as long as they fit; the richest tier first, so that a box prefers its own."""
        for tier in reversed(self.tiers):
            while self.queue.waiting(tier) and (slot := self._slot_for(tier)) is not None:
                job = self.queue.pop(tier)
                if job is not None:
                    slot.give(job)

    def _slot_for(self, tier: Tier) -> Slot | None:
        """A ready slot for a job of the tier, taken off the list: the one that worked last, its memory is warm."""
        for other in self.tiers[self.tiers.index(tier) :]:
            idle = self._idle[other]
            if idle and (other is tier or self._busy() < self.cores):
                return idle.popitem()[0]
        return None

    def _busy(self) -> int:
        return sum(slot.is_busy for slot in self.slots)

    # Answers out

    def answer(self, job: Job, reply: Mapping[str, Any], *, box: Box, queue_s: float) -> None:
        """Answer a job with what the box said."""
        fields = {name: reply[name] for name in _REPLY_FIELDS}
        self._finish(job, ExecutionStatus(reply["status"]), **fields, box=box.id, queue_ms=queue_s * 1000)
        if job.answers.unread_bytes > MAX_UNREAD_BYTES:
            for waiting in [other for other in job.answers.open_jobs if self.queue.remove(other)]:
                self._reject(waiting, "the caller reads its answers too slowly", RETRY_S[0])

    def blame(self, job: Job, *, box: Box, spent_s: float, queue_s: float) -> None:
        """The program asked for so much memory that its box died: its own doing, so never again."""
        text = "MemoryError: the program and its processes used more memory than the box has\n"
        self._finish(
            job,
            ExecutionStatus.MEMORY,
            signal=9,
            stderr=text,
            stderr_bytes=len(text),
            exec_ms=spent_s * 1000,
            queue_ms=queue_s * 1000,
            box=box.id,
        )

    def wants_spare(self, tier: Tier) -> bool:
        """True when a box of the tier may idle after its call, and a core too: a spare costs CPU and saves waiting."""
        return not self.queue.waiting(tier) and sum(slot.is_busy for slot in self.slots) <= self.cores

    def give_back(self, job: Job, reason: str) -> None:
        """A box died under this job, if it is not answered: retry once elsewhere, then admit it."""
        if not job.is_open:
            return
        if self._is_stopping:
            self.fail(job, STOPPING)
        elif job.attempts >= MAX_ATTEMPTS:
            self.fail(job, f"{job.attempts} boxes failed under this call, last: {reason}")
        elif job.deadline is not None and asyncio.get_running_loop().time() > job.deadline:
            self._reject(job, f"the deadline passed when a box failed: {reason}", RETRY_S[0])
        else:
            self.queue.put_back(job)
            self._match()

    def fail(self, job: Job, reason: str) -> None:
        """Answer a job with our own failure."""
        self._finish(job, ExecutionStatus.SANDBOX_ERROR, reason=reason, retry_after_s=1.0)

    def _reject(self, job: Job, reason: str, retry_after_s: float) -> None:
        shortest, longest = RETRY_S
        retry_after_s = round(min(longest, max(shortest, retry_after_s)), 2)
        self._finish(job, ExecutionStatus.REJECTED, reason=reason, retry_after_s=retry_after_s)

    def _finish(self, job: Job, status: ExecutionStatus, **fields: Any) -> None:
        execution = Execution(
            id=job.call.id,
            status=status,
            attempts=max(1, job.attempts),
            node=self.node,
            isolation=self.launcher.isolation,
            **fields,
        )
        if job.answers.put(job, execution):
            self.tally.count(status)
            self.on_answer(execution)

    # Load

    def wait_s(self, tier: Tier, run_id: str | None = None) -> float:
        """Estimated wait of a call that came now; without a run, behind everything that waits."""
        ahead = self.queue.waiting(tier) if run_id is None else self.queue.ahead(tier, run_id)
        if not ahead and any(self._idle[other] for other in self.tiers[self.tiers.index(tier) :]):
            return 0.0
        return (ahead + 1) * self.tally.mean_call_s[tier] / self._boxes[tier]

    def drain_s(self) -> float:
        """When about everything that waits will have been served."""
        return max(self.wait_s(tier) for tier in self.tiers)

    def calls_per_s(self) -> float:
        """Answers per second when every box is busy: as measured, or from the mean call where it was not so lately."""
        mean_s = self.tally.mean_call_s
        return self.tally.saturated_per_s or sum(count / mean_s[tier] for tier, count in self._boxes.items())

    async def _tend(self) -> None:
        """Once a second: measure, and change the boxes when the load asks for it."""
        loop = asyncio.get_running_loop()
        ticks, moved_at = cpu_ticks(), loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            before, ticks = ticks, cpu_ticks()
            self.tally.tick(loop.time(), is_saturated=len(self.queue) > 0)
            idle_cores = idle_share(before, ticks) * self.cores
            move = plan(self.loads(), base=self._base_boxes, most=self._max_boxes, idle_cores=idle_cores)
            if move is not None and loop.time() - moved_at >= MOVE_PAUSE_S:
                self._apply(move)
                moved_at = loop.time()

    def loads(self) -> list[TierLoad]:
        """Every tier as it is now."""
        now = asyncio.get_running_loop().time()
        return [
            TierLoad(
                tier,
                boxes=self._boxes[tier],
                waiting=self.queue.waiting(tier),
                waited_s=self.queue.waited_s(tier),
                idle_s=tuple(now - slot.idle_since for slot in self._idle[tier]),
                cpu_share=self.tally.mean_cpu_s[tier] / self.tally.mean_call_s[tier],
            )
            for tier in self.tiers
        ]

    def _apply(self, move: Move) -> None:
        """Turn over, add or end one box."""
        log.info("a box moves: %s to %s", move.source or "none", move.target or "none")
        if move.source is None:
            assert move.target is not None  # noqa: S101 - a move has one or the other
            self.slots.append(Slot(self, move.target))
            self._spawn(self.slots[-1].serve)
        else:
            slot = min(self._idle[move.source], key=lambda idle: idle.idle_since)
            self.forget_idle(slot)
            if move.target is None:
                self.slots.remove(slot)
                slot.end()
            else:
                slot.replace("turned over", tier=move.target)
        self._boxes = Counter(slot.tier for slot in self.slots)


def _text_bytes(text: str) -> int:
    return len(text) if text.isascii() else len(text.encode("utf-8", "surrogatepass"))


_REPLY_FIELDS = (
    "exit_code", "signal", "stdout", "stderr", "stdout_bytes", "stderr_bytes", "truncated", "exec_ms", "cpu_ms",
    "max_rss_kb",
)  # fmt: skip
