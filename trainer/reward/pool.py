"""The grader: answers are compared in worker processes that can be killed.

math-verify may hang or take the process down, and its own timeout needs signals in a main thread. So a
worker gets one pair at a time over a pipe; when the limit passes it is killed and replaced. The limit runs
from the moment a worker takes the pair, never while it queues: two hundred at once give no false timeouts.
"""

import asyncio
import logging
from multiprocessing import get_context
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from types import TracebackType
from typing import Self

from contracts.scoring import Grade, Graded, Ungraded, UngradedReason
from trainer.reward.integers import verify_integer

ATTEMPTS = 2
START_S = 60.0  # importing math-verify on a busy machine
STOP_S = 2.0
READY = b"ready"
_POLL_S = 0.005


class _WorkerFailed(Exception):
    """The worker hung, died or could not read the pair; it has been killed."""

    def __init__(self, reason: UngradedReason, detail: str) -> None:
        super().__init__(detail)
        self.reason = reason


class GraderPool:
    """`async with GraderPool() as grader`, or `close()`: afterwards no process is left. Workers start at first use."""

    def __init__(self, processes: int = 1, timeout_s: float = 10.0) -> None:
        self._timeout_s = timeout_s
        self._slots = asyncio.Semaphore(processes)
        self._idle: list[_Worker] = []
        self._closed = False

    async def grade(self, answer: str | None, reference: str) -> Grade:
        """1 when equal, 0 when not or when there is no answer; `Ungraded` when the grader itself failed twice."""
        if answer is None:
            return Graded(reward=0.0)
        right = verify_integer(answer, reference)
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
            reply = await worker.ask((answer, reference), self._timeout_s)
            healthy = True
        finally:  # a cancelled caller's worker is in the middle of a pair: it goes too
            if healthy and not self._closed:
                self._idle.append(worker)
            else:
                worker.kill()
        if isinstance(reply, str):
            raise _WorkerFailed(UngradedReason.GRADER_CRASH, reply)
        return bool(reply)


class _Worker:
    """One process with its pipe."""

    def __init__(self) -> None:
        context = get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process: BaseProcess = context.Process(target=_serve, args=(theirs,), daemon=True)
        self._process.start()
        theirs.close()
        self._ready = False

    async def wait_ready(self) -> None:
        if not self._ready:
            await self._receive(START_S)
            self._ready = True

    async def ask(self, pair: tuple[str, str], timeout_s: float) -> object:
        try:
            self._pipe.send(pair)
        except (OSError, ValueError) as error:
            raise _WorkerFailed(UngradedReason.GRADER_CRASH, f"a grader process is gone: {error}") from error
        return await self._receive(timeout_s)

    async def _receive(self, timeout_s: float) -> object:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        try:
            while not self._pipe.poll():
                if loop.time() > deadline:
                    raise _WorkerFailed(UngradedReason.GRADER_TIMEOUT, f"no verdict within {timeout_s:g} s")
                await asyncio.sleep(_POLL_S)
            return self._pipe.recv()
        except (EOFError, OSError) as error:
            raise _WorkerFailed(UngradedReason.GRADER_CRASH, "a grader process died") from error

    def kill(self) -> None:
        self._pipe.close()
        self._process.kill()
        self._process.join(STOP_S)
        if not self._process.is_alive():
            self._process.close()


def _serve(pipe: Connection) -> None:
    """The worker: pairs in, True, False or the text of a failure out, until the pipe closes."""
    logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns at each call that its timeout is off
    from trainer.reward.verify import verify  # noqa: PLC0415  the parent never loads sympy

    pipe.send(READY)
    while True:
        try:
            answer, reference = pipe.recv()
        except EOFError:
            return
        try:
            verdict: bool | str = verify(answer, reference)
        except Exception as error:  # noqa: BLE001  a parser may raise anything; it is reported, never a reward
            verdict = f"{type(error).__name__}: {error}"[:500]
        pipe.send(verdict)
