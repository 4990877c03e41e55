"""A run whose learner is in other processes: the same run, also when a rank dies, or there are others at a resume.

Without Ray: one rank in this process, which dies when it is told to and then leaves the same bytes as no rank at all.
"""

import os
import signal
from collections import Counter
from collections.abc import Iterator
from math import isclose
from pathlib import Path
from typing import Any

import pytest

from contracts.events import LogLevel, Outcome
from tests.trainer.pipeline_run import RL, STAGES, TinyRun, assert_equal
from trainer import pipeline, rl
from trainer.context import MAX_LOSSES
from trainer.policy.handover import OwnCopy
from trainer.policy.learners import OwnLearner, RemoteLearner
from trainer.policy.model import load_model
from trainer.policy.rank_host import LearnerLost
from trainer.ranks import LearnerHost
from trainer.rollout.weights import exchange_file

SAMPLING = {"max_response_tokens": 48, "max_turns": 2, "temperature": 1.0}
FIRST = RL | {
    "steps": 5,
    "checkpoint_every": 3,
    "evaluate_every": 0,
    "loss_terms": {"kl_k3": 0.1},
    "sampling": SAMPLING,
}
SECOND = FIRST | {"name": "more", "steps": 2, "reset_optimizer": False, "overlong": "mask"}
ALL_STAGES: list[dict[str, Any]] = [STAGES[0], STAGES[1] | {"steps": 12}, FIRST, SECOND]


class OneRank:
    """The `RankHost` of a whole model in this process. It dies in the calls given, as (method, number of that call)."""

    def __init__(self, source: Path, deaths: set[tuple[str, int]]) -> None:
        self.source, self.deaths = source, deaths
        self.calls = Counter[str]()
        self.starts = 0

    def start(self) -> None:
        self.starts += 1
        self.rank: OwnLearner | None = OwnLearner(load_model(self.source), self.source)

    def call(self, method: str, *arguments: Any, **named: Any) -> list[Any]:
        self.calls[method] += 1
        if (method, self.calls[method]) in self.deaths:
            self.rank = None
        if self.rank is None:
            raise LearnerLost("a rank of the learner is gone: told to")
        return [getattr(self.rank, method)(*arguments, **named)]

    def close(self) -> None:
        self.rank = None


def start_with(run: TinyRun, patch: pytest.MonkeyPatch, deaths: set[tuple[str, int]]) -> OneRank:
    hosts: list[OneRank] = []

    def open_learner(recipe: Any, model: Any, source: Path, out: Path) -> RemoteLearner:
        hosts.append(OneRank(source, deaths))
        return RemoteLearner(hosts[0], OwnCopy(hosts[0], model, exchange_file(out, "ranks")))

    patch.setattr(pipeline, "open_learner", open_learner)
    run.outcome = run.start()  # type: ignore[attr-defined]
    return hosts[0]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("ranks")


@pytest.fixture(scope="module")
def plain(folder: Path) -> TinyRun:
    with pytest.MonkeyPatch.context() as patch:
        run = TinyRun(folder / "plain", patch, stages=ALL_STAGES)
        assert run.start() is Outcome.FINISHED
    return run


@pytest.mark.parametrize(
    ("deaths", "said"),
    [
        (set(), []),
        ({("imitate", 5)}, ["the learner goes on from stage-01-sft-step-000004, then the step it was in"]),
        (
            {("learn", 3)},
            [
                "the learner goes on from stage-01-sft-step-000012, then steps 1 to 2 of the stage again, "
                "then the step it was in"
            ],
        ),
        (
            {("save", 15)},  # after twelve of SFT and two of RL, that of the last stage
            [
                "the learner goes on from stage-02-rl-step-000005, then steps 1 to 2 of the stage again, "
                "then the step it was in"
            ],
        ),
        ({("write_weights", 6)}, ["a rank of the learner is gone: told to"]),
    ],
    ids=["none", "sft", "between-checkpoints", "saving", "telling-the-engines"],
)
def test_a_rank_that_dies_changes_no_bit(
    deaths: set[tuple[str, int]], said: list[str], plain: TinyRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = TinyRun(tmp_path / "run", monkeypatch, model=plain.recipe.model, stages=ALL_STAGES)
    host = start_with(run, monkeypatch, deaths)
    assert run.outcome is Outcome.FINISHED  # type: ignore[attr-defined]
    assert host.starts == 1 + len(deaths)
    assert_equal(plain, run)
    warnings = [p.text for p in run.payloads("log") if p.level is LogLevel.WARNING]
    assert all(text in warnings for text in said) and bool(warnings) == bool(said)


def test_a_rank_that_dies_before_anything_was_trained_is_started_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In an evaluation, whose checkpoint goes through the ranks where they are on GPUs."""
    real = OwnCopy.offer

    def offer(self: OwnCopy, folder: Path | None) -> None:
        if folder is not None:
            self._host.call("load", folder)
        real(self, folder)

    monkeypatch.setattr(OwnCopy, "offer", offer)
    evaluate = STAGES[4] | {"checkpoints": ["base"], "k": 1, "sampling": SAMPLING}
    run = TinyRun(tmp_path / "run", monkeypatch, stages=[STAGES[0], evaluate])
    host = start_with(run, monkeypatch, {("load", 1)})
    assert run.outcome is Outcome.FINISHED and host.starts == 2  # type: ignore[attr-defined]
    warnings = [p.text for p in run.payloads("log") if p.level is LogLevel.WARNING]
    assert warnings == ["a rank of the learner is gone: told to", "the learner goes on from tiny"]


def test_work_that_kills_every_rank_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = TinyRun(tmp_path / "run", monkeypatch, stages=ALL_STAGES)
    host = start_with(run, monkeypatch, {("learn", number) for number in range(1, 20)})
    assert run.outcome is Outcome.FAILED and host.starts == MAX_LOSSES  # type: ignore[attr-defined]
    (ended,) = run.payloads("run_ended")
    assert f"ranks of the learner died {MAX_LOSSES} times in the same step" in ended.reason


# With Ray, placement group, gloo and shards: two processes.


@pytest.fixture
def hosts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[LearnerHost]]:
    """Those that a run makes."""
    made: list[LearnerHost] = []
    real = LearnerHost.start

    def start(self: LearnerHost) -> None:
        real(self)
        made.append(self)

    monkeypatch.setattr(LearnerHost, "start", start)
    yield made


def metrics(run: TinyRun) -> list[tuple[int, int, dict[str, float]]]:
    newest = {(p.stage, p.step): p.values for p in run.payloads("metrics")}
    return [(*place, values) for place, values in newest.items()]


def assert_close(one: TinyRun, other: TinyRun) -> None:
    """Every metric but readings of the clock to 1e-5: the sums of two ranks are rounded otherwise."""
    timed = ("time/", "engine/")
    for (*place, expected), (*found_place, found) in zip(metrics(one), metrics(other), strict=True):
        assert place == found_place and expected.keys() == found.keys()
        apart = {n: (v, found[n]) for n, v in expected.items() if not n.startswith(timed) and not same(v, found[n])}
        assert not apart, f"{place}: {apart}"


def same(one: float, other: float) -> bool:
    return isclose(one, other, rel_tol=1e-5, abs_tol=1e-5)


@pytest.mark.integration
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_two_ranks_in_actors_make_the_same_run_and_survive_a_death(
    plain: TinyRun, folder: Path, monkeypatch: pytest.MonkeyPatch, hosts: list[LearnerHost]
) -> None:
    """A rank is killed before step 5, whose last checkpoint is of step 3; the run stops in the next stage and is
    resumed by a learner of one process."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    run = TinyRun(folder / "two", monkeypatch, stages=ALL_STAGES, ranks=2)
    real, killed = rl._learn, []

    def learn(context: Any, index: int, *args: Any, stage_step: int) -> Any:
        if (index, stage_step) == (2, 5) and not killed:
            killed.append(hosts[-1].places()[1].pid)
            os.kill(killed[0], signal.SIGKILL)
        if index == 3 and run.reporter is not None:
            run.reporter.request_stop()
        return real(context, index, *args, stage_step=stage_step)

    monkeypatch.setattr(rl, "_learn", learn)
    assert run.start() is Outcome.CANCELLED
    assert len(hosts) == 2 and killed
    warnings = [p.text for p in run.payloads("log") if p.level is LogLevel.WARNING]
    assert warnings[0].startswith("a rank of the learner is gone: ")
    assert warnings[1] == (
        "the learner goes on from stage-02-rl-step-000003, then steps 4 to 4 of the stage again, "
        "then the step it was in"
    )
    newest = max((run.out / "checkpoints").glob("stage-*"))
    assert (newest / "optimizer").is_dir()

    monkeypatch.setattr(rl, "_learn", real)
    run.recipe = run.recipe.model_copy(update={"ranks": 1})
    assert run.start() is Outcome.FINISHED
    assert len(hosts) == 2
    assert_close(plain, run)
