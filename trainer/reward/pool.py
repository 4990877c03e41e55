"""The grader: answers are compared in worker processes that can be killed.

math-verify may hang or take the process down, and its own timeout needs signals in a main thread. So a
worker gets one pair at a time over a pipe; when the limit passes it is killed and replaced. The limit runs
from the moment a worker takes the pair, never while it queues: two hundred at once give no false timeouts.

Memory has two limits. The parent kills a worker that took `MAX_MEMORY_MB` since its start; should the parent
be busy, allocation itself fails at `MAX_ADDRESS_MB`. Either is `Ungraded`, as is every exception, and those
that math-verify would take for a difference too (`handlers.py`).
"""

import asyncio
import logging
import os
import resource
import signal
import sys
from contextlib import suppress
from math import ceil, inf
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import ModuleType, TracebackType
from typing import Any, Self

from contracts.scoring import Grade, Graded, Ungraded, UngradedReason
from trainer.reward.handlers import let_machine_errors_through
from trainer.reward.numbers import verify_number

ATTEMPTS = 2  # of a crash or timeout; a reference that cannot be read is the same at every try
START_S = 60.0  # importing math-verify on a busy machine
STOP_S = 2.0
ORPHAN_S = 5  # beyond the time limit
MAX_MEMORY_MB = 1024
MAX_ADDRESS_MB = 3 * MAX_MEMORY_MB
READY = b"ready"
_LOOK_S = 0.05  # between two looks at a busy worker's memory
_PAGE_MB = resource.getpagesize() / 2**20


class _WorkerFailed(Exception):
    """The worker hung, died or could not read the pair; it has been killed."""

    def __init__(self, reason: UngradedReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class GraderPool:
    """`async with GraderPool() as grader`, or `close()`: afterwards no process is left. Workers start at first use."""

    def __init__(self, processes: int | None = None, timeout_s: float = 10.0) -> None:
        """processes: at most so many at once, by default one for two processors."""
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(processes or max(1, (os.cpu_count() or 1) // 2))
        self._idle: list[_Worker] = []
        self._closed = False

    async def grade(self, answer: str | None, reference: str) -> Grade:
        """1 when equal, 0 when not or when there is no answer; `Ungraded` when the grader itself failed twice."""
        if answer is None:
            return Graded(reward=0.0)
        right = verify_number(answer, reference)
        if right is not None:
            return Graded(reward=float(right), answer=answer)
        failure = _WorkerFailed(UngradedReason.GRADER_CRASH, "the grader is closed")
        async with self._slots:
            for _ in range(ATTEMPTS):
                if self._closed:
                    break
                try:
                    return Graded(reward=float(await self._ask(answer, reference)), answer=answer)
                except _WorkerFailed as error:
                    failure = error
                    if error.reason is UngradedReason.BAD_REFERENCE:
                        break
        return Ungraded(reason=failure.reason, detail=str(failure)[:500])

    async def close(self) -> None:
        self._closed = True
        idle, self._idle = self._idle, []
        for worker in idle:
            worker.kill()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def _ask(self, answer: str, reference: str) -> bool:
        worker = self._idle.pop() if self._idle else _Worker()
        healthy = False
        try:
            await worker.wait_ready()
            reply = await worker.ask(answer, reference, self._timeout_s)
            healthy = isinstance(reply, bool) or reply[0] is UngradedReason.BAD_REFERENCE
        finally:  # a cancelled caller's worker is in the middle of a pair: it goes too
            if healthy and not self._closed:
                self._idle.append(worker)
            else:
                worker.kill()
        if isinstance(reply, bool):
            return reply
        raise _WorkerFailed(*reply)


class _Worker:
    """One process with its pipe."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._ready = False
        self._most_mb = inf  # resident memory beyond which it is killed

    async def wait_ready(self) -> None:
        if not self._ready:
            await self._receive(START_S)
            self._ready = True
            self._most_mb = self._memory_mb() + MAX_MEMORY_MB

    async def ask(self, answer: str, reference: str, timeout_s: float) -> Any:
        try:
            self._pipe.send((answer, reference, timeout_s))
        except (OSError, ValueError) as error:
            raise _WorkerFailed(UngradedReason.GRADER_CRASH, f"a grader process is gone: {error}") from error
        return await self._receive(timeout_s)

    async def _receive(self, timeout_s: float) -> Any:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        readable = asyncio.Event()
        loop.add_reader(self._pipe.fileno(), readable.set)
        try:
            while not self._pipe.poll():
                if loop.time() > deadline:
                    raise _WorkerFailed(UngradedReason.GRADER_TIMEOUT, f"no verdict within {timeout_s:g} s")
                if self._memory_mb() > self._most_mb:
                    raise _WorkerFailed(UngradedReason.GRADER_CRASH, f"it took more than {MAX_MEMORY_MB} MB of memory")
                with suppress(TimeoutError):
                    await asyncio.wait_for(readable.wait(), _LOOK_S)
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise _WorkerFailed(UngradedReason.GRADER_CRASH, "a grader process died") from error
        finally:
            loop.remove_reader(self._pipe.fileno())

    def _memory_mb(self) -> float:
        """Resident memory; 0 where /proc does not tell."""
        try:
            return int(Path(f"/proc/{self._process.pid}/statm").read_bytes().split()[1]) * _PAGE_MB
        except (OSError, IndexError):
            return 0.0

    def kill(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join(STOP_S)
        if not self._process.is_alive():
            self._process.close()


def _serve(pipe: Connection) -> None:
    """The worker: (answer, reference, seconds) in; a verdict or (reason, detail) out, until the pipe closes."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns at each call that its timeout is off
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # ctrl-C is the parent's
    sys.set_int_max_str_digits(0)  # the time limit bounds the conversion; the default refuses 4,301 digits
    let_machine_errors_through()
    from trainer.reward import verify  # noqa: PLC0415  the parent never loads sympy

    _limit_memory()
    pipe.send(READY)
    while True:
        try:
            answer, reference, timeout_s = pipe.recv()
        except EOFError:
            return
        signal.alarm(ceil(timeout_s) + ORPHAN_S)  # ends a hung worker whose parent is gone
        reply = _try(verify, answer, reference)
        signal.alarm(0)
        pipe.send(reply)


def _try(module: ModuleType, answer: str, reference: str) -> bool | tuple[UngradedReason, str]:
    try:
        return bool(module.verify(answer, reference))
    except module.BadReference as error:
        return UngradedReason.BAD_REFERENCE, str(error)
    except Exception as error:  # noqa: BLE001  a parser may raise anything; it is reported, never a reward
        return UngradedReason.GRADER_CRASH, f"{type(error).__name__}: {error}"


def _limit_memory() -> None:
    """What this process may still allocate, beyond what its libraries have mapped."""
    _, most = resource.getrlimit(resource.RLIMIT_AS)
    mapped = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    limit = mapped + MAX_ADDRESS_MB * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))
