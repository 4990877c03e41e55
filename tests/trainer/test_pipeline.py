"""A whole run on a random tiny model: stages in order, every metric, a ledger that adds up, honest endings."""

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from contracts.events import Event, LogLevel, Outcome, RunEnded
from contracts.metrics import METRICS
from contracts.recipe import CurateStage, Recipe
from contracts.scoring import Ungraded, UngradedReason
from contracts.trajectory import Decision
from tests.trainer.pipeline_run import RL, STAGES, TinyRun, collect_and_grade_by_ids
from trainer.__main__ import RecipeError, load_recipe, main
from trainer.files import RECIPE_FILE, hard_file
from trainer.policy.checkpoint import CheckpointStore
from trainer.refusal import RunRefused, check_recipe
from trainer.reporter import Reporter
from trainer.rl import pick_prompts
from trainer.rollout.trajectory import Problem
from trainer.store import Places, read_row


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> TinyRun:
    with pytest.MonkeyPatch.context() as patch:
        run = TinyRun(tmp_path_factory.mktemp("run") / "a", patch)
        assert run.start() is Outcome.FINISHED
    return run


def test_the_stages_begin_and_finish_in_order(finished: TinyRun) -> None:
    begun = [(p.stage, p.name, p.steps, p.first_step) for p in finished.payloads("stage_started")]
    assert begun == [(0, "curate", 0, 0), (1, "sft", 2, 0), (2, "rl", 3, 1), (3, "hard", 2, 4), (4, "evaluate", 0, 0)]
    assert [p.stage for p in finished.payloads("stage_finished")] == [0, 1, 2, 3, 4]
    kinds = [event.payload.kind for event in finished.events()]
    assert (kinds[0], kinds[-1]) == ("run_started", "run_ended")
    assert [event.seq for event in finished.events()] == list(range(1, len(kinds) + 1))


def test_rl_steps_count_on_over_the_stages(finished: TinyRun) -> None:
    steps = [(p.stage, p.step) for p in finished.payloads("metrics") if "reward/mean" in p.values]
    assert steps == [(2, 1), (2, 2), (2, 3), (3, 4), (3, 5)]


def test_every_metric_is_sent(finished: TinyRun) -> None:
    sent = {name for p in finished.payloads("metrics") for name in p.values}
    needs_tool_calls = {n for n in METRICS if n.startswith(("tools/", "entropy/before_", "entropy/after_"))}
    needs_words = {"entropy/code", "entropy/comment", "entropy/answer"}  # a random model writes none
    others = {"eval/tool_error_ratio_right", "policy/kl_reference"}
    assert METRICS.keys() - sent <= needs_tool_calls | needs_words | others


def test_the_ledger_adds_up_to_what_was_generated(finished: TinyRun) -> None:
    for payload in finished.payloads("metrics"):
        if "reward/mean" in payload.values:
            assert sum(v for n, v in payload.values.items() if n.startswith("ledger/")) == 12
            assert sum(v for n, v in payload.values.items() if n.startswith("groups/")) == 2


def test_every_index_row_names_its_parquet_row(finished: TinyRun) -> None:
    rows = [row for p in finished.payloads("trajectories") for row in p.rows]
    assert len({(r.stage, r.step, r.prompt_id, r.sample) for r in rows}) == len(rows)
    for row in rows[::7]:
        stored = read_row(finished.out / row.shard, row.row)
        assert stored.index == row
        assert len(stored.response_ids) == len(stored.response_mask) == len(stored.entropies) == row.response_tokens
    counts = Counter(row.decision is Decision.EVALUATION for row in rows)
    assert counts[False] == 5 * 12


def test_kept_rollouts_have_advantages_and_others_none(finished: TinyRun) -> None:
    rows = [row for p in finished.payloads("trajectories") for row in p.rows]
    kept = [r for r in rows if r.decision in (Decision.KEPT_RIGHT, Decision.KEPT_WRONG, Decision.KEPT_TRUNCATED)]
    assert kept
    assert all(r.advantage is not None for r in kept)
    assert all(r.advantage is None for r in rows if r not in kept)


def test_each_checkpoint_of_an_evaluation_is_a_row(finished: TinyRun) -> None:
    rows = finished.payloads("evaluation_finished")
    assert [(r.step, r.label, r.board) for r in rows] == [
        (1, "base model", "Test"),
        (2, "after sft", "Test"),
        (3, "after hard", "Test"),
    ]
    assert all(r.avg is not None and r.avg.samples == 8 and len(r.correct_by_problem) == 4 for r in rows)


def test_checkpoints_left_are_the_newest_and_the_stages_ends(finished: TinyRun) -> None:
    assert list(finished.weights()) == [
        "stage-01-sft-step-000002",
        "stage-02-rl-step-000003",
        "stage-03-hard-step-000002",
    ]
    versions = [(p.path.split("/")[-1], p.label) for p in finished.payloads("checkpoint_written")]
    assert versions[-1] == ("stage-03-hard-step-000002", "after hard")


def test_the_same_seed_gives_the_same_run(finished: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    again = TinyRun(tmp_path / "b", monkeypatch)
    again.start()
    assert again.figures() == finished.figures()
    assert again.tensors() == finished.tensors()


def test_a_stop_ends_at_a_safe_point_and_can_be_resumed(
    finished: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TinyRun(tmp_path / "c", monkeypatch)
    metrics = TinyRun.start.__globals__["Reporter"].metrics

    def stop_after_step_2(reporter: Any, stage: int, step: int, values: dict[str, float]) -> None:
        metrics(reporter, stage, step, values)
        if stage == 2 and step == 2:
            reporter.request_stop()

    with monkeypatch.context() as patch:
        patch.setattr("trainer.reporter.Reporter.metrics", stop_after_step_2)
        assert run.start() is Outcome.CANCELLED
    assert run.payloads("run_ended")[-1].steps in (1, 2)
    assert run.start() is Outcome.FINISHED
    assert run.tensors() == finished.tensors()


def test_a_failure_is_recorded_with_its_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TinyRun(tmp_path / "d", monkeypatch)
    monkeypatch.setattr("trainer.pipeline.run_curate", _fail)
    assert run.start() is Outcome.FAILED
    assert run.payloads("run_ended")[0].reason == "ValueError: no luck"
    errors = [p.text for p in run.payloads("log") if p.level is LogLevel.ERROR]
    assert len(errors) == 1
    assert "Traceback" in errors[0]


def _fail(context: object, index: int, stage: CurateStage) -> None:
    raise ValueError("no luck")


def test_a_run_whose_rollouts_cannot_be_graded_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TinyRun(tmp_path / "h", monkeypatch, stages=[STAGES[0], RL])

    async def leave_ungraded(requests: Any, rollouts: Any, watch: Any = None) -> Any:
        trajectories = await collect_and_grade_by_ids(requests, rollouts, watch)
        for trajectory in trajectories[:7]:
            trajectory.grade = Ungraded(reason=UngradedReason.SANDBOX_UNAVAILABLE, detail="no node answers")
        return trajectories

    monkeypatch.setattr("trainer.sampler.collect", leave_ungraded)
    assert run.start() is Outcome.FAILED
    reason = run.payloads("run_ended")[0].reason
    assert "7 of 12 rollouts of step 1 have no grade, 7 of them by sandbox_unavailable (no node answers)" in reason
    assert not run.payloads("trajectories")


def test_nothing_follows_the_end_of_an_attempt(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, "r", heartbeat_s=0.001)
    reporter.end(RunEnded(outcome=Outcome.FINISHED))
    time.sleep(0.05)
    reporter.close()
    last = (tmp_path / "events.jsonl").read_text().splitlines()[-1]
    assert Event.model_validate_json(last).payload.kind == "run_ended"


def test_rl_learns_from_a_file_of_problems(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text("".join(f'{{"problem": "What is {i} + {i}?", "answer": {2 * i}}}\n' for i in range(9)))
    curate = {"kind": "curate", "name": "curate", "source": str(path), "held_out": 2}
    own = TinyRun(tmp_path / "f", monkeypatch, stages=[curate, RL | {"steps": 1}])
    assert own.start() is Outcome.FINISHED


def test_prompts_of_an_epoch_are_all_different() -> None:
    problems = [Problem(str(i), str(i), str(i)) for i in range(7)]
    steps = [pick_prompts(problems, 3, step, seed=1) for step in range(1, 5)]
    assert len({p.id for step in steps[:2] for p in step}) == 6
    assert [p.id for p in steps[0]] != [p.id for p in steps[2]]
    assert len(pick_prompts(problems[:2], 3, 5, seed=1)) == 2


def test_a_changed_recipe_is_refused_with_each_difference(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TinyRun(tmp_path / "g", monkeypatch)
    places = Places(run.out, None, run.out)
    check_recipe(run.recipe, places, resume=False)
    with pytest.raises(RunRefused, match="--resume"):
        check_recipe(run.recipe, places, resume=False)
    check_recipe(run.recipe, places, resume=True)
    stages = [*run.recipe.stages[:-1]]
    changed = run.recipe.model_copy(update={"seed": 7, "stages": stages})
    with pytest.raises(RunRefused) as refusal:
        check_recipe(changed, places, resume=True)
    said = str(refusal.value).splitlines()
    assert said[1] == "  seed: 1 -> 7"
    assert said[2].startswith('  stages.4: {"name": "evaluate", ')
    assert said[2].endswith("} -> absent")
    assert "start a new run in another folder" in said[3]


def test_changed_problems_are_refused_by_their_content(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "mine.jsonl"
    source.write_text('{"problem": "What is 1 + 1?", "answer": 2}\n' * 3)
    curate = {"kind": "curate", "name": "curate", "source": str(source)}
    run = TinyRun(tmp_path / "g", monkeypatch, stages=[curate])
    places = Places(run.out, None, run.out)
    check_recipe(run.recipe, places, resume=False)
    source.touch()
    check_recipe(run.recipe, places, resume=True)
    source.write_text('{"problem": "What is 1 + 1?", "answer": 2}\n' * 4)
    with pytest.raises(RunRefused, match=r"stages.0.source: .*\(3 rows, 129 bytes, .*-> .*\(4 rows, 172 bytes"):
        check_recipe(run.recipe, places, resume=True)


def test_edited_curated_problems_are_refused(finished: TinyRun) -> None:
    places = Places(finished.out, None, finished.out)
    check_recipe(finished.recipe, places, resume=False)
    train = finished.out / "problems" / "stage-00" / "train.jsonl"
    before = train.read_bytes()
    train.write_bytes(before.replace(b"1", b"2"))
    with pytest.raises(RunRefused, match=r"problems/stage-00/train.jsonl: .* -> "):
        check_recipe(finished.recipe, places, resume=True)
    train.unlink()
    with pytest.raises(RunRefused, match=r"problems/stage-00/train.jsonl: .* -> missing"):
        check_recipe(finished.recipe, places, resume=True)
    train.write_bytes(before)
    check_recipe(finished.recipe, places, resume=True)
    (finished.out / RECIPE_FILE).unlink()


def test_a_resume_may_have_another_number_of_ranks_and_nothing_else(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({"name": "x", "stages": [{"kind": "curate", "name": "c"}]})
    places = Places(tmp_path, None, tmp_path)
    check_recipe(recipe, places, resume=False)
    check_recipe(recipe.model_copy(update={"ranks": 2}), places, resume=True)
    assert json.loads((tmp_path / RECIPE_FILE).read_text())["ranks"] == 2
    with pytest.raises(RunRefused, match="seed: 1 -> 5"):
        check_recipe(recipe.model_copy(update={"ranks": 1, "seed": 5}), places, resume=True)


def test_screening_rollouts_are_stored(finished: TinyRun) -> None:
    """Each problem screened for the hard subset, with as many rollouts as the recipe says."""
    rows = [row for p in finished.payloads("trajectories") for row in p.rows if row.step == 0]
    screened = finished.payloads("funnel")[1].rows[0].entered
    assert {(row.stage, row.shard, row.decision) for row in rows} == {
        (3, "trajectories/stage-03/screen-001.parquet", Decision.EVALUATION)
    }
    assert sorted(Counter(row.prompt_id for row in rows).values()) == [2] * screened
    hard = {json.loads(line)["id"] for line in (finished.out / hard_file(3)).read_text().splitlines()}
    right = Counter(row.prompt_id for row in rows if row.grade.reward == 1)
    assert hard == {row.prompt_id for row in rows if right[row.prompt_id] < 2}


def test_a_checkpoint_of_any_stage_starts_another_run(
    finished: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also with its optimizer, where the stage does not ask for a fresh one."""
    for checkpoint in CheckpointStore(finished.out).find_all():
        stages = [STAGES[0], RL | {"steps": 1, "reset_optimizer": False, "checkpoint_every": 0}]
        run = TinyRun(tmp_path / checkpoint.path.name, monkeypatch, model=str(checkpoint.path), stages=stages)
        assert run.start() is Outcome.FINISHED
        steps = [
            load_file(folder / "optimizer.safetensors")["model.norm.weight.step"].item()
            for folder in (checkpoint.path, CheckpointStore(run.out).find_all()[0].path)
        ]
        assert steps[1] >= steps[0] > 0


def test_a_run_of_an_earlier_version_is_resumed(tmp_path: Path) -> None:
    recipe = Recipe.model_validate({"name": "x", "stages": [{"kind": "curate", "name": "c"}]})
    stored = recipe.model_dump(mode="json")
    limits = stored["tool"]["limits"]
    stored["tool"] = {"limits": limits, "max_response_chars": 256, "traceback_lines": 0}
    path = tmp_path / RECIPE_FILE
    path.write_text(json.dumps(stored))
    check_recipe(load_recipe(path), Places(tmp_path, None, tmp_path), resume=True)
    written = tmp_path / "by-hand.yaml"
    written.write_text(json.dumps(stored))
    with pytest.raises(RecipeError, match="max_response_chars is now max_tool_response_tokens"):
        load_recipe(written)


def test_recipe_errors_name_file_field_and_fault(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "bad.yaml"
    path.write_text("name: x\nstages:\n- {kind: rl, name: rl, group_size: 9, oversample: 4, lr: 1}\n")
    assert main(["run", str(path), "--out", str(tmp_path / "out")]) == 2
    printed = capsys.readouterr().err
    assert f"{path}: stages.0.rl.lr: Extra inputs are not permitted" in printed
    assert not (tmp_path / "out").exists()


def test_overrides_set_fields_of_the_recipe(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("name: x\nstages:\n- {kind: curate, name: c}\n- {kind: sft, name: s}\n")
    recipe = load_recipe(path, ["stages.1.steps=5", "tool.limits.wall_s=2.5"], seed=9)
    assert (recipe.stages[1].steps, recipe.tool.limits.wall_s, recipe.seed) == (5, 2.5, 9)
    assert [s.name for s in load_recipe(path, command="curate").stages] == ["c"]
    for override in ("stages.7.steps=5", "nothing", "name.x=1"):
        with pytest.raises(RecipeError, match="--set"):
            load_recipe(path, [override])


@pytest.mark.parametrize("path", sorted((Path(__file__).parents[2] / "recipes").glob("*.yaml")), ids=lambda p: p.name)
def test_every_recipe_of_the_project_is_valid_and_explained_in_one_comment_block(path: Path) -> None:
    load_recipe(path)
    lines = path.read_text().splitlines()
    comments = [number for number, line in enumerate(lines) if line.lstrip().startswith("#")]
    assert comments == list(range(len(comments)))
    assert sum(len(lines[number]) for number in comments) > 100
