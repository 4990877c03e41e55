"""Calls that wait for a box: a bounded queue, fair between runs, and the answers of one request on their way back.

Nothing here waits for a slow reader and nothing here takes longer when more calls wait.
"""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from contracts.execution import Execution, ExecutionCall
from sandbox.tiers import Tier


@dataclass(eq=False, slots=True)
class Job:
    """One call on its way through the node. It is answered once, or abandoned."""

    call: ExecutionCall
    tier: Tier
    answers: "Answers"
    run_id: str = ""
    deadline: float | None = None  # on the monotonic clock: not started by then, it is rejected
    size_bytes: int = 0
    queued_at: float = field(default_factory=time.monotonic)
    queued_s: float = 0.0  # waits before this one, when a box died under it
    attempts: int = 0

    @property
    def is_open(self) -> bool:
        """True while somebody waits for its answer."""
        return self in self.answers.open_jobs

    def requeue(self) -> None:
        """It waits again, from now on."""
        self.queued_s += time.monotonic() - self.queued_at
        self.queued_at = time.monotonic()


class Answers:
    """The answers of one request, in the order in which the calls end. Whoever reads takes all that are there."""

    def __init__(self) -> None:
        self.open_jobs: set[Job] = set()
        self.expiry: asyncio.TimerHandle | None = None  # ends the wait of what is still queued
        self.unread_bytes = 0
        self._unread: list[Execution] = []
        self._came = asyncio.Event()

    def put(self, job: Job, execution: Execution) -> bool:
        """Answer a job; False when it is answered or abandoned already."""
        if job not in self.open_jobs:
            return False
        self.open_jobs.discard(job)
        self._unread.append(execution)
        self.unread_bytes += len(execution.stdout) + len(execution.stderr)
        self._came.set()
        if not self.open_jobs:
            self._cancel_expiry()
        return True

    async def take(self) -> list[Execution]:
        """All answers that came since the last take, at least one; none when every call is answered and read."""
        if not self._unread and self.open_jobs:
            await self._came.wait()
        self._came.clear()
        taken, self._unread = self._unread, []
        self.unread_bytes = 0
        return taken

    def abandon(self) -> set[Job]:
        """Nobody reads any more: forgets everything and returns the jobs that were open."""
        abandoned, self.open_jobs = self.open_jobs, set()
        self._unread.clear()
        self._came.set()
        self._cancel_expiry()
        return abandoned

    def _cancel_expiry(self) -> None:
        if self.expiry is not None:
            self.expiry.cancel()


@dataclass(slots=True)
class _Line:
    """The waiting jobs of one tier: runs are served in turn, the jobs of a run in the order they came."""

    runs: OrderedDict[str, OrderedDict[Job, None]] = field(default_factory=OrderedDict)
    count: int = 0
    since: float = 0.0  # when it last was empty


class JobQueue:
    """The queue between the service and the boxes, bounded by calls and by bytes of code."""

    def __init__(self, *, max_calls: int, max_bytes: int, tiers: Iterable[Tier] = tuple(Tier)) -> None:
        self.max_calls = max_calls
        self.max_bytes = max_bytes
        self.size_bytes = 0
        self._lines = {tier: _Line() for tier in tiers}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def waiting(self, tier: Tier) -> int:
        """Calls of a tier that wait."""
        return self._lines[tier].count

    def waited_s(self, tier: Tier) -> float:
        """How long some call of the tier has been waiting without a break."""
        line = self._lines[tier]
        return time.monotonic() - line.since if line.count else 0.0

    def ahead(self, tier: Tier, run_id: str) -> int:
        """Calls that would be served before a new one of the run."""
        line = self._lines[tier]
        own = len(line.runs.get(run_id, ()))
        return min(line.count, (own + 1) * len(line.runs))

    def put(self, job: Job) -> bool:
        """Queue it; False when the queue is full."""
        if self._count >= self.max_calls or self.size_bytes + job.size_bytes > self.max_bytes:
            return False
        self._add(job)
        return True

    def put_back(self, job: Job) -> None:
        """A job that had begun: it comes next, whether the queue is full or not."""
        job.requeue()
        self._add(job)
        runs = self._lines[job.tier].runs
        runs[job.run_id].move_to_end(job, last=False)
        runs.move_to_end(job.run_id, last=False)

    def _add(self, job: Job) -> None:
        line = self._lines[job.tier]
        if not line.count:
            line.since = time.monotonic()
        line.runs.setdefault(job.run_id, OrderedDict())[job] = None
        self._change(line, job, 1)

    def pop(self, tier: Tier) -> Job | None:
        """The next job of a tier."""
        line = self._lines[tier]
        if not line.runs:
            return None
        run_id, jobs = next(iter(line.runs.items()))
        job, _ = jobs.popitem(last=False)
        if jobs:
            line.runs.move_to_end(run_id)
        else:
            del line.runs[run_id]
        self._change(line, job, -1)
        return job

    def remove(self, job: Job) -> bool:
        """Take a job out; False when it does not wait here."""
        line = self._lines[job.tier]
        jobs = line.runs.get(job.run_id)
        if jobs is None or job not in jobs:
            return False
        del jobs[job]
        if not jobs:
            del line.runs[job.run_id]
        self._change(line, job, -1)
        return True

    def _change(self, line: _Line, job: Job, step: int) -> None:
        line.count += step
        self._count += step
        self.size_bytes += step * job.size_bytes

    def drain(self) -> list[Job]:
        """Take out everything that waits."""
        drained = []
        for tier in self._lines:
            while (job := self.pop(tier)) is not None:
                drained.append(job)
        return drained
