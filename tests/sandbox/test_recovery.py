"""What a node does when its boxes, its clients or it itself are killed."""

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from contracts.execution import ExecutionBatch
from sandbox.client import SandboxClient
from tests.sandbox.conftest import ROOT, RunningNode, call, require_runsc, start_node, stop_node

pytestmark = pytest.mark.runsc


async def until(holds: Callable[[], bool], within_s: float = 15.0) -> None:
    """Poll for a state of another process; there is no event to wait for."""
    give_up = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < give_up, "it did not happen in time"
        await asyncio.sleep(0.02)


@pytest.fixture
async def client(node: RunningNode) -> AsyncIterator[SandboxClient]:
    async with SandboxClient([node.url]) as client:
        yield client
        await until(lambda: node.health()["ready"] == node.health()["boxes"])
        assert (await client.run(call("print(6 * 7)"))).stdout == "42\n"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
async def test_sentries_killed_or_frozen_in_a_call_cost_no_answer(
    node: RunningNode, client: SandboxClient, number: signal.Signals
) -> None:
    before = node.health()["replaced"]
    wanted = [call(f"import time; time.sleep(0.4); print({i})", wall_s=1) for i in range(4)]

    async def strike() -> None:
        await until(lambda: node.health()["busy"] >= 2)
        for pid in node.sentries():
            os.kill(pid, number)

    striking = asyncio.create_task(strike())
    answers = [execution async for execution in client.run_many(wanted)]
    await striking
    assert sorted(execution.stdout for execution in answers) == [f"{i}\n" for i in range(4)]
    assert max(execution.attempts for execution in answers) == 2
    assert node.health()["replaced"] >= before + 2
    if number == signal.SIGSTOP:  # the idle box is frozen too: the next call that needs it finds out
        assert (await client.run(call("import sympy; print(1)", wall_s=1))).stdout == "1\n"


async def test_a_client_that_goes_away_takes_its_queued_calls_along(node: RunningNode, client: SandboxClient) -> None:
    served = node.health()["served"]
    batch = ExecutionBatch(calls=[call("import time; time.sleep(0.3)", id=str(n)) for n in range(40)])
    async with httpx.AsyncClient() as http:
        posting = asyncio.create_task(http.post(f"{node.url}/v1/run", content=batch.model_dump_json(), timeout=60))
        await until(lambda: node.health()["queued"] > 30)
        posting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await posting
    await until(lambda: node.health()["queued"] == 0, within_s=2)
    await until(lambda: node.health()["busy"] == 0)
    assert node.health()["served"] - served < 10


async def test_the_queue_moves_while_every_box_sleeps(client: SandboxClient) -> None:
    wanted = [call("import time; time.sleep(60)", wall_s=0.5) for _ in range(4)]
    statuses = [execution.status async for execution in client.run_many(wanted)]
    assert statuses == ["timeout"] * 4


@pytest.fixture(scope="module")
def state_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A state directory that nodes use one after the other: the root in it is built once."""
    require_runsc()
    return tmp_path_factory.mktemp("ends")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
async def test_a_node_that_ends_leaves_no_box(state_dir: Path, number: signal.Signals) -> None:
    node = start_node(state_dir, "--boxes", "1")
    try:
        await until(lambda: len(node.sentries()) >= 1)
        node.process.send_signal(number)
        node.process.wait(10)
        await until(lambda: not node.sentries(), within_s=5)
    finally:
        stop_node(node)
    if number == signal.SIGKILL:  # what it could not tidy, the next one on the same directory does
        again = start_node(state_dir, "--boxes", "1")
        assert len(list((state_dir / "runsc").glob("*.state"))) <= 2
        stop_node(again)
    assert not list((state_dir / "runsc").glob("*.state"))


def test_run_and_doctor(state_dir: Path, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("print('hello')\nraise SystemExit(3)")
    base = [sys.executable, "-m", "sandbox"]
    state = ["--state-dir", str(state_dir)]
    ran = subprocess.run([*base, "run", str(program), *state], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (3, "hello\n"), ran.stderr
    checked = subprocess.run([*base, "doctor", *state], cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout
    assert re.search(r"^remount +ok", checked.stdout, re.MULTILINE)
