"""Who gets a box, who is rejected, what happens when things break: on boxes that obey the test."""

import ast
import asyncio
from collections import Counter
from pathlib import Path

import pytest

import sandbox
from contracts.execution import Execution, ExecutionCall, ExecutionStatus, Limits
from sandbox import pool as pool_module
from sandbox.scaling import Move
from sandbox.tiers import Tier
from tests.sandbox.fake_boxes import LIGHT, RICHEST, FakePool, calls, collect

RICH_CODE = "import sympy"


def statuses(executions: list[Execution]) -> Counter[str]:
    return Counter(execution.status.value for execution in executions)


async def test_45000_calls_of_two_runs_are_each_answered_once() -> None:
    async with FakePool({LIGHT: 3}) as pool:
        requests = [pool.submit(calls(*["1"] * 250, prefix=f"{n}-"), run_id=f"run{n % 2}") for n in range(180)]
        found = [execution.id for answers in requests for execution in await collect(answers)]
    assert len(found) == len(set(found)) == 45_000
    assert len(pool.ran) == 45_000
    assert pool.tally.served == 45_000


async def test_a_late_run_is_served_between_a_burst() -> None:
    async with FakePool({LIGHT: 1}) as pool:
        holding = pool.submit(calls("hold", prefix="h"))
        await pool.settle()
        burst = pool.submit(calls(*["1"] * 1000, prefix="burst"), run_id="burst")
        late = pool.submit(calls("1", "1", "1", prefix="late"), run_id="late")
        pool.held["h0"].release()
        await collect(late)
        await collect(burst)
        await collect(holding)
    late_places = [place for place, (id, _) in enumerate(pool.ran) if id.startswith("late")]
    assert max(late_places) <= 6


async def test_a_full_queue_rejects_with_a_time_and_recovers() -> None:
    async with FakePool({LIGHT: 1}, max_queued=4) as pool:
        answers = pool.submit(calls("hold", "1", "1", "1", "1", "1", "1"))
        await pool.settle()
        rejected = await answers.take()
        assert statuses(rejected) == {"rejected": 2}  # one runs, four wait
        assert all(0.1 <= execution.retry_after_s <= 30 for execution in rejected)
        assert {execution.reason for execution in rejected} == {"the queue is full"}
        await pool.settle()
        pool.held["0"].release()
        assert statuses(await collect(answers)) == {"ok": 5}
        assert statuses(await collect(pool.submit(calls("1")))) == {"ok": 1}


async def test_a_queue_full_of_bytes_rejects() -> None:
    async with FakePool({LIGHT: 1}, max_queued_bytes=1000) as pool:
        holding = pool.submit(calls("hold", prefix="h"))
        await pool.settle()
        answers = pool.submit(calls("#" * 600, "#" * 600, "#" * 300))
        assert [execution.id for execution in await answers.take()] == ["1"]
        pool.held["h0"].release()
        assert statuses(await collect(answers)) == {"ok": 2}
        await collect(holding)


async def test_a_wait_longer_than_the_deadline_is_rejected_at_once() -> None:
    async with FakePool({LIGHT: 1}) as pool:
        pool.tally.mean_call_s[LIGHT] = 0.5
        pool.submit(calls("hold", prefix="h"))
        await pool.settle()
        answers = pool.submit(calls("1", "1", "1", "1"), deadline_s=1.2)  # estimates 0.5, 1, 1.5, 1.5 s
        rejected = await answers.take()
        assert [execution.id for execution in rejected] == ["2", "3"]
        assert "longer than the deadline of 1.2 s" in rejected[0].reason
        assert rejected[0].retry_after_s == pytest.approx(0.3)


async def test_a_deadline_that_passes_in_the_queue_rejects_what_has_not_begun() -> None:
    async with FakePool({LIGHT: 1}) as pool:
        pool.tally.mean_call_s[LIGHT] = 0.001
        holding = pool.submit(calls("hold", prefix="h"), deadline_s=0.05)
        await pool.settle()
        answers = pool.submit(calls("1", "1"), deadline_s=0.05)
        assert statuses(await collect(answers)) == {"rejected": 2}
        assert "h0" in pool.held  # it has begun: its deadline ends nothing
        pool.held["h0"].release()
        assert statuses(await collect(holding)) == {"ok": 1}
        assert [id for id, _ in pool.ran] == ["h0"]


async def test_answered_requests_leave_no_timer_behind() -> None:
    async with FakePool({LIGHT: 1}) as pool:
        answers = pool.submit(calls("1"), deadline_s=3600)
        await collect(answers)
        assert answers.expiry.cancelled()


async def test_queue_time_is_measured_apart() -> None:
    async with FakePool({LIGHT: 1}) as pool:
        first = pool.submit(calls("hold", prefix="h"))
        second = pool.submit(calls("1"))
        await pool.settle()
        await asyncio.sleep(0.03)
        pool.held["h0"].release()
        (waited,) = await collect(second)
        await collect(first)
    assert waited.queue_ms >= 30
    assert waited.exec_ms == 1.0


async def test_queued_calls_of_a_caller_who_left_never_run() -> None:
    async with FakePool({LIGHT: 1}) as pool:
        holding = pool.submit(calls("hold", prefix="h"))
        await pool.settle()
        gone, stays = pool.submit(calls("1", "1", prefix="gone")), pool.submit(calls("1", prefix="stays"))
        pool.abandon(gone)
        assert len(pool.queue) == 1
        pool.held["h0"].release()
        await collect(holding)
        await collect(stays)
    assert [id for id, _ in pool.ran] == ["h0", "stays0"]
    assert pool.tally.abandoned == 2


@pytest.mark.parametrize(("wall_s", "is_killed"), [(60.0, True), (2.0, False)])
async def test_a_running_call_of_a_caller_who_left_is_killed_where_it_could_last(
    monkeypatch: pytest.MonkeyPatch, wall_s: float, is_killed: bool
) -> None:
    monkeypatch.setattr(pool_module, "DROP_AFTER_S", 0.0)
    async with FakePool({LIGHT: 1}) as pool:
        first_box = pool.slots[0].box
        answers = pool.submit(calls("hold", limits=Limits(wall_s=wall_s)))
        await pool.settle()
        pool.abandon(answers)
        await asyncio.sleep(0.01)
        await pool.settle()
        assert pool.tally.replaced == ({"caller gone": 1} if is_killed else {})
        assert (pool.slots[0].box is not first_box) is is_killed
        assert pool.slots[0].is_ready is is_killed


async def test_a_box_that_dies_is_replaced_and_its_call_retried_once() -> None:
    async with FakePool({LIGHT: 2}) as pool:
        (execution,) = await collect(pool.submit(calls("die")))
        assert (execution.status, execution.attempts) == (ExecutionStatus.SANDBOX_ERROR, 2)
        await pool.settle()
        assert pool.tally.replaced == {"BoxDiedError": 2}
        assert statuses(await collect(pool.submit(calls("1", "1")))) == {"ok": 2}


@pytest.mark.parametrize(
    ("code", "status", "attempts", "replaced"),
    [
        ("fault", ExecutionStatus.SIGNAL, 1, 0),
        ("bad box once", ExecutionStatus.OK, 2, 1),
        ("bad box", ExecutionStatus.SANDBOX_ERROR, 2, 2),
    ],
)
async def test_a_memory_fault_is_the_programs_only_when_the_box_proves_itself(
    code: str, status: ExecutionStatus, attempts: int, replaced: int
) -> None:
    """In a box whose kernel gets no more memory each import of a library dies: that is no answer of the program."""
    async with FakePool({LIGHT: 2}) as pool:
        (execution,) = await collect(pool.submit(calls(code)))
        assert (execution.status, execution.attempts) == (status, attempts)
        await pool.settle()
        assert pool.tally.replaced == Counter(BoxSuspectError=replaced)


async def test_a_call_that_kills_its_box_by_memory_is_not_tried_again() -> None:
    async with FakePool({LIGHT: 1}) as pool:
        (execution,) = await collect(pool.submit(calls("oom")))
        assert (execution.status, execution.attempts) == (ExecutionStatus.MEMORY, 1)
        assert execution.stderr_bytes == len(execution.stderr) > 0
        await pool.settle()
        assert pool.tally.replaced == {"out of memory": 1}
        assert statuses(await collect(pool.submit(calls("1")))) == {"ok": 1}


async def test_an_answer_names_its_box() -> None:
    async with FakePool({LIGHT: 1}) as pool:
        (execution,) = await collect(pool.submit(calls("1")))
        assert execution.box == pool.slots[0].box.id


async def test_no_spare_child_while_calls_wait() -> None:
    async with FakePool({LIGHT: 1, RICHEST: 1}) as pool:
        holding = pool.submit(calls("hold", f"{RICH_CODE} hold", prefix="h"))
        await pool.settle()
        waiting = pool.submit(calls("1", "1"))
        pool.held["h0"].release()
        await collect(waiting)
        pool.held["h1"].release()
        await collect(holding)
    assert pool.options == [{"spare": True}, {"spare": True}, {"spare": False}, {"spare": True}]


async def test_closing_an_old_box_does_not_delay_the_new_one() -> None:
    async with FakePool({LIGHT: 1}) as pool:
        pool.may_close.clear()
        await collect(pool.submit(calls("die")))
        executions = await collect(pool.submit(calls("1")))
        closed = len(pool.closed)
        pool.may_close.set()
    assert statuses(executions) == {"ok": 1}
    assert closed == 1  # the box of the self-test
    assert len(pool.closed) == 4  # all of them are closed when the pool has stopped


async def test_a_crash_of_a_slot_loses_neither_the_slot_nor_the_call(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(pool_module, "CRASH_PAUSE_S", 0.01)
    async with FakePool({LIGHT: 1}) as pool:
        (execution,) = await collect(pool.submit(calls("crash")))
        assert (execution.status, execution.attempts) == (ExecutionStatus.SANDBOX_ERROR, 2)
        assert statuses(await collect(pool.submit(calls("1")))) == {"ok": 1}
    assert pool.tally.crashes == 2
    assert "a bug of ours" in caplog.text


async def test_a_stopped_pool_answers_what_runs_waits_and_comes() -> None:
    async with FakePool({LIGHT: 1}) as pool:
        answers = pool.submit(calls("hold", "1", "1"))
        await pool.settle()
    assert statuses(await collect(answers)) == {"sandbox_error": 3}
    assert statuses(await collect(pool.submit(calls("1")))) == {"sandbox_error": 1}


async def test_a_slow_reader_holds_no_box() -> None:
    async with FakePool({LIGHT: 1}) as pool:
        unread = pool.submit(calls(*["1"] * 100, prefix="slow"))
        assert statuses(await collect(pool.submit(calls("1")))) == {"ok": 1}
        await pool.settle()
        while len(pool.ran) < 101:
            await asyncio.sleep(0)
        assert pool.slots[0].is_ready
        assert len(await unread.take()) == 100


async def test_a_reader_too_slow_for_memory_gets_no_more_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "MAX_UNREAD_BYTES", -1)
    async with FakePool({LIGHT: 1}) as pool:
        executions = await collect(pool.submit(calls("1", "1", "1")))
    assert statuses(executions) == {"ok": 1, "rejected": 2}
    assert "too slowly" in executions[-1].reason


async def test_a_box_prefers_its_own_tier() -> None:
    async with FakePool({RICHEST: 1}) as pool:
        assert {execution.status for execution in await collect(pool.submit(calls("1", RICH_CODE)))} == {"ok"}
    async with FakePool({LIGHT: 1, RICHEST: 1}) as pool:
        holding = pool.submit(calls("hold", f"{RICH_CODE} hold", prefix="h"))
        await pool.settle()
        waiting = pool.submit(calls("1", RICH_CODE))
        pool.held["h1"].release()
        await collect(waiting)
        pool.held["h0"].release()
        await collect(holding)
    assert pool.ran[2:] == [("1", RICHEST), ("0", RICHEST)]


async def test_a_richer_box_helps_only_while_a_core_is_free() -> None:
    async with FakePool({LIGHT: 1, RICHEST: 1}, cores=1) as pool:
        holding = pool.submit(calls("hold", prefix="h"))
        await pool.settle()
        waiting = pool.submit(calls("1"))
        await pool.settle()
        assert len(pool.queue) == 1
        pool.cores = 2
        assert statuses(await collect(pool.submit(calls("1", prefix="x")))) == {"ok": 1}
        await collect(waiting)
        pool.held["h0"].release()
        await collect(holding)
    assert pool.ran[1:] == [("0", RICHEST), ("x0", RICHEST)]


async def test_a_cheaper_box_never_takes_a_richer_call() -> None:
    async with FakePool({LIGHT: 2, RICHEST: 1}) as pool:
        holding = pool.submit(calls(f"{RICH_CODE} hold", f"{RICH_CODE} 1"))
        await pool.settle()
        assert (pool.queue.waiting(RICHEST), len(pool.ran)) == (1, 1)
        pool.held["0"].release()
        await collect(holding)


async def test_a_box_can_be_added_turned_over_and_ended() -> None:
    async with FakePool({LIGHT: 2, RICHEST: 1}) as pool:
        pool._apply(Move(LIGHT, RICHEST))
        await pool.settle()
        assert tiers_of(pool) == {LIGHT: 1, RICHEST: 2}
        assert all(slot.is_ready and slot.box.tier is slot.tier for slot in pool.slots)
        pool._apply(Move(None, LIGHT))
        await pool.settle()
        assert tiers_of(pool) == {LIGHT: 2, RICHEST: 2}
        pool._apply(Move(RICHEST, None))
        await pool.settle()
        assert tiers_of(pool) == {LIGHT: 2, RICHEST: 1}
        assert pool.tally.replaced == {"turned over": 1}
        assert statuses(await collect(pool.submit(calls(*["1"] * 9, RICH_CODE)))) == {"ok": 10}


def tiers_of(pool: FakePool) -> Counter[Tier]:
    return Counter(slot.tier for slot in pool.slots)


async def test_boxes_wedged_by_sleepers_get_help_and_the_help_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pool_module, "TICK_S", 0.005)
    monkeypatch.setattr(pool_module, "MOVE_PAUSE_S", 0.0)
    monkeypatch.setattr(pool_module, "idle_share", lambda *_: 1.0)
    for name, seconds in (("WAITED_S", 0.01), ("IDLE_S", 0.01), ("SHRINK_S", 0.02)):
        monkeypatch.setattr(f"sandbox.scaling.{name}", seconds)
    async with FakePool({LIGHT: 2}, max_boxes=4) as pool:
        sleeping = pool.submit(calls("hold", "hold", prefix="sleep"))
        await pool.settle()
        assert statuses(await collect(pool.submit(calls("1", "1")))) == {"ok": 2}
        assert len(pool.slots) > 2
        for box in list(pool.held.values()):
            box.release()
        await collect(sleeping)
        while len(pool.slots) > 2:
            await asyncio.sleep(0.005)
        assert statuses(await collect(pool.submit(calls("1")))) == {"ok": 1}


async def test_saturated_rate_and_wait_are_measured() -> None:
    async with FakePool({LIGHT: 2}) as pool:
        assert pool.calls_per_s() == pytest.approx(2 / 0.06)
        assert pool.drain_s() == 0.0
        holding = pool.submit(calls("hold", "hold", "1", "1", "1"))
        await pool.settle()
        pool.tally.tick(10.0, is_saturated=True)
        pool.tally.served += 50
        pool.tally.tick(12.0, is_saturated=True)
        assert pool.calls_per_s() == 25.0
        assert pool.drain_s() == pytest.approx((3 + 1) * 0.06 / 2)
        pool.tally.tick(13.0, is_saturated=False)
        assert pool.calls_per_s() == 25.0
        pool.tally.tick(43.0, is_saturated=False)
        assert pool.calls_per_s() == pytest.approx(2 / 0.06)
        for box in list(pool.held.values()):
            box.release()
        await collect(holding)


async def test_the_mean_call_follows_what_is_measured() -> None:
    pool = FakePool({LIGHT: 1})
    tally = pool.tally
    tally.observe(LIGHT, 0.66, 0.0)
    assert tally.mean_call_s[LIGHT] == pytest.approx(0.06 + 0.6 / 6)
    assert tally.mean_cpu_s[LIGHT] == pytest.approx(0.05)
    for _ in range(1000):
        tally.observe(LIGHT, 0.2, 0.1)
    assert tally.mean_call_s[LIGHT] == pytest.approx(0.2, rel=0.01)
    assert pool.loads()[0].cpu_share == pytest.approx(0.5, rel=0.01)


async def test_too_long_a_program_or_history_is_the_programs_failure() -> None:
    async with FakePool({LIGHT: 1}) as pool:
        long = [
            ExecutionCall(id="a", code="#" * ((1 << 20) + 1)),
            ExecutionCall(id="b", code="1", history=["é" * 600_000]),
        ]
        executions = await collect(pool.submit(long))
    assert statuses(executions) == {"error": 2}
    assert all("longer than 1048576 bytes" in execution.stderr for execution in executions)


def test_no_deadline_depends_on_the_wall_clock() -> None:
    found = []
    for path in Path(sandbox.__file__).parent.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                name = f"{node.value.id}.{node.attr}"
                if name in ("time.time", "time.time_ns", "datetime.now", "datetime.utcnow"):
                    found.append(f"{path.name}:{node.lineno} {name}")
    assert found == []
