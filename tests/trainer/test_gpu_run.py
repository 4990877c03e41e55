"""A run laid out for GPUs, on Ray's logical ones: placement, ranks, sender and pool are the real ones, only the devices
are CPUs, NCCL is gloo and the engines are stand-ins that receive by it."""

import asyncio
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from contracts.events import LogLevel, Outcome
from tests.trainer.gloo_parts import DEATH_NOTE, GLOO, ReceivingActor
from tests.trainer.pipeline_run import RL, STAGES, TinyRun
from trainer import open_gpus, rl
from trainer.cluster import PlacesUnavailable, RayUse
from trainer.context import RunContext
from trainer.policy.model import load_model
from trainer.ranks import LearnerHost
from trainer.rollout import nccl_weights
from trainer.rollout.weights import SHARED_MEMORY, digest

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
GPUS = 4
RANK_DIES, ENGINE_DIES, BROADCAST_BREAKS, LAST = 2, 3, 4, 5  # steps
STEPS = RL | {
    "steps": LAST,
    "evaluate_every": 0,
    "sampling": {"max_response_tokens": 24, "max_turns": 1, "temperature": 1.0},
}
EVALUATE = STAGES[4] | {"checkpoints": ["base", "latest"], "k": 1, "sampling": STEPS["sampling"]}


@pytest.fixture
def gpus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A Ray of four GPUs, which are not there."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    import ray

    ray.init(num_cpus=2, num_gpus=GPUS, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
    monkeypatch.setattr("trainer.cluster.EngineActor", ReceivingActor)
    monkeypatch.setattr("trainer.cluster.ENGINE_PYTHON", Path(sys.executable))
    monkeypatch.setattr(open_gpus, "ON_GPU", GLOO)
    monkeypatch.setattr(nccl_weights, "GRACE_S", 5.0)
    yield ray
    ray.shutdown()


class Watch:
    """Looks at engines and ranks before each step's learning, and kills one now and then."""

    def __init__(self, model: Path) -> None:
        self.model = model
        self.hosts: list[LearnerHost] = []
        self.gpus: list[str] = []
        self.equal: dict[int, bool] = {}

    def look(self, context: RunContext, step: int) -> None:
        pool: Any = context.sampler.engine
        context.sampler.run(asyncio.wait_for(self.settle(pool), 120))
        engines = [slot.engine for slot in pool._slots]
        facts = [context.sampler.run(engine.facts()) for engine in engines]
        places = self.hosts[-1].places()
        self.gpus = [*(place.gpus for place in places), *(fact.gpus for fact in facts)]
        if step > 1:
            self.equal[step] = all(
                context.sampler.run(engine._call("digests")) == self.expect(context) for engine in engines
            )
        if step == RANK_DIES:
            os.kill(places[1].pid, signal.SIGKILL)
        if step == ENGINE_DIES:
            os.kill(facts[0].pid, signal.SIGKILL)
        if step == BROADCAST_BREAKS:
            (self.model / DEATH_NOTE).touch()

    async def settle(self, pool: Any) -> None:
        """Until an engine that was lost is there again and has the newest weights."""
        while any(slot.holds is not pool._snapshot for slot in pool._slots):
            await pool._changed.wait()

    def expect(self, context: RunContext) -> dict[str, str]:
        """The policy in bfloat16: a checkpoint is written after each step."""
        newest = context.checkpoints.latest()
        assert newest is not None
        return {name: digest(p.detach().bfloat16()) for name, p in load_model(newest.path).named_parameters()}


def test_a_run_on_four_gpus_survives_a_rank_an_engine_and_a_broken_broadcast(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gpus: Any
) -> None:
    stages = [STAGES[0], STAGES[1], STEPS, EVALUATE]
    run = TinyRun(tmp_path / "run", monkeypatch, stages=stages, gpus=GPUS, ranks=2, engines=2)
    watch = Watch(Path(run.recipe.model))
    real_start, real_learn = LearnerHost.start, rl._learn

    def start(self: LearnerHost) -> None:
        real_start(self)
        watch.hosts.append(self)

    def learn(context: Any, *args: Any, stage_step: int) -> Any:
        watch.look(context, stage_step)
        return real_learn(context, *args, stage_step=stage_step)

    monkeypatch.setattr(LearnerHost, "start", start)
    monkeypatch.setattr(rl, "_learn", learn)
    assert run.start() is Outcome.FINISHED, run.payloads("run_ended")[0].reason
    assert sorted(watch.gpus) == ["0", "1", "2", "3"]
    assert watch.equal == dict.fromkeys(range(2, LAST + 1), True)
    assert len(watch.hosts) == 2  # all ranks anew once
    warnings = [p.text for p in run.payloads("log") if p.level is LogLevel.WARNING]
    assert any(text.startswith("a rank of the learner is gone") for text in warnings), warnings
    assert sum("is gone with" in text for text in warnings) >= 2, warnings
    assert [p.label for p in run.payloads("evaluation_finished")] == ["base model", "after rl"]
    assert not list(SHARED_MEMORY.glob("astrolabe-*offer*"))


def test_a_recipe_for_more_gpus_than_there_are_is_refused_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This machine has none."""
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    run = TinyRun(tmp_path / "run", monkeypatch, gpus=3, ranks=1, engines=2)
    assert run.start() is Outcome.FAILED
    assert (
        "PlacesUnavailable: the recipe is laid out for 3 GPUs and Ray has 0 here" in run.payloads("run_ended")[0].reason
    )
    import ray

    assert not ray.is_initialized()


def test_the_ray_of_this_process_ends_with_its_last_user(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    first, second = RayUse(), RayUse()
    first.end()
    first.end()
    assert second.ray.is_initialized()
    with pytest.raises(PlacesUnavailable, match="laid out for 1 GPUs and Ray has 0"):
        second.require_gpus(1)
    second.end()
    assert not second.ray.is_initialized()
