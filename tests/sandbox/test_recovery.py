"""What a node does when its boxes, its clients or it itself are killed."""

import asyncio
import contextlib
import os
import random
import re
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx
import pytest

from contracts.execution import Execution, ExecutionBatch
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


def processes(node: RunningNode, *words: str) -> list[int]:
    """Pids of the runsc processes of this node whose command line has one of the words."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            is_ours = any(str(node.state_dir).encode() in word for word in line) and b"serve" not in line
            if is_ours and any(word.encode() in line for word in words):
                found.append(int(entry.name))
    return found


def sleepers(count: int) -> ExecutionBatch:
    """Calls that are long enough to be struck."""
    code = "import time; time.sleep(0.3); print({})"
    return ExecutionBatch(calls=[call(code.format(number), id=str(number)) for number in range(count)])


async def post(node: RunningNode, batch: ExecutionBatch) -> list[Execution]:
    """What the node itself answers, without the client's retries, by number."""
    async with httpx.AsyncClient() as http:
        reply = await http.post(f"{node.url}/v1/run", content=batch.model_dump_json(), timeout=120)
    answers = [Execution.model_validate_json(line) for line in reply.content.splitlines()]
    return sorted(answers, key=lambda execution: int(execution.id))


async def everything(client: SandboxClient, batch: ExecutionBatch) -> list[Execution]:
    """What a client gets that tries again where a box failed twice."""
    return [execution async for execution in client.run_many(batch.calls)]


async def whole(node: RunningNode) -> None:
    """Wait until every box is there again and idle."""
    await until(lambda: node.health()["ready"] >= 3 and node.health()["busy"] == 0, within_s=60)


@pytest.mark.parametrize("seed", [1, 2])
async def test_boxes_killed_at_random_cost_no_answer(node: RunningNode, client: SandboxClient, seed: int) -> None:
    random_ = random.Random(seed)
    posting = asyncio.create_task(post(node, sleepers(16)))
    struck: set[int] = set()
    while len(struck) < 4 and not posting.done():
        await until(lambda: node.health()["busy"] >= 1 or posting.done())
        victims = sorted(set(node.sentries()) - struck)
        if victims:
            victim = random_.choice(victims)
            struck.add(victim)
            with contextlib.suppress(ProcessLookupError):
                os.kill(victim, signal.SIGKILL)
        await asyncio.sleep(0.2)
    answers = await posting
    assert [execution.id for execution in answers] == [str(number) for number in range(16)]
    for execution in answers:  # one that was struck twice is our failure, and says so
        assert execution.status in ("ok", "sandbox_error")
        assert execution.status == "sandbox_error" or execution.stdout == f"{execution.id}\n"
    assert sum(execution.status == "ok" for execution in answers) >= 12
    assert len(struck) >= 2


@pytest.mark.parametrize("words", [("runsc-gofer",), ("run", "restore")], ids=["gofer", "runsc-in-front"])
async def test_helpers_of_a_box_killed_in_a_call_cost_no_answer(
    node: RunningNode, client: SandboxClient, words: tuple[str, ...]
) -> None:
    await whole(node)
    before = node.sentries()
    posting = asyncio.create_task(everything(client, sleepers(3)))
    await until(lambda: node.health()["busy"] >= 1)
    victims = processes(node, *words)
    assert victims
    for pid in victims:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    assert sorted(execution.stdout for execution in await posting) == ["0\n", "1\n", "2\n"]
    code = "import sqlite3, unittest, wave; print(sqlite3.connect(':memory:').execute('select 1').fetchone())"
    for _ in range(4):  # a box that lost its files would blame the program
        execution = await client.run(call(code))
        assert (execution.status, execution.stdout) == ("ok", "(1,)\n"), execution
    if "run" in words:
        await until(lambda: not set(before) & set(node.sentries()), within_s=30)  # no orphan


async def test_a_host_without_memory_costs_boxes_and_no_answer(node: RunningNode, client: SandboxClient) -> None:
    await whole(node)
    starved = node.sentries()
    for pid in starved:  # as a host does that is out of memory: not a page more for the kernels of the boxes
        resource.prlimit(pid, resource.RLIMIT_AS, (1 << 30, 1 << 30))
    try:
        code = "x = []\nfor _ in range(200): x.append(b'x' * (1 << 20))\nprint(len(x))"
        answers = await post(node, ExecutionBatch(calls=[call(code, id=str(number)) for number in range(3)]))
        assert [execution.id for execution in answers] == ["0", "1", "2"]
        for execution in answers:
            assert execution.status in ("ok", "memory", "sandbox_error")
            assert execution.status != "memory" or execution.attempts == 1
        for _ in range(4):  # such a kernel maps no file: any import of a library dies of SIGSEGV
            execution = await client.run(call("import base64, sqlite3; print(6 * 7)"))
            assert (execution.status, execution.stdout) == ("ok", "42\n"), execution
    finally:
        for pid in set(starved) & set(node.sentries()):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    await until(lambda: not set(starved) & set(node.sentries()))
    await whole(node)


async def test_a_disk_that_is_full_keeps_what_serves_and_heals(node: RunningNode, client: SandboxClient) -> None:
    await whole(node)
    before = node.health()["replaced"]
    unlimited = resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, (0, resource.RLIM_INFINITY))
    try:
        os.kill(node.sentries()[0], signal.SIGKILL)
        await until(lambda: node.health()["replaced"] >= before + 2, within_s=30)  # it died, and could not be started
        answers = await everything(client, sleepers(4))
        assert sorted(execution.stdout for execution in answers) == ["0\n", "1\n", "2\n", "3\n"]
    finally:
        resource.prlimit(node.process.pid, resource.RLIMIT_FSIZE, unlimited)
    await whole(node)


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


@pytest.mark.parametrize("damage", ["truncated", "garbage", "missing"])
async def test_a_broken_image_is_a_cold_start(state_dir: Path, damage: str) -> None:
    node = start_node(state_dir, "--boxes", "1")
    try:
        images = state_dir / "images"
        await until(lambda: any(path.is_file() for path in images.rglob("*")), within_s=60)
        await until(lambda: not list(images.rglob("building-*")), within_s=60)
        for path in [path for path in images.rglob("*") if path.is_file()]:
            match damage:
                case "truncated":
                    os.truncate(path, path.stat().st_size // 2)
                case "garbage":
                    path.write_bytes(b"garbage" * 999)
                case "missing":
                    path.unlink()
        first = node.sentries()
        for pid in first:
            os.kill(pid, signal.SIGKILL)
        (execution,) = await post(node, ExecutionBatch(calls=[call("print(6 * 7)", id="1")]))
        assert execution.stdout == "42\n"
        assert not set(first) & set(node.sentries())
    finally:
        stop_node(node)
    again = start_node(state_dir, "--boxes", "1")
    try:
        (execution,) = await post(again, ExecutionBatch(calls=[call("print(6 * 7)", id="1")]))
        assert execution.stdout == "42\n"
    finally:
        stop_node(again)


def test_a_full_disk_at_the_start_is_one_sentence(tmp_path: Path) -> None:
    serve = [sys.executable, "-m", "sandbox", "serve", "--port", "0", "--state-dir", str(tmp_path / "state")]
    full = (
        "import os, resource, sys; resource.setrlimit(1, (0, 0)); os.execv(sys.argv[1], sys.argv[1:])"  # RLIMIT_FSIZE
    )
    argv = [sys.executable, "-c", full, *serve]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode != 0
    assert f"cannot fill {tmp_path / 'state'}: [Errno 27] File too large" in done.stderr
    assert "Traceback" not in done.stderr


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
