import asyncio
import json
import logging
import time
from multiprocessing import active_children
from pathlib import Path

import pytest

from contracts.scoring import Graded, Ungraded, UngradedReason
from tests.trainer.scripted_worker import serve_by_script
from trainer.reward import pool as pool_module
from trainer.reward.answer import last_boxed
from trainer.reward.integers import verify_integer
from trainer.reward.pool import GraderPool
from trainer.reward.verify import BadReference, verify

PAIRS = Path(__file__).parents[3] / "shared" / "data" / "verify_pairs.jsonl"


@pytest.fixture(autouse=True)
def quiet() -> None:
    logging.getLogger("math_verify").setLevel(logging.ERROR)


@pytest.mark.parametrize(
    ("answer", "reference", "equal"),
    [
        ("42", "42", True),
        ("42", "43", False),
        (" 42 ", "42", True),
        ("$42$", "42", True),
        ("042", "42", True),
        ("-5", "5", False),
        ("+5", "5", True),
        ("\u22125", "-5", True),
        ("-0", "0", True),
        ("42.0", "42", True),
        ("42.", "42", True),
        ("1,000", "1000", True),
        ("1{,}000", "1000", True),
        ("1\\,000", "1000", True),
        ("11,\\! 111", "11111", True),
        ("１２", "12", True),
        ("9" * 5000, "9" * 5000, True),
        ("9" * 5000, "9" * 4999 + "8", False),
        ("42.5", "42", None),
        ("1e3", "1000", None),
        ("1,00", "100", None),
        ("", "42", None),
        ("\\frac{84}{2}", "42", None),
        ("42", "x", None),
    ],
)
def test_integers_are_compared_exactly(answer, reference, equal):
    assert verify_integer(answer, reference) is equal


@pytest.mark.parametrize(
    ("answer", "reference", "equal"),
    [
        ("0.5", "\\frac{1}{2}", True),
        ("\\sqrt{2}", "\\sqrt{2}", True),
        ("(1,2)", "(1,2)", True),
        ("(2,1)", "(1,2)", False),
        ("2 \\cdot 21", "42", True),
        ("x = 42", "42", True),
        ("42\\text{ cm}", "42", True),
        ("42\\text{ cm}", "42\\text{ m}", False),
        ("1 000", "0", False),
        ("1 000", "1000", True),
        ("10\\%", "0.1", False),
        ("50\\%", "50", False),
        ("0.5", "50\\%", False),
        ("\\frac{1}{2006!}", "\\frac{1}{2004!}", False),
        ("(3,4]", "3 < x \\le 4", True),
        ("3 < x \\le 4", "(3,4]", True),
        ("\\text{(C)}", "C", True),
        ("D", "C", False),
        ("", "42", False),
        ("<<<{{{", "42", False),
    ],
)
def test_other_answers(answer, reference, equal):
    assert verify(answer, reference) is equal


@pytest.mark.parametrize("answer", ["9^9^9^9", "5^{5^{5^{5}}}", "(" * 2000 + ")" * 2000, "2^{999999999}", "99999999!"])
def test_what_would_hang_is_refused_at_once(answer):
    started = time.perf_counter()
    assert verify(answer, "7") is False
    assert time.perf_counter() - started < 2


def test_a_reference_that_cannot_be_read_is_an_error_not_a_grade():
    with pytest.raises(BadReference):
        verify("7", "")


@pytest.mark.skipif(not PAIRS.exists(), reason="the collected pairs are not here")
def test_collected_pairs():
    # As in production the answer is what the last box or the answer tag holds; pairs of several boxes, which
    # math-verify itself joins to a set, go through whole.
    pairs = [json.loads(line) for line in PAIRS.read_text().splitlines()]
    right = sum(verdict(pair["prediction"], pair["gold"]) is pair["should_match"] for pair in pairs)
    assert right / len(pairs) >= 0.95


def verdict(text: str, gold: str) -> bool | None:
    text = text.partition("<answer>")[2].partition("</answer>")[0] or text
    if text.count("boxed") == 1 or len(gold) == 1:
        text = last_boxed(text) or text
    try:
        return verify(text, gold)
    except BadReference:
        return None


async def test_the_integer_path_starts_no_process():
    async with GraderPool() as grader:
        assert await grader.grade("42", "42") == Graded(reward=1.0, answer="42")
        assert await grader.grade("41", "42") == Graded(reward=0.0, answer="41")
        assert await grader.grade(None, "42") == Graded(reward=0.0)
        assert active_children() == []


async def test_a_worker_compares_and_is_gone_after_close():
    async with GraderPool(timeout_s=30) as grader:
        assert await grader.grade("0.5", "\\frac12") == Graded(reward=1.0, answer="0.5")
        assert await grader.grade("0.4", "\\frac12") == Graded(reward=0.0, answer="0.4")
        assert len(active_children()) == 1
        bad = await grader.grade("7", "")
        assert (bad.kind, bad.reason) == ("ungraded", UngradedReason.GRADER_CRASH)
        assert "BadReference" in bad.detail
    assert active_children() == []


@pytest.fixture
def scripted(monkeypatch) -> None:
    monkeypatch.setattr(pool_module, "_serve", serve_by_script)


async def test_a_hung_worker_is_killed_and_replaced(scripted):
    async with GraderPool(timeout_s=0.3) as grader:
        hung = await grader.grade("hang", "x")
        assert hung == Ungraded(reason=UngradedReason.GRADER_TIMEOUT, detail="no verdict within 0.3 s")
        assert active_children() == []
        assert await grader.grade("fine", "x") == Graded(reward=1.0, answer="fine")
    assert active_children() == []


async def test_a_dead_worker_is_ungraded_after_a_second_try(scripted):
    async with GraderPool() as grader:
        dead = await grader.grade("die", "x")
        assert (dead.kind, dead.reason) == ("ungraded", UngradedReason.GRADER_CRASH)


async def test_a_crash_is_tried_once_more(scripted, tmp_path):
    answer = f"die-once {tmp_path / 'died'}"
    async with GraderPool() as grader:
        assert await grader.grade(answer, "x") == Graded(reward=1.0, answer=answer)


async def test_queueing_does_not_count_as_grading(scripted):
    async with GraderPool(timeout_s=1.0) as grader:  # one worker, fifteen answers of 0.1 s: 1.5 s in all
        found = await asyncio.gather(*(grader.grade("slow", "x") for _ in range(15)))
    assert all(grade.kind == "graded" for grade in found)


async def test_a_cancelled_caller_leaves_no_busy_worker(scripted):
    async with GraderPool() as grader:
        task = asyncio.create_task(grader.grade("hang", "x"))
        await asyncio.sleep(0.5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert active_children() == []
