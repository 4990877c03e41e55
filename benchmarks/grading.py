"""The verifier on pairs of answers that others collected: `make bench-grading`.

Ours runs as in training: one process of the grader's pool, with its limits. math-verify alone gets the same
texts in the same run, with its own time limits, in a process of its own. Prints a markdown table and the pairs
that ours answers otherwise than labelled, by number; ends with code 1 when a bar is missed.

Two readings, for a pair tests two things. Most were made for a verifier that is handed an answer, or the whole of a
text: the first row compares what the pair means to be compared. The second reads as training does, the last box
only. The third is the second without the pairs that spread one answer over several boxes, which training does
not accept on purpose (docs/decisions/grading.md).
"""

import argparse
import asyncio
import json
import logging
import re
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path

from contracts.scoring import Graded, UngradedReason
from trainer.reward.answer import CLOSE_TAG, OPEN_TAG, last_boxed
from trainer.reward.pool import GraderPool

PAIRS = Path(__file__).parents[2] / "shared" / "data" / "verify_pairs.jsonl"
MIN_AS_LABELLED = 0.97
HANG_S = 30.0
_LIST_WORD = re.compile(r"[,;]|\band\b|\bor\b")


@dataclass(frozen=True)
class Pair:
    """A line of the collection. `label`: whether prediction and gold are the same answer."""

    id: str
    category: str
    gold: str
    prediction: str
    label: bool
    is_policy: bool


@dataclass(frozen=True)
class Outcome:
    """verdict None: none was given, `failure` says why."""

    pair: Pair
    verdict: bool | None
    seconds: float
    failure: str = ""

    @property
    def is_as_labelled(self) -> bool:
        return self.verdict is self.pair.label


def read_pairs(path: Path) -> list[Pair]:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [Pair(r["id"], r["category"], r["gold"], r["prediction"], r["should_match"], r["policy"]) for r in rows]


def find_answer(prediction: str) -> str:
    """The part of a collected prediction that is the answer: tag, then box, then all of it. Boxes joined to a list
    are one answer, which math-verify reads from the whole text."""
    inside = _inside_tag(prediction)
    last = last_boxed(inside)
    return inside if last is None or is_list_of_boxes(prediction) else last


def find_last_box(prediction: str) -> str:
    """What training would read if the prediction stood in the answer tag and every answer in a box."""
    return last_boxed(prediction) or find_answer(prediction)


def is_list_of_boxes(prediction: str) -> bool:
    """Whether the last two boxes are joined by a comma, "and" or "or"."""
    inside = _inside_tag(prediction)
    before = inside[: max(0, inside.rfind("\\boxed"))]
    previous = last_boxed(before)
    return bool(previous) and bool(_LIST_WORD.search(before.rpartition(previous or "")[2]))


def _inside_tag(prediction: str) -> str:
    return prediction.rpartition(OPEN_TAG)[2].partition(CLOSE_TAG)[0]


async def run_ours(pairs: list[Pair], reading: Callable[[str], str] = find_answer) -> list[Outcome]:
    outcomes = []
    async with GraderPool(processes=1) as grader:
        await grader.grade("x", "y")  # starts the process
        for pair in pairs:
            started = time.perf_counter()
            grade = await grader.grade(reading(pair.prediction), pair.gold)
            seconds = time.perf_counter() - started
            if isinstance(grade, Graded):
                outcomes.append(Outcome(pair, grade.reward == 1.0, seconds))
            else:
                outcomes.append(Outcome(pair, None, seconds, grade.reason.value))
    return outcomes


def run_math_verify(pairs: list[Pair]) -> list[Outcome]:
    outcomes: list[Outcome] = []
    while len(outcomes) < len(pairs):  # a new process after a hang or a crash
        outcomes += _ask_math_verify(pairs[len(outcomes) :])
    return outcomes


def _ask_math_verify(pairs: list[Pair]) -> Iterator[Outcome]:
    context = get_context("spawn")
    pipe, theirs = context.Pipe()
    process = context.Process(target=serve_math_verify, args=(theirs,), daemon=True)
    process.start()
    theirs.close()
    pipe.recv()
    try:
        for pair in pairs:
            started = time.perf_counter()
            pipe.send((pair.gold, pair.prediction))
            if not pipe.poll(HANG_S):
                yield Outcome(pair, None, HANG_S, UngradedReason.GRADER_TIMEOUT.value)
                return
            try:
                verdict = pipe.recv()
            except EOFError:
                yield Outcome(pair, None, time.perf_counter() - started, UngradedReason.GRADER_CRASH.value)
                return
            failure = "" if isinstance(verdict, bool) else UngradedReason.GRADER_CRASH.value
            yield Outcome(pair, None if failure else verdict, time.perf_counter() - started, failure)
    finally:
        process.kill()
        process.join()


def serve_math_verify(pipe: Connection) -> None:
    """(gold, prediction) in, math-verify's verdict with its defaults out; both as LaTeX, which suits it best."""
    logging.disable(logging.WARNING)
    from math_verify import parse, verify  # noqa: PLC0415

    pipe.send("ready")
    while True:
        try:
            gold, prediction = pipe.recv()
        except EOFError:
            return
        try:
            pipe.send(bool(verify(parse(_as_latex(gold)), parse(_as_latex(prediction)))))
        except Exception as error:  # noqa: BLE001  a crash is what is counted here
            pipe.send(f"{type(error).__name__}")


def _as_latex(text: str) -> str:
    return text if any(sign in text for sign in ("$", "\\boxed", "\\(", "\\[")) else f"${text}$"


def print_table(rows: dict[str, list[Outcome]]) -> None:
    print("| | pairs/s | as labelled | share | without a verdict | hangs | crashes | slowest |")
    print("|---|---|---|---|---|---|---|---|")
    for name, outcomes in rows.items():
        right = sum(o.is_as_labelled for o in outcomes)
        failures = [o.failure for o in outcomes]
        slowest = max(outcomes, key=lambda o: o.seconds)
        print(
            f"| {name} | {len(outcomes) / sum(o.seconds for o in outcomes):.0f} | {right}/{len(outcomes)} "
            f"| {right / len(outcomes):.3f} | {sum(map(bool, failures))} "
            f"| {failures.count(UngradedReason.GRADER_TIMEOUT.value)} "
            f"| {failures.count(UngradedReason.GRADER_CRASH.value)} "
            f"| {slowest.seconds * 1000:.0f} ms ({slowest.pair.id}) |"
        )


def print_misses(as_meant: list[Outcome], last_box: list[Outcome]) -> None:
    """Both runs have the pairs in one order."""
    print(
        "\n| not as labelled | category | policy in the collection | label | as meant | last box | boxes make a list |"
    )
    print("|---|---|---|---|---|---|---|")
    for meant, last in zip(as_meant, last_box, strict=True):
        if not (meant.is_as_labelled and last.is_as_labelled):
            p = meant.pair
            verdicts = f"{meant.failure or meant.verdict} | {last.failure or last.verdict}"
            listed = "yes" if is_list_of_boxes(p.prediction) else ""
            print(f"| {p.id} | {p.category} | {p.is_policy} | {p.label} | {verdicts} | {listed} |")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=Path, default=PAIRS)
    options = parser.parse_args()
    if not options.pairs.exists():
        raise SystemExit(f"{options.pairs} is not there; the collected pairs are no part of the repository")
    pairs = read_pairs(options.pairs)
    as_meant = asyncio.run(run_ours(pairs))
    last_box = asyncio.run(run_ours(pairs, find_last_box))
    in_one_place = [o for o in last_box if not is_list_of_boxes(o.pair.prediction)]
    print_table(
        {
            "ours, as the pair was meant": as_meant,
            "ours, training's last box": last_box,
            "the same, without lists of boxes": in_one_place,
            f"math-verify {version('math-verify')} alone": run_math_verify(pairs),
        }
    )
    print_misses(as_meant, last_box)
    return int(not all(map(meets_bar, (as_meant, in_one_place))))


def meets_bar(outcomes: list[Outcome]) -> bool:
    """No pair without a verdict, and as many as labelled as asked for."""
    right = sum(o.is_as_labelled for o in outcomes)
    return not any(o.failure for o in outcomes) and right >= MIN_AS_LABELLED * len(outcomes)


if __name__ == "__main__":
    sys.exit(main())
