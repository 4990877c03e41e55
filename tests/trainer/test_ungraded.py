"""A failure of ours is never a wrong answer: what stages make of rollouts without a grade."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from contracts.events import Outcome
from contracts.scoring import Grade, Graded, Ungraded, UngradedReason
from tests.trainer.pipeline_run import RL, STAGES, TinyRun, collect_and_grade_by_ids
from trainer.files import hard_file
from trainer.hard_subset import Verdict, judge
from trainer.outage import InfrastructureDown, Occasion, OutageWatch
from trainer.rollout.agent import RolloutRequest, Rollouts
from trainer.rollout.collect import Watch
from trainer.rollout.trajectory import Problem, Trajectory

RIGHT, WRONG = Graded(reward=1.0, answer="4"), Graded(reward=0.0, answer="5")
NONE = Ungraded(reason=UngradedReason.SANDBOX_UNAVAILABLE, detail="no node answers")


def rollouts(prompt: str, *grades: Grade) -> list[Trajectory]:
    problem = Problem(prompt, "2 + 2?", "4")
    return [Trajectory(problem, i, prompt_ids=[1], grade=grade) for i, grade in enumerate(grades)]


@pytest.mark.parametrize(
    ("grades", "verdict"),
    [
        ([RIGHT] * 8, Verdict.EASY),
        ([RIGHT] * 7 + [WRONG], Verdict.HARD),
        ([WRONG] * 8, Verdict.HARD),
        ([RIGHT] * 7 + [NONE], Verdict.UNDECIDED),
        ([NONE] * 8, Verdict.UNDECIDED),
        ([WRONG] + [NONE] * 7, Verdict.HARD),
        ([RIGHT] * 6 + [NONE, WRONG], Verdict.HARD),
    ],
)
def test_a_sample_without_a_grade_makes_a_problem_neither_hard_nor_easy(grades, verdict):
    assert judge(rollouts("p", *grades)) is verdict


def test_undecided_problems_are_counted_and_not_trained_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hard = RL | {"steps": 2, "hard_subset": 2, "evaluate_every": 0}
    run = TinyRun(tmp_path / "a", monkeypatch, stages=[STAGES[0], hard])
    kinds: dict[str, str] = {}

    async def grade(
        requests: Sequence[RolloutRequest], rollouts: Rollouts, watch: Watch | None = None
    ) -> list[Trajectory]:
        trajectories = await collect_and_grade_by_ids(requests, rollouts, watch)
        if len(requests) == RL["prompts_per_step"] * RL["oversample"]:
            return trajectories
        for number, t in enumerate(trajectories):  # two samples a problem: easy, hard, undecided and again
            kind = ("easy", "hard", "undecided")[number // 2 % 3]
            kinds[t.problem.id] = kind
            by_kind: dict[str, tuple[Grade, Grade]] = {"easy": (RIGHT, RIGHT), "hard": (RIGHT, WRONG)}
            t.grade = by_kind.get(kind, (RIGHT, NONE))[number % 2]
        return trajectories

    monkeypatch.setattr("trainer.sampler.collect", grade)
    assert run.start() is Outcome.FINISHED
    used = {json.loads(line)["id"] for line in (run.out / hard_file(1)).read_text().splitlines()}
    assert used == {prompt for prompt, kind in kinds.items() if kind == "hard"}
    rows = [(r.filter, r.entered, r.left) for r in run.payloads("funnel")[1].rows]
    hard_ones, easy_ones, undecided = (list(kinds.values()).count(k) for k in ("hard", "easy", "undecided"))
    assert rows == [
        ("samples without a grade, the others right", hard_ones + easy_ones + undecided, hard_ones + easy_ones),
        ("right 2 of 2", hard_ones + easy_ones, hard_ones),
    ]


STEP = Occasion(1, 3, "rollouts")


def test_most_of_a_step_without_a_grade_ends_the_run():
    watch = OutageWatch()
    with pytest.raises(InfrastructureDown, match="3 of 4 rollouts of step 3 have no grade, 3 of them by sandbox"):
        watch.check(rollouts("p", NONE, NONE) + rollouts("q", NONE, RIGHT), STEP)


def test_half_of_a_step_without_a_grade_does_not():
    OutageWatch().check(rollouts("p", NONE, NONE) + rollouts("q", WRONG, RIGHT), STEP)


def test_a_refill_round_of_one_prompt_is_judged_with_its_step():
    watch = OutageWatch()
    watch.check(rollouts("p", WRONG, RIGHT) + rollouts("q", RIGHT, RIGHT), STEP)
    watch.check(rollouts("r", NONE, NONE), STEP)
    watch.check(rollouts("s", NONE, NONE), STEP)
    with pytest.raises(InfrastructureDown, match="6 of 10 rollouts of step 3"):
        watch.check(rollouts("t", NONE, NONE), STEP)


def test_one_prompt_that_cannot_be_graded_ends_no_run():
    """As one whose reference nobody can read does not; a step of one prompt is judged with those before."""
    watch = OutageWatch()
    watch.check(rollouts("p", NONE, NONE), Occasion(1, 1, "rollouts"))
    watch.check(rollouts("q", RIGHT, WRONG), Occasion(1, 2, "rollouts"))
    watch.check(rollouts("r", NONE, NONE), Occasion(1, 3, "rollouts"))
    with pytest.raises(InfrastructureDown, match="3 of 4 rollouts of steps 3 to 4"):
        watch.check(rollouts("s", NONE, RIGHT), Occasion(1, 4, "rollouts"))


def test_an_evaluation_is_not_judged_with_the_step_before():
    watch = OutageWatch()
    watch.check(rollouts("p", RIGHT, RIGHT) + rollouts("q", RIGHT, RIGHT), STEP)
    with pytest.raises(InfrastructureDown, match="3 of 4 evaluation rollouts of step 3"):
        watch.check(rollouts("a", NONE, NONE) + rollouts("b", NONE, RIGHT), Occasion(1, 3, "evaluation rollouts"))


def test_a_run_goes_on_after_a_refill_prompt_that_cannot_be_graded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = RL | {"steps": 1, "refill": 1, "evaluate_every": 0}
    run = TinyRun(tmp_path / "b", monkeypatch, stages=[STAGES[0], stage])

    async def grade(requests: Any, rollouts: Any, watch: Any = None) -> list[Trajectory]:
        trajectories = await collect_and_grade_by_ids(requests, rollouts, watch)
        is_refill = len(requests) == stage["oversample"]
        for number, t in enumerate(trajectories):
            is_equal = number < stage["oversample"]  # the first prompt gives no gradient and is made up for
            t.grade = NONE if is_refill else RIGHT if is_equal or number % 2 else WRONG
        return trajectories

    monkeypatch.setattr("trainer.sampler.collect", grade)
    assert run.start() is Outcome.FINISHED
    [values] = [p.values for p in run.payloads("metrics") if "ledger/ungraded" in p.values]
    assert (values["refill/groups"], values["ledger/ungraded"]) == (1, stage["oversample"])
