"""The pool on plain processes: boxes that die, hang and lie."""

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from contracts.execution import Execution, ExecutionStatus
from sandbox.box import Box, BoxDiedError, BoxHungError
from sandbox.guest.forkserver import NOT_STARTED
from sandbox.plain import PlainLauncher
from sandbox.pool import Pool
from sandbox.tiers import Tier
from tests.sandbox.conftest import call
from tests.sandbox.fake_boxes import collect


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
    (execution,) = await collect(pool.submit([call(code, **limits)]))
    return execution


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
    answers = pool.submit([call("import time; time.sleep(0.3); print('done')")])
    os.kill(pid_of(await busy_box(pool)), signal.SIGKILL)
    (execution,) = await collect(answers)
    assert (execution.status, execution.stdout, execution.attempts) == (ExecutionStatus.OK, "done\n", 2)
    assert sum(pool.tally.replaced.values()) == 1


async def test_a_box_that_dies_idle_is_replaced_before_a_call_finds_out(pool: Pool) -> None:
    first = pool.slots[1].box
    os.kill(pid_of(first), signal.SIGKILL)
    while pool.slots[1].box is first or not pool.slots[1].is_ready:
        await asyncio.sleep(0.01)
    assert pool.tally.replaced == {"died idle": 1}
    assert (await run(pool, "1")).attempts == 1


async def test_a_box_that_dies_twice_is_our_failure(pool: Pool) -> None:
    answers = pool.submit([call("import time; time.sleep(0.5)")])
    first = await busy_box(pool)
    os.kill(pid_of(first), signal.SIGKILL)
    while (second := await busy_box(pool)) is first:
        await asyncio.sleep(0.005)
    os.kill(pid_of(second), signal.SIGKILL)
    (execution,) = await collect(answers)
    assert (execution.status, execution.attempts) == (ExecutionStatus.SANDBOX_ERROR, 2)
    assert "2 boxes failed under this call" in execution.reason


async def test_a_frozen_box_is_replaced_and_the_call_retried(pool: Pool) -> None:
    answers = pool.submit([call("import time; time.sleep(0.2); print('done')", wall_s=0.5)])
    os.kill(pid_of(await busy_box(pool)), signal.SIGSTOP)
    (execution,) = await collect(answers)
    assert (execution.status, execution.attempts) == (ExecutionStatus.OK, 2)
    assert pool.tally.replaced["BoxHungError"] == 1


async def test_memory_and_output_are_never_retried(pool: Pool) -> None:
    assert (await run(pool, "bytearray(1 << 30)", memory_mb=64)).attempts == 1
    assert (await run(pool, "while True: print('x' * 1000)", output_kb=1)).attempts == 1


async def test_queue_time_is_not_execution_time(pool: Pool) -> None:
    executions = await collect(pool.submit([call("import time; time.sleep(0.3)", wall_s=0.5)] * 4))
    assert all(execution.status is ExecutionStatus.OK for execution in executions)
    assert max(execution.queue_ms for execution in executions) > 250
    assert max(execution.exec_ms for execution in executions) < 500


async def test_too_long_a_program_is_the_programs_failure(pool: Pool) -> None:
    execution = await run(pool, "#" * ((1 << 20) + 1))
    assert execution.status is ExecutionStatus.ERROR
    assert "longer than 1048576 bytes" in execution.stderr


async def test_a_stopped_pool_answers_what_waits(tmp_path: Path) -> None:
    pool = Pool(PlainLauncher(state_dir=tmp_path), boxes={Tier.LIGHT: 1}, max_queued=9, node="n")
    await pool.start(leave_alone)
    answers = pool.submit([call("import time; time.sleep(5)")] * 3)
    box = await busy_box(pool)
    await pool.stop()
    statuses = {execution.status for execution in await collect(answers)}
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


async def test_a_program_that_never_started_is_no_answer(tmp_path: Path) -> None:
    box = await Box.start(PlainLauncher(state_dir=tmp_path), Tier.LIGHT)
    for code in ("print(1)", "raise SystemExit(3)", "1"):  # those that did start, well or not, count for themselves
        assert (await box.run(call(code)))["status"] != NOT_STARTED
        await box.wait_ready()
    (work_dir,) = (tmp_path / "work").iterdir()
    work_dir.rmdir()
    with pytest.raises(BoxDiedError, match=r"not started: (.|\n)*No such file or directory"):
        await box.run(call("raise SystemExit(1)"))
    await box.close()


async def test_a_call_that_no_box_can_start_is_our_failure(pool: Pool, tmp_path: Path) -> None:
    while not all(slot.is_ready for slot in pool.slots):  # the first box was examined and is being replaced
        await asyncio.sleep(0.005)
    for work_dir in list((tmp_path / "work").iterdir()):
        work_dir.rmdir()
    failed = await run(pool, "raise SystemExit(1)")
    assert (failed.status, failed.attempts) == (ExecutionStatus.SANDBOX_ERROR, 2)
    assert "the program was not started" in failed.reason
    assert (await run(pool, "print(2)")).status is ExecutionStatus.OK


async def test_a_box_that_stays_silent_is_hung(tmp_path: Path) -> None:
    launcher = PlainLauncher(state_dir=tmp_path)
    box = await Box.start(launcher, Tier.LIGHT)
    os.kill(pid_of(box), signal.SIGSTOP)
    with pytest.raises(BoxHungError):
        await box.run(call("1", wall_s=0.1))
    await box.close()
