"""Jobs, boxes and the service around them, on plain processes: the rules do not depend on gVisor."""

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from contracts.execution import Execution, ExecutionStatus
from sandbox.box import Box, BoxDiedError, BoxHungError
from sandbox.client import SandboxClient
from sandbox.jobs import Job, JobQueue
from sandbox.plain import PlainLauncher
from sandbox.pool import Pool
from sandbox.service import build_app
from sandbox.tiers import Tier
from tests.sandbox.conftest import call


async def leave_alone(_: Box) -> None:
    """Examines nothing."""


@pytest.fixture
async def pool(tmp_path: Path) -> AsyncIterator[Pool]:
    """Two plain light boxes and room for four waiting calls."""
    pool = Pool(PlainLauncher(state_dir=tmp_path), boxes={Tier.LIGHT: 2}, max_queued=4, node="n")
    await pool.start(leave_alone)
    yield pool
    await pool.stop()


async def run(pool: Pool, code: str, **limits: float) -> Execution:
    return await (await pool.submit(call(code, **limits))).done


def pid_of(box: Box) -> int:
    return box._launched.process.pid


async def busy_box(pool: Pool) -> Box:
    """The box that works at the moment."""
    while True:
        for slot in pool.slots:
            if slot.is_busy and slot.box is not None:
                return slot.box
        await asyncio.sleep(0.005)


async def test_a_call_is_answered(pool: Pool) -> None:
    execution = await run(pool, "print(6 * 7)")
    assert (execution.status, execution.stdout, execution.attempts) == (ExecutionStatus.OK, "42\n", 1)
    assert execution.node == "n" and execution.isolation == "none"


async def test_a_box_that_dies_once_is_retried_elsewhere(pool: Pool) -> None:
    job = await pool.submit(call("import time; time.sleep(0.3); print('done')"))
    os.kill(pid_of(await busy_box(pool)), signal.SIGKILL)
    execution = await job.done
    assert (execution.status, execution.stdout, execution.attempts) == (ExecutionStatus.OK, "done\n", 2)
    assert sum(pool.tally.replaced.values()) == 1


async def test_a_box_that_dies_idle_is_replaced_before_a_call_finds_out(pool: Pool) -> None:
    first = pool.slots[1].box
    os.kill(pid_of(first), signal.SIGKILL)
    while pool.slots[1].box is first or not pool.slots[1].is_ready:
        await asyncio.sleep(0.01)
    assert pool.tally.replaced == {"died idle": 1}
    assert (await run(pool, "1")).attempts == 1


async def test_a_cancelled_taker_hands_its_job_on() -> None:
    queue = JobQueue(4)
    cancelled, served = (asyncio.create_task(queue.take(Tier.LIGHT)) for _ in range(2))
    await asyncio.sleep(0)
    job = Job.of(call("1"), Tier.LIGHT)
    assert queue.put(job)
    cancelled.cancel()
    assert await served is job


async def test_a_box_that_dies_twice_is_our_failure(pool: Pool) -> None:
    job = await pool.submit(call("import time; time.sleep(0.5)"))
    first = await busy_box(pool)
    os.kill(pid_of(first), signal.SIGKILL)
    while (second := await busy_box(pool)) is first:
        await asyncio.sleep(0.005)
    os.kill(pid_of(second), signal.SIGKILL)
    execution = await job.done
    assert (execution.status, execution.attempts) == (ExecutionStatus.SANDBOX_ERROR, 2)
    assert "2 boxes failed under this call" in execution.reason


async def test_a_frozen_box_is_replaced_and_the_call_retried(pool: Pool) -> None:
    job = await pool.submit(call("import time; time.sleep(0.2); print('done')", wall_s=0.5))
    os.kill(pid_of(await busy_box(pool)), signal.SIGSTOP)
    execution = await job.done
    assert (execution.status, execution.attempts) == (ExecutionStatus.OK, 2)
    assert pool.tally.replaced["BoxHungError"] == 1


async def test_memory_and_output_are_never_retried(pool: Pool) -> None:
    assert (await run(pool, "bytearray(1 << 30)", memory_mb=64)).attempts == 1
    assert (await run(pool, "while True: print('x' * 1000)", output_kb=1)).attempts == 1


async def test_a_full_queue_rejects_and_says_when_to_come_back(pool: Pool) -> None:
    jobs = [await pool.submit(call("import time; time.sleep(0.2)")) for _ in range(7)]
    executions = await asyncio.gather(*(job.done for job in jobs))
    rejected = [execution for execution in executions if execution.status is ExecutionStatus.REJECTED]
    assert rejected and all(execution.retry_after_s and execution.retry_after_s > 0 for execution in rejected)
    assert len(executions) - len(rejected) >= 4


async def test_queue_time_is_not_execution_time(pool: Pool) -> None:
    jobs = [await pool.submit(call("import time; time.sleep(0.3)", wall_s=0.5)) for _ in range(4)]
    executions = await asyncio.gather(*(job.done for job in jobs))
    assert all(execution.status is ExecutionStatus.OK for execution in executions)
    assert max(execution.queue_ms for execution in executions) > 250
    assert max(execution.exec_ms for execution in executions) < 500


async def test_an_abandoned_job_never_runs() -> None:
    queue = JobQueue(4)
    first, second = Job.of(call("1"), Tier.LIGHT), Job.of(call("2"), Tier.LIGHT)
    for job in (first, second):
        assert queue.put(job)
    first.abandon()
    assert len(queue) == 1
    assert await queue.take(Tier.LIGHT) is second


async def test_too_long_a_program_is_the_programs_failure(pool: Pool) -> None:
    execution = await run(pool, "#" * ((1 << 20) + 1))
    assert execution.status is ExecutionStatus.ERROR
    assert "longer than 1048576 bytes" in execution.stderr


async def test_a_stopped_pool_answers_what_waits(tmp_path: Path) -> None:
    pool = Pool(PlainLauncher(state_dir=tmp_path), boxes={Tier.LIGHT: 1}, max_queued=9, node="n")
    await pool.start(leave_alone)
    jobs = [await pool.submit(call("import time; time.sleep(5)")) for _ in range(3)]
    box = await busy_box(pool)
    await pool.stop()
    statuses = {(await job.done).status for job in jobs}
    assert statuses == {ExecutionStatus.SANDBOX_ERROR}
    assert not Path(f"/proc/{pid_of(box)}").exists()


async def test_one_box_of_one_tier_takes_every_program(tmp_path: Path) -> None:
    pool = Pool(PlainLauncher(state_dir=tmp_path), boxes={Tier.LIGHT: 1}, max_queued=9, node="n")
    await pool.start(leave_alone)
    try:
        assert (await run(pool, "print('sympy')")).status is ExecutionStatus.OK
    finally:
        await pool.stop()


@pytest.mark.parametrize(
    ("says", "reason"),
    [
        ("", "is gone"),
        ("\\xff\\xff\\xff\\xff", "a frame of 4294967295 bytes"),
        ("\\0\\0\\0\\2ab", "is gone"),
        ("\\0\\0\\0\\4true", "expected a result frame"),
        ('\\0\\0\\0\\20{"kind":"spoof"}', "expected a result frame"),
    ],
)
async def test_garbage_on_the_frame_pipe_is_a_dead_box(tmp_path: Path, says: str, reason: str) -> None:
    launcher = PlainLauncher(state_dir=tmp_path)
    launched = await launcher.start(Tier.LIGHT)
    await launcher.kill(launched)
    process = await asyncio.create_subprocess_exec(
        "printf", says, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    box = Box(launcher, type(launched)(launched.box_id, Tier.LIGHT, process, False, tmp_path / "log"))
    with pytest.raises(BoxDiedError, match=reason):
        await box._expect("result")
    await box.close()


async def test_a_box_that_stays_silent_is_hung(tmp_path: Path) -> None:
    launcher = PlainLauncher(state_dir=tmp_path)
    box = await Box.start(launcher, Tier.LIGHT)
    os.kill(pid_of(box), signal.SIGSTOP)
    with pytest.raises(BoxHungError):
        await box.run(call("1", wall_s=0.1))
    await box.close()


async def test_service_streams_answers_as_they_come(pool: Pool) -> None:
    transport = httpx.ASGITransport(build_app(pool))
    async with SandboxClient(["http://node"], transport=transport) as client:
        wanted = [call("import time; time.sleep(0.3)", id="slow"), call("1", id="fast")]
        assert [execution.id async for execution in client.run_many(wanted)] == ["fast", "slow"]
        health = (await client.health())["http://node"]
        assert health is not None
        assert (health.boxes, health.served, health.isolated) == (2, 2, False)


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"calls": []}', b'{"calls": [{"id": "a", "code": "1", "x": 1}]}', b"\xff"]
)
async def test_a_bad_body_is_refused_and_not_echoed(pool: Pool, body: bytes) -> None:
    async with httpx.AsyncClient(transport=httpx.ASGITransport(build_app(pool)), base_url="http://node") as http:
        reply = await http.post("/v1/run", content=body)
    assert reply.status_code == 422
    assert all(set(error) <= {"type", "loc", "msg"} for error in reply.json()["detail"])


async def test_metrics_count_answers(pool: Pool) -> None:
    app = build_app(pool)
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://node") as http:
        batch = {"calls": [{"id": "a", "code": "1"}, {"id": "b", "code": "1/0"}]}
        lines = (await http.post("/v1/run", json=batch)).text.splitlines()
        assert {json.loads(line)["id"] for line in lines} == {"a", "b"}
        text = (await http.get("/metrics")).text
    assert 'sandbox_executions_total{status="ok"} 1.0' in text
    assert 'sandbox_executions_total{status="error"} 1.0' in text
