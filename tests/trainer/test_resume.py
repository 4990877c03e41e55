"""Killed by SIGKILL at any instant and resumed, a run leaves what one that was never stopped leaves, byte for byte.

Weights, optimizer, counters, order of prompts, metrics, decision ledger, trajectories, problems: all but clock
readings. The tool answers after a random number of decode steps, so no two attempts have the same batches.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.events import Outcome
from tests.trainer.killed_runs import Attempts
from tests.trainer.pipeline_run import RL, TinyRun, assert_equal, first_difference
from trainer.policy.checkpoint import CheckpointStore

SAMPLING = {"max_response_tokens": 160, "max_turns": 3, "temperature": 1.0}
FIRST = RL | {"steps": 7, "prompts_per_step": 2, "evaluate_every": 3, "sampling": SAMPLING}
HARD = {"name": "hard", "steps": 2, "hard_subset": 2, "warmup_steps": 2, "reset_optimizer": False}
STAGES: list[dict[str, Any]] = [
    {"kind": "curate", "name": "curate", "count": 15, "held_out": 3},
    {"kind": "sft", "name": "sft", "steps": 4, "batch_size": 2},
    FIRST,
    FIRST | HARD | {"sampling": SAMPLING | {"max_response_tokens": 200, "max_turns": 2}},
    {
        "kind": "evaluate",
        "name": "evaluate",
        "board": "Test",
        "checkpoints": ["base", "sft", "latest"],
        "k": 2,
        "sampling": SAMPLING | {"temperature": 0.6},
    },
]
STEPS_AN_EPOCH = 5


@pytest.fixture(scope="module")
def attempts() -> Iterator[Attempts]:
    started = Attempts()
    yield started
    started.close()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("resume")


@pytest.fixture(scope="module")
def whole(attempts: Attempts, folder: Path) -> TinyRun:
    """Never stopped."""
    with pytest.MonkeyPatch.context() as patch:
        return attempts.finish(TinyRun(folder / "whole", patch, stages=STAGES))


@pytest.fixture
def run(folder: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> TinyRun:
    return TinyRun(folder / request.node.name, monkeypatch, with_calls=True, stages=STAGES)


def test_the_reference_run_has_calls_and_updates(whole: TinyRun) -> None:
    steps = [set(ids) for stage, _, ids in whole.prompts() if stage == 2]
    epoch, later = set.union(*steps[:STEPS_AN_EPOCH]), set.union(*steps[STEPS_AN_EPOCH:])
    assert len(epoch) == 2 * STEPS_AN_EPOCH
    assert epoch & later
    rows = [row for shard in whole.shards().values() for row in shard]
    assert sum(bool(row["tool_calls"]) for row in rows) > len(rows) / 5
    assert len({row["index"]["policy_version"] for row in rows if row["index"]["stage"] == 2}) >= 5
    assert [p.stage for p in whole.payloads("funnel")] == [0, 3]


def test_a_run_does_not_depend_on_when_tools_answer(whole: TinyRun, run: TinyRun) -> None:
    assert run.start() is Outcome.FINISHED
    assert_equal(whole, run)


def test_killed_in_each_of_six_consecutive_steps(whole: TinyRun, run: TinyRun, attempts: Attempts) -> None:
    """Steps 2 to 7, twice within an epoch and on both sides of its end, each time at another instant."""
    attempts.kill(run, before={"kind": "stage_progress", "stage": 2, "step": 2})
    attempts.kill(run, after={"kind": "trajectories", "stage": 2, "step": 3})
    attempts.kill(run, before={"kind": "metrics", "stage": 2, "step": 4})
    attempts.kill(run, after={"kind": "metrics", "stage": 2, "step": 5})
    attempts.kill(run, draft="stage-02-rl-step-000006")
    attempts.kill(run, before={"kind": "checkpoint_written", "stage": 2, "step": 7})
    assert_equal(whole, attempts.finish(run))
    resumed = [p.resumed_from_step for p in run.payloads("run_started")]
    assert resumed == [None, 1, 2, 3, 4, 5, 7]


def test_killed_with_steps_to_do_again(whole: TinyRun, folder: Path, attempts: Attempts) -> None:
    """A checkpoint every third step: step 4, 5 and 6 are done three times, over the end of the epoch."""
    stages = [stage | {"checkpoint_every": 3} if stage["name"] == "rl" else stage for stage in STAGES]
    with pytest.MonkeyPatch.context() as patch:
        run = TinyRun(folder / "again", patch, stages=stages)
    attempts.kill(run, after={"kind": "metrics", "stage": 2, "step": 5})
    attempts.kill(run, before={"kind": "checkpoint_written", "stage": 2, "step": 6})
    (run.out / "checkpoints" / "stage-02-rl-step-000006" / "model.safetensors").write_bytes(b"torn")
    attempts.kill(run, after={"kind": "metrics", "stage": 2, "step": 6})
    attempts.finish(run)
    here, there = run.everything(), whole.everything()
    for part in ("prompts", "shards", "problems"):
        assert first_difference(there[part], here[part], part) is None
    assert run.tensors() == whole.tensors()
    assert [p.resumed_from_step for p in run.payloads("run_started")] == [None, 3, 3, 3]


@pytest.mark.parametrize(
    "where",
    [
        {"after": {"kind": "metrics", "stage": 1, "step": 3}},
        {"before": {"kind": "stage_finished", "stage": 1}},
        {"after": {"kind": "checkpoint_written", "stage": 2, "step": 7}},
        {"after": {"kind": "stage_finished", "stage": 2}},
        {"before": {"kind": "funnel", "stage": 3}},
        {"after": {"kind": "metrics", "stage": 3, "step": 8}},
        {"before": {"kind": "stage_finished", "stage": 3}},
        {"after": {"kind": "evaluation_finished", "step": 2}},
    ],
    ids=lambda where: "-".join(str(v) for fields in where.values() for v in fields.values()),
)
def test_killed_at_the_boundary_of_two_stages(
    where: dict[str, Any], whole: TinyRun, run: TinyRun, attempts: Attempts
) -> None:
    attempts.kill(run, **where)
    assert_equal(whole, attempts.finish(run))


def test_sft_goes_on_from_the_step_it_was_killed_in(whole: TinyRun, run: TinyRun, attempts: Attempts) -> None:
    """Of 4 steps each has a checkpoint: weights, moments, schedule and order of rows go on, no step is done twice."""
    attempts.kill(run, before={"kind": "metrics", "stage": 1, "step": 2})
    attempts.kill(run, draft="stage-01-sft-step-000002")
    attempts.kill(run, after={"kind": "checkpoint_written", "path": "checkpoints/stage-01-sft-step-000002"})
    attempts.kill(run, after={"kind": "metrics", "stage": 1, "step": 4})
    assert_equal(whole, attempts.finish(run))
    steps = [(e.attempt, e.payload.step) for e in run.events() if e.payload.kind == "metrics" and e.payload.stage == 1]
    assert steps == [(1, 1), (2, 2), (3, 2), (4, 3), (4, 4), (5, 4)]


def test_a_damaged_checkpoint_of_sft_falls_back_to_the_one_before(
    whole: TinyRun, run: TinyRun, attempts: Attempts
) -> None:
    attempts.kill(run, after={"kind": "checkpoint_written", "path": "checkpoints/stage-01-sft-step-000003"})
    (run.out / "checkpoints" / "stage-01-sft-step-000003" / "optimizer.safetensors").unlink()
    assert_equal(whole, attempts.finish(run))
    steps = [p.step for p in run.payloads("metrics") if p.stage == 1]
    assert steps == [1, 2, 3, 3, 4]


def test_killed_between_events_again_and_again(whole: TinyRun, run: TinyRun, attempts: Attempts) -> None:
    total = len(whole.events())
    for share in (0.08, 0.2, 0.1, 0.25):
        attempts.kill(run, nth=int(share * total))
        with (run.out / "events.jsonl").open("ab") as stream:
            stream.write(b'{"run":"r","att')
    assert_equal(whole, attempts.finish(run))


def test_a_torn_or_missing_checkpoint_falls_back_to_the_one_before(
    whole: TinyRun, run: TinyRun, attempts: Attempts
) -> None:
    attempts.kill(run, after={"kind": "checkpoint_written", "stage": 2, "step": 5})
    folder = run.out / "checkpoints"
    weights = folder / "stage-02-rl-step-000005" / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\0")
    attempts.kill(run, after={"kind": "checkpoint_written", "stage": 2, "step": 6})
    (folder / "stage-02-rl-step-000006").rename(folder.parent / "elsewhere")
    assert_equal(whole, attempts.finish(run))
    warnings = [p.text for p in run.payloads("log") if p.level.value == "warning"]
    assert warnings == [
        "checkpoint stage-02-rl-step-000005 is damaged: the content of model.safetensors is not what was written; "
        "the run goes on from stage-02-rl-step-000004",
        "checkpoint stage-02-rl-step-000006 is missing; the run goes on from stage-02-rl-step-000005",
    ]


def test_a_stage_whose_last_checkpoint_is_lost_is_done_again(whole: TinyRun, run: TinyRun, attempts: Attempts) -> None:
    attempts.kill(run, after={"kind": "stage_started", "stage": 3})
    store = CheckpointStore(run.out)
    for name in ("model.safetensors", "manifest.json"):
        newest = store.latest()
        assert newest is not None
        (newest.path / name).unlink()
    attempts.finish(run)
    assert_equal(whole, run)
    assert [p.resumed_from_step for p in run.payloads("run_started")] == [None, 0]
    assert [p.stage for p in run.payloads("stage_started")] == [0, 1, 2, 3, 2, 3, 4]
