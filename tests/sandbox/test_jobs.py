"""The queue by itself: turns, bounds, counts."""

import asyncio
import itertools

import pytest

from contracts.execution import Execution, ExecutionCall
from sandbox.jobs import Answers, Job, JobQueue
from tests.sandbox.fake_boxes import LIGHT, RICHEST

numbers = itertools.count()


def job(run_id: str = "", *, tier=LIGHT, size_bytes: int = 10, answers: Answers | None = None) -> Job:
    answers = answers or Answers()
    made = Job(ExecutionCall(id=str(next(numbers)), code="1"), tier, answers, run_id, size_bytes=size_bytes)
    answers.open_jobs.add(made)
    return made


def queue_of(*jobs: Job, max_calls: int = 100_000, max_bytes: int = 1 << 30) -> JobQueue:
    queue = JobQueue(max_calls=max_calls, max_bytes=max_bytes)
    assert all(queue.put(one) for one in jobs)
    return queue


def order(queue: JobQueue, tier=LIGHT) -> list[str]:
    taken = []
    while (one := queue.pop(tier)) is not None:
        taken.append(one.run_id)
    return taken


def test_runs_are_served_in_turn() -> None:
    queue = queue_of(*(job(run_id) for run_id in "aaaabbc"))
    assert "".join(order(queue)) == "abcabaa"


def test_a_run_is_served_in_its_order() -> None:
    jobs = [job("a") for _ in range(3)]
    queue = queue_of(*jobs)
    assert [queue.pop(LIGHT) for _ in jobs] == jobs


def test_a_burst_of_45000_does_not_starve_a_late_run() -> None:
    queue = queue_of(*(job("burst") for _ in range(45_000)))
    late = job("late")
    assert queue.put(late)
    assert late in [queue.pop(LIGHT), queue.pop(LIGHT)]


def test_tiers_do_not_mix() -> None:
    light, rich = job(), job(tier=RICHEST)
    queue = queue_of(light, rich)
    assert (queue.waiting(LIGHT), queue.waiting(RICHEST), len(queue)) == (1, 1, 2)
    assert queue.pop(RICHEST) is rich and queue.pop(RICHEST) is None
    assert queue.pop(LIGHT) is light


def test_it_is_bounded_by_calls() -> None:
    queue = queue_of(job(), job(), max_calls=2)
    assert not queue.put(job())
    queue.pop(LIGHT)
    assert queue.put(job())


def test_it_is_bounded_by_bytes() -> None:
    queue = queue_of(job(size_bytes=600), max_bytes=1000)
    assert not queue.put(job(size_bytes=401))
    assert queue.put(job(size_bytes=400))
    assert queue.size_bytes == 1000


def test_a_removed_job_is_not_counted_and_never_comes() -> None:
    first, second, third = (job("a") for _ in range(3))
    queue = queue_of(first, second, third)
    assert queue.remove(second) and not queue.remove(second)
    assert (len(queue), queue.waiting(LIGHT), queue.size_bytes) == (2, 2, 20)
    assert [queue.pop(LIGHT), queue.pop(LIGHT), queue.pop(LIGHT)] == [first, third, None]


def test_a_job_put_back_comes_next_even_into_a_full_queue() -> None:
    begun = job("a")
    queue = queue_of(begun, job("a"), job("b"), max_calls=3)
    assert queue.pop(LIGHT) is begun
    assert queue.put(job("b"))
    queue.put_back(begun)
    assert len(queue) == 4
    assert queue.pop(LIGHT) is begun


def test_ahead_counts_turns_and_not_the_burst() -> None:
    queue = queue_of(*(job("burst") for _ in range(1000)), job("b"))
    assert queue.ahead(LIGHT, "burst") == 1001  # everything: 1001 x 2 runs, but no more than wait
    assert queue.ahead(LIGHT, "b") == 4  # two turns of two runs
    assert queue.ahead(LIGHT, "new") == 2


def test_nothing_waits_after_a_drain() -> None:
    jobs = [job("a"), job("b"), job("a", tier=RICHEST)]
    queue = queue_of(*jobs)
    assert set(queue.drain()) == set(jobs)
    assert (len(queue), queue.size_bytes) == (0, 0)


def answer(one: Job) -> Execution:
    return Execution(id=one.call.id, status="ok")


async def test_answers_that_are_there_come_together() -> None:
    answers = Answers()
    jobs = [job(answers=answers) for _ in range(3)]
    assert answers.put(jobs[1], answer(jobs[1])) and answers.put(jobs[0], answer(jobs[0]))
    assert [execution.id for execution in await answers.take()] == [jobs[1].call.id, jobs[0].call.id]
    waiting = asyncio.create_task(answers.take())
    await asyncio.sleep(0)
    answers.put(jobs[2], answer(jobs[2]))
    assert len(await waiting) == 1
    assert await answers.take() == []


async def test_a_job_is_answered_once() -> None:
    answers = Answers()
    one = job(answers=answers)
    assert [answers.put(one, answer(one)) for _ in range(3)] == [True, False, False]
    assert len(await answers.take()) == 1


async def test_abandoned_answers_wake_their_reader_with_nothing() -> None:
    answers = Answers()
    one = job(answers=answers)
    waiting = asyncio.create_task(answers.take())
    await asyncio.sleep(0)
    assert answers.abandon() == {one}
    assert await waiting == []
    assert not answers.put(one, answer(one))


@pytest.mark.parametrize("count", [1, 256])
async def test_an_unread_answer_is_weighed(count: int) -> None:
    answers = Answers()
    for _ in range(count):
        one = job(answers=answers)
        answers.put(one, Execution(id=one.call.id, status="ok", stdout="x" * 10, stderr="y"))
    assert answers.unread_bytes == 11 * count
    await answers.take()
    assert answers.unread_bytes == 0
