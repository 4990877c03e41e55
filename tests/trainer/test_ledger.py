"""The ledger of real small runs, read back from their Parquet shards: every rollout generated has one decision."""

from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from contracts.events import Outcome
from contracts.scoring import Graded, Ungraded, UngradedReason
from contracts.trajectory import Decision, TrajectoryIndex
from tests.trainer.pipeline_run import RL, STAGES, TinyRun, collect_and_grade_by_ids, first_difference
from trainer.files import train_shard
from trainer.rl import pick_refill
from trainer.rollout.agent import RolloutRequest, Rollouts
from trainer.rollout.collect import Watch
from trainer.rollout.trajectory import Problem, Trajectory

KEPT = (Decision.KEPT_RIGHT, Decision.KEPT_WRONG, Decision.KEPT_TRUNCATED)
OVERSAMPLE, GROUP, PROMPTS, STEPS = 6, 3, 4, 3
STAGE = RL | {"steps": STEPS, "prompts_per_step": PROMPTS, "evaluate_every": 0}
EVERYTHING = STAGE | {
    "refill": 2,
    "overlong": "mask",
    "advantage_scale": "batch",
    "loss_terms": {"dual_clip": 3, "kl_k3": 0.01, "entropy": 0.001, "tis": 2},
}


async def grade_unevenly(
    requests: Sequence[RolloutRequest], rollouts: Rollouts, watch: Watch | None = None
) -> list[Trajectory]:
    """By the prompt's id: some groups all right, some with one rollout ungraded, some of the first prompts with
    all but one."""
    trajectories = await collect_and_grade_by_ids(requests, rollouts, watch)
    is_first = len(requests) == PROMPTS * OVERSAMPLE
    for t in trajectories:
        kind = int.from_bytes(t.problem.id.encode()[-2:]) % 5
        if kind == 0:
            t.grade = Graded(reward=1.0)
        elif (kind == 1 and t.sample == 2) or (kind == 2 and t.sample > 0 and is_first):
            t.grade = Ungraded(reason=UngradedReason.GRADER_CRASH)
    return trajectories


def start(folder: Path, patch: pytest.MonkeyPatch, stage: dict[str, Any]) -> TinyRun:
    run = TinyRun(folder, patch, stages=[STAGES[0], stage])
    patch.setattr("trainer.sampler.collect", grade_unevenly)
    return run


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    with pytest.MonkeyPatch.context() as patch:
        run = start(tmp_path_factory.mktemp("ledger") / "plain", patch, STAGE)
        assert run.start() is Outcome.FINISHED
    return run


@pytest.fixture(scope="module")
def with_everything(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    with pytest.MonkeyPatch.context() as patch:
        run = start(tmp_path_factory.mktemp("ledger") / "everything", patch, EVERYTHING)
        assert run.start() is Outcome.FINISHED
    return run


@pytest.fixture(params=["plain", "with_everything"])
def run(request: pytest.FixtureRequest) -> TinyRun:
    found: TinyRun = request.getfixturevalue(request.param)
    return found


def ledger(run: TinyRun, step: int) -> list[TrajectoryIndex]:
    """The decisions of a step as its shard has them."""
    lines = pq.read_table(run.out / train_shard(1, step), columns=["index"])["index"].to_pylist()
    return [TrajectoryIndex.model_validate_json(line) for line in lines]


def by_prompt(lines: Sequence[TrajectoryIndex]) -> dict[str, list[TrajectoryIndex]]:
    groups: dict[str, list[TrajectoryIndex]] = defaultdict(list)
    for line in lines:
        groups[line.prompt_id].append(line)
    return groups


def metrics(run: TinyRun, step: int) -> dict[str, float]:
    return {name: value for p in run.payloads("metrics") if p.step == step for name, value in p.values.items()}


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_every_rollout_generated_has_one_line(run: TinyRun, step: int) -> None:
    groups, told = by_prompt(ledger(run, step)), metrics(run, step)
    assert len(groups) == PROMPTS + told["refill/groups"]
    for group in groups.values():
        assert sorted(line.sample for line in group) == list(range(OVERSAMPLE))


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_totals_are_those_of_the_metrics_and_of_the_events(run: TinyRun, step: int) -> None:
    lines, told = ledger(run, step), metrics(run, step)
    counts = Counter(line.decision for line in lines)
    assert {d: told[f"ledger/{d}"] for d in Decision if d is not Decision.EVALUATION} == {
        d: counts[d] for d in Decision if d is not Decision.EVALUATION
    }
    assert sum(v for name, v in told.items() if name.startswith("ledger/")) == len(lines)
    rows = [row for p in run.payloads("trajectories") for row in p.rows if row.step == step]
    assert rows == lines


@pytest.mark.parametrize("step", range(1, STEPS + 1))
def test_decisions_follow_from_grades_weights_and_draws(run: TinyRun, step: int) -> None:
    for group in by_prompt(ledger(run, step)).values():
        graded = [line for line in group if isinstance(line.grade, Graded)]
        assert {line.decision for line in group if line not in graded} <= {Decision.UNGRADED}
        rewards = {line.grade.reward for line in graded if isinstance(line.grade, Graded)}
        if len(graded) < 2:
            assert {line.decision for line in graded} <= {Decision.TOO_FEW}
        elif len(rewards) == 1:
            assert {line.decision for line in graded} == {Decision.EQUAL_REWARD}
        else:
            check_kept(graded)


def check_kept(graded: Sequence[TrajectoryIndex]) -> None:
    kept = [line for line in graded if line.decision in KEPT]
    assert len(kept) == min(GROUP, len(graded))
    assert all((line.advantage is not None) == (line in kept) for line in graded)
    right = [line for line in graded if isinstance(line.grade, Graded) and line.grade.reward > 0]
    assert [line for line in graded if line.weight is not None] == right
    total = sum(line.weight or 0 for line in right)
    for line in right:
        assert line.p_err is not None and line.p_format is not None and line.weight is not None
        assert line.weight == pytest.approx(1 / (line.p_err + line.p_format + 0.05))
        assert line.draw_probability == pytest.approx(line.weight / total)
    for side in (right, [line for line in graded if line not in right]):
        drawn = sorted((line for line in side if line.draw is not None), key=lambda line: line.draw or 0)
        assert [line.draw for line in drawn] == list(range(1, len(drawn) + 1))
        assert [line in kept for line in drawn] == sorted((line in kept for line in drawn), reverse=True)


def test_the_runs_have_all_sorts_of_groups(plain: TinyRun, with_everything: TinyRun) -> None:
    for run in (plain, with_everything):
        seen = Counter(line.decision for step in range(1, STEPS + 1) for line in ledger(run, step))
        assert {Decision.KEPT_RIGHT, Decision.NOT_SELECTED, Decision.EQUAL_REWARD, Decision.UNGRADED} <= seen.keys()


def test_refill_takes_new_prompts_until_the_step_is_full_or_its_rounds_are_over(
    plain: TinyRun, with_everything: TinyRun
) -> None:
    assert all(metrics(plain, step)["refill/groups"] == 0 for step in range(1, STEPS + 1))
    refilled = [metrics(with_everything, step) for step in range(1, STEPS + 1)]
    assert any(told["refill/groups"] > 0 for told in refilled)
    for told in refilled:
        assert told["groups/kept"] <= PROMPTS
        assert told["groups/kept"] == PROMPTS or told["refill/groups"] >= 2


def test_refill_never_takes_a_prompt_twice() -> None:
    problems = [Problem(str(i), str(i), str(i)) for i in range(7)]
    picked = pick_refill(problems, {"0", "3"}, 4, seed=5)
    assert len({p.id for p in picked} - {"0", "3"}) == 4
    assert picked == pick_refill(problems, {"0", "3"}, 4, seed=5)
    assert len(pick_refill(problems, {"0", "3"}, 9, seed=5)) == 5
    assert pick_refill(problems, {p.id for p in problems}, 4, seed=5) == []


def test_masked_rollouts_count_in_the_mean_and_have_no_advantage(with_everything: TinyRun) -> None:
    lines = [line for step in range(1, STEPS + 1) for line in ledger(with_everything, step)]
    masked = [line for line in lines if line.decision is Decision.KEPT_TRUNCATED]
    assert masked and all(line.advantage == 0 for line in masked)


def test_the_policy_is_held_to_where_the_stage_began(with_everything: TinyRun) -> None:
    told = [metrics(with_everything, step)["policy/kl_reference"] for step in range(1, STEPS + 1)]
    assert told[0] == 0
    assert told[1] > 0 and told[2] > 0


def test_a_stopped_and_resumed_run_has_the_same_ledger(
    with_everything: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    again = start(tmp_path / "again", monkeypatch, EVERYTHING)
    send = TinyRun.start.__globals__["Reporter"].metrics

    def stop_after_step_1(reporter: Any, stage: int, step: int, values: dict[str, float]) -> None:
        send(reporter, stage, step, values)
        if step == 1:
            reporter.request_stop()

    with monkeypatch.context() as patch:
        patch.setattr("trainer.reporter.Reporter.metrics", stop_after_step_1)
        assert again.start() is Outcome.CANCELLED
    assert again.start() is Outcome.FINISHED
    assert first_difference(again.figures(), with_everything.figures(), "figures") is None
    for name, files in again.weights().items():  # the record beside them names the model's path, which differs here
        for file in ("model.safetensors", "optimizer.safetensors"):
            assert files[file] == with_everything.weights()[name][file], (name, file)
