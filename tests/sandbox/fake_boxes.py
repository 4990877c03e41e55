"""Boxes that obey the test: the rules of queue and pool do not depend on what runs in a box."""

import asyncio
import itertools
from collections.abc import Mapping
from typing import Any

from contracts.execution import Execution, ExecutionCall
from sandbox.box import BoxDiedError, BoxOutOfMemoryError, BoxSuspectError
from sandbox.launcher import Launcher
from sandbox.pool import Pool
from sandbox.tiers import Tier

LIGHT, RICHEST = list(Tier)[0], list(Tier)[-1]
_numbers = itertools.count()


class FakeLauncher:
    """Says what a launcher says."""

    isolation = "none"
    is_isolated = False

    def wants_image(self, tier: Tier) -> bool:
        return False


class FakeBox:
    """Runs `hold` until released; `die`, `oom`, `crash`, `fault`, `bad box` (`once`) as they say; all else at once."""

    def __init__(self, pool: "FakePool", tier: Tier) -> None:
        self.id = f"box-{next(_numbers)}"
        self.tier = tier
        self.calls = 0
        self.cpu: int | None = None
        self.dead = asyncio.Event()
        self._pool = pool
        self._released = asyncio.Event()
        self._is_bad = False

    async def run(self, call: ExecutionCall, **options: Any) -> dict[str, Any]:
        self.calls += 1
        self._pool.ran.append((call.id, self.tier))
        self._pool.options.append(options)
        if "crash" in call.code:
            raise RuntimeError("a bug of ours")
        if "die" in call.code or "oom" in call.code:
            self.dead.set()
        if "oom" in call.code:
            raise BoxOutOfMemoryError("it took too much")
        if "hold" in call.code:
            await self._wait_released(call)
        if self.dead.is_set():
            raise BoxDiedError("it died")
        is_first = [ran for ran, _ in self._pool.ran].count(call.id) == 1
        self._is_bad = "bad box" in call.code and (is_first or "once" not in call.code)
        is_faulty = self._is_bad or "fault" in call.code
        fault = {"status": "signal", "exit_code": None, "signal": 11} if is_faulty else {}
        return {
            "status": "ok", "exit_code": 0, "signal": None, "stdout": "", "stderr": "", "stdout_bytes": 0,
            "stderr_bytes": 0, "truncated": False, "exec_ms": 1.0, "cpu_ms": 1.0, "max_rss_kb": 1, "swept": True,
        } | fault  # fmt: skip

    async def _wait_released(self, call: ExecutionCall) -> None:
        self._pool.held[call.id] = self
        waits = [asyncio.create_task(event.wait()) for event in (self._released, self.dead)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            del self._pool.held[call.id]
            self._released.clear()
            for task in waits:
                task.cancel()

    def release(self) -> None:
        self._released.set()

    async def wait_ready(self) -> str:
        return ""

    async def prove(self) -> str:
        if self._is_bad:
            raise BoxSuspectError("programs die in it")
        return ""

    async def wait_dead(self) -> None:
        await self.dead.wait()

    def threads(self) -> int:
        return 1

    def growth_mb(self) -> int:
        return 0

    def move(self, cpu: int) -> bool:
        return False

    async def close(self) -> None:
        self.dead.set()
        await self._pool.may_close.wait()
        self._pool.closed.append(self)


class FakePool(Pool):
    """A pool of fake boxes that keeps a diary."""

    def __init__(
        self, boxes: Mapping[Tier, int], *, max_queued: int = 1 << 20, cores: int = 64, **settings: Any
    ) -> None:
        launcher: Launcher = FakeLauncher()
        super().__init__(launcher, boxes=boxes, node="n", max_queued=max_queued, **settings)
        self.cores = cores
        self.ran: list[tuple[str, Tier]] = []
        self.options: list[dict[str, Any]] = []
        self.held: dict[str, FakeBox] = {}
        self.closed: list[FakeBox] = []
        self.may_close = asyncio.Event()
        self.may_close.set()

    async def start_box(self, tier: Tier) -> Any:
        return FakeBox(self, tier)

    async def __aenter__(self) -> "FakePool":
        async def leave_alone(_: Any) -> None:
            """Examines nothing."""

        await self.start(leave_alone)
        while not all(slot.is_ready for slot in self.slots):
            await asyncio.sleep(0)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def settle(self) -> None:
        """Let everything happen that can happen without time passing."""
        for _ in range(30):
            await asyncio.sleep(0)


def calls(*codes: str, prefix: str = "", **fields: Any) -> list[ExecutionCall]:
    """Calls numbered from 0."""
    return [ExecutionCall(id=f"{prefix}{number}", code=code, **fields) for number, code in enumerate(codes)]


async def collect(answers: Any) -> list[Execution]:
    """Every answer of a request, in the order they came."""
    found: list[Execution] = []
    while taken := await answers.take():
        found += taken
    return found
