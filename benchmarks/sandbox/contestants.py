"""Who runs the load: our node on gVisor, the same node without it, and a fresh interpreter for every call."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Protocol

from benchmarks.sandbox import fresh_interpreter
from benchmarks.sandbox.machine import Usage, descendants, usage_of, words_of
from contracts.execution import Execution, ExecutionCall, NodeHealth
from sandbox.client import SandboxClient

START_S = 90.0
SETTLE_S = 20.0
IDLE_SHARE = 0.08  # of a core: below it a contestant counts as idle


class Contestant(Protocol):
    """Something that runs programs, and the processes that do it."""

    name: str

    async def start(self) -> None:
        """Take calls from now on."""
        ...

    async def run(self, call: ExecutionCall) -> Execution:
        """Run one program."""
        ...

    def usage(self) -> Usage:
        """CPU so far: everything, and the front (or the supervisors) alone."""
        ...

    async def replaced(self) -> int:
        """Boxes replaced so far."""
        ...

    async def stop(self) -> None:
        """End every process of it."""
        ...


class Node:
    """A real node in a process of its own, asked over HTTP by `sandbox.client`."""

    def __init__(
        self,
        name: str,
        state_dir: Path,
        *,
        boxes: int = 0,
        is_isolated: bool = True,
        module: tuple[str, ...] = ("sandbox",),
        cores: set[int] | None = None,
    ) -> None:
        self.name = name
        self.state_dir = state_dir
        self._boxes = boxes
        self._is_isolated = is_isolated
        self._module = module
        self._cores = cores
        self._process: subprocess.Popen[bytes] | None = None
        self._client: SandboxClient | None = None
        self.url = ""

    @property
    def pid(self) -> int:
        """The node's process."""
        assert self._process is not None  # noqa: S101 - started
        return self._process.pid

    @property
    def client(self) -> SandboxClient:
        """The client everything goes through."""
        assert self._client is not None  # noqa: S101 - started
        return self._client

    async def start(self) -> None:
        """Start the node, wait until it answers and until it has made its images."""
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.state_dir.mkdir(parents=True, exist_ok=True)
        argv = [sys.executable, "-m", *self._module, "serve", "--port", str(port), "--state-dir", str(self.state_dir)]
        argv += ["--boxes", str(self._boxes)] if self._boxes else []
        with self.log_path.open("wb") as log:
            self._process = subprocess.Popen(argv, stderr=log, env=self._environment(), preexec_fn=self._pin)
        self.url = f"http://127.0.0.1:{port}"
        self._client = SandboxClient([self.url], "benchmark", give_up_after_s=600)
        give_up = time.monotonic() + START_S
        while (await self.client.health())[self.url] is None:
            if self._process.poll() is not None or time.monotonic() > give_up:
                raise SystemExit(f"{self.name} did not start: {self.log_path.read_text()[-2000:]}")
            await asyncio.sleep(0.1)
        await settle(self)

    @property
    def log_path(self) -> Path:
        """What the node says."""
        return self.state_dir / "node.log"

    def _environment(self) -> dict[str, str]:
        environ = dict(os.environ)
        if not self._is_isolated:
            # Nothing of a fork-server is found by PATH; with runsc on it the node would use that.
            empty = self.state_dir / "empty-path"
            empty.mkdir(exist_ok=True)
            environ.update(SANDBOX_ALLOW_UNISOLATED="1", PATH=str(empty))
        return environ

    def _pin(self) -> None:
        if self._cores:
            os.sched_setaffinity(0, self._cores)

    async def run(self, call: ExecutionCall) -> Execution:
        """Run one program over HTTP."""
        return await self.client.run(call)

    def usage(self) -> Usage:
        """The node's tree, sentries and gofers included; its root is the front."""
        return usage_of(self.pid)

    async def health(self) -> NodeHealth:
        """The node's report; it must answer."""
        health = (await self.client.health())[self.url]
        if health is None:
            raise SystemExit(f"{self.name} does not answer: {self.log_path.read_text()[-2000:]}")
        return health

    async def replaced(self) -> int:
        """As the node's health report says."""
        return (await self.health()).replaced

    def sentries(self) -> list[int]:
        """Pids of its sandbox kernels."""
        return [pid for pid in descendants(self.pid) if words_of(pid)[:1] == ["runsc-sandbox"]]

    async def stop(self) -> None:
        """As Ctrl-C does; then by force."""
        if self._client is not None:
            await self._client.aclose()
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)
            try:
                await asyncio.to_thread(self._process.wait, 20)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()


class FreshInterpreters:
    """code-judge's execution model by our own code: worker processes, one new interpreter for every call."""

    name = "code-judge model"

    def __init__(self, workers: int) -> None:
        self._workers = workers
        self._pool: ProcessPoolExecutor | None = None

    async def start(self) -> None:
        """Start every worker."""
        self._pool = ProcessPoolExecutor(self._workers, mp_context=get_context("spawn"))
        warm = [asyncio.wrap_future(self._pool.submit(time.sleep, 0.2)) for _ in range(self._workers)]
        await asyncio.gather(*warm)

    async def run(self, call: ExecutionCall) -> Execution:
        """Hand one program to a worker."""
        assert self._pool is not None  # noqa: S101 - started
        sent = time.perf_counter()
        answer = await asyncio.wrap_future(self._pool.submit(fresh_interpreter.judge, call))
        queue_ms = (time.perf_counter() - sent) * 1000 - answer.exec_ms
        return answer.model_copy(update={"queue_ms": max(0.0, queue_ms)})

    def usage(self) -> Usage:
        """Its workers and what they have reaped."""
        assert self._pool is not None  # noqa: S101 - started
        return usage_of(*self._pool._processes)

    async def replaced(self) -> int:
        """It has no boxes."""
        return 0

    async def stop(self) -> None:
        """End the workers."""
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)


async def settle(contestant: Contestant) -> None:
    """Wait until it uses next to no CPU: images made, spare children warm, abandoned calls ended."""
    give_up = time.monotonic() + SETTLE_S
    while time.monotonic() < give_up:
        before = contestant.usage().tree_s
        await asyncio.sleep(0.5)
        if contestant.usage().tree_s - before < IDLE_SHARE * 0.5:
            return
