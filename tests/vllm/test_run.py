"""A whole run of recipes/smoke.yaml on two vLLM engines, which are killed three times while they sample."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from contracts.events import Event, LogLevel
from contracts.trajectory import TrajectoryRow
from tests.sandbox.conftest import RunningNode, require_runsc, start_node, stop_node
from trainer.store import iter_rows

STAGE, STEPS, PROMPTS, SAMPLES = 2, 4, 4, 8
KILL_AT = (1, 2, 4)  # steps; from a few rollouts on
MINUTES = 12
SMALL_GAP = 1e-4  # nats; what the learner makes of the engine's numbers, all tokens of a step


@pytest.fixture(scope="module")
def sandbox(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    require_runsc()
    node = start_node(tmp_path_factory.mktemp("node"))
    yield node
    stop_node(node)


class Run:
    """A trainer of its own process, seen through its journal."""

    def __init__(self, out: Path, sandbox: RunningNode, *changes: str) -> None:
        self.out = out
        recipe = ["run", "recipes/smoke.yaml", "--set", "engines=2", *changes]
        environment = {n: v for n, v in os.environ.items() if not n.startswith("RAY_")}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "trainer", *recipe, "--out", str(out)],
            env=environment | {"SANDBOX_URLS": sandbox.url},
            stderr=subprocess.PIPE,
            text=True,
        )
        self.give_up = time.monotonic() + 60 * MINUTES

    def payloads(self, kind: str) -> list[Any]:
        journal = self.out / "events.jsonl"
        lines = journal.read_text().splitlines() if journal.exists() else []
        found = [json.loads(line) for line in lines if f'"{kind}"' in line and line.endswith("}")]
        return [Event.model_validate(event).payload for event in found if event["payload"]["kind"] == kind]

    def wait_for_rollouts(self, step: int) -> None:
        """Until the first rollouts of the step have ended and others still run."""
        while self.process.poll() is None and time.monotonic() < self.give_up:
            progress = [p for p in self.payloads("stage_progress") if (p.stage, p.step) == (STAGE, step)]
            if any(p.done for p in progress):
                return
            time.sleep(0.05)
        pytest.fail(f"step {step} never began: {self.last_words()}")

    def engines(self) -> list[psutil.Process]:
        """Those that are up: Ray names an actor that is still being made by its __init__."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return [p for p in below if _title(p).startswith("ray::EngineActor") and "__init__" not in _title(p)]

    def last_words(self) -> str:
        self.process.kill()
        return (self.process.communicate()[1] or "")[-3000:]


def _title(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


def test_no_trajectory_is_lost_or_doubled_when_engines_are_killed(tmp_path: Path, sandbox: RunningNode) -> None:
    run = Run(tmp_path / "run", sandbox)
    killed: list[int] = []
    for step in KILL_AT:
        run.wait_for_rollouts(step)
        engine = run.engines()[0]
        os.kill(engine.pid, signal.SIGKILL)
        killed.append(engine.pid)
    try:
        _, said = run.process.communicate(timeout=max(1.0, run.give_up - time.monotonic()))
    except subprocess.TimeoutExpired:
        pytest.fail(f"the run did not end: {run.last_words()}")
    assert run.process.returncode == 0, said[-3000:]

    warnings = [p.text for p in run.payloads("log") if p.level is LogLevel.WARNING]
    assert sum("is gone with" in text for text in warnings) == len(set(killed)) == len(KILL_AT)
    for step in range(1, STEPS + 1):
        rows = list(iter_rows(run.out / f"trajectories/stage-{STAGE:02d}/step-{step:05d}.parquet"))
        _check_step(rows)
    gaps = [p.values["policy/logprob_gap_max"] for p in run.payloads("metrics") if "policy/logprob_gap_max" in p.values]
    assert gaps and max(gaps) < SMALL_GAP
    assert [p.label for p in run.payloads("evaluation_finished")] == ["after sft", "after rl"]


def _check_step(rows: list[TrajectoryRow]) -> None:
    """Each rollout of the step is there once, whole, graded, and sampled by one policy version."""
    counts = Counter((row.index.prompt_id, row.index.sample) for row in rows)
    assert len(rows) == len(counts) == PROMPTS * SAMPLES
    assert {row.index.grade.kind for row in rows} == {"graded"}
    assert len({row.index.policy_version for row in rows}) == 1
    for row in rows:
        lengths = map(len, (row.response_ids, row.response_mask, row.sampling_logprobs, row.entropies))
        assert len(set(lengths)) == 1 and row.index.policy_tokens > 0
        assert [turn.turn for turn in row.turns] == list(range(len(row.turns)))


def test_a_run_that_samples_a_step_ahead(tmp_path: Path, sandbox: RunningNode) -> None:
    """Rollouts of the next step go on while the weights of both engines change; every token says whose it is."""
    run = Run(tmp_path / "run", sandbox, "--set", "stages.2.staleness=1", "--set", "stages.2.evaluate_every=0")
    try:
        _, said = run.process.communicate(timeout=60 * MINUTES)
    except subprocess.TimeoutExpired:
        pytest.fail(f"the run did not end: {run.last_words()}")
    assert run.process.returncode == 0, said[-3000:]
    metrics = [p.values for p in run.payloads("metrics") if "policy/staleness_max" in p.values]
    assert [m["policy/staleness_max"] for m in metrics] == [0.0, 1.0, 1.0, 1.0]
    for step, values in enumerate(metrics, start=1):
        rows = list(iter_rows(run.out / f"trajectories/stage-{STAGE:02d}/step-{step:05d}.parquet"))
        assert len({(row.index.prompt_id, row.index.sample) for row in rows}) == len(rows) == PROMPTS * SAMPLES
        newest = max(span.version for row in rows for span in row.version_spans)
        oldest = min(row.version_spans[0].version for row in rows)
        assert newest - oldest <= values["policy/staleness_max"]
        assert (values["policy/logprob_gap_max"] < SMALL_GAP) == (step == 1)
