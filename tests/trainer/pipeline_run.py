"""Runs whole pipelines in seconds: a random tiny model, a fake tool, grades that depend on the sampled ids."""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from contracts.events import Event, Outcome
from contracts.recipe import Recipe
from contracts.scoring import Grade, Graded
from contracts.trajectory import ToolCallRow, ToolStatus
from tests.trainer.tiny import save_tiny
from trainer.pipeline import Parts, run_pipeline
from trainer.policy.checkpoint import CheckpointStore
from trainer.reporter import Reporter
from trainer.rollout.agent import RolloutRequest, Rollouts, ToolResponse
from trainer.rollout.collect import Watch, collect
from trainer.rollout.tool_calls import ParsedCall
from trainer.rollout.trajectory import Trajectory
from trainer.store import Places

SAMPLING = {"max_response_tokens": 16, "max_turns": 2, "temperature": 1.0}
RL = {
    "kind": "rl",
    "name": "rl",
    "steps": 3,
    "prompts_per_step": 2,
    "oversample": 6,
    "group_size": 3,
    "learning_rate": 1e-3,
    "epochs": 2,
    "mini_batch": 4,
    "evaluate_every": 2,
    "evaluate_problems": 2,
    "sampling": SAMPLING,
}
STAGES: list[dict[str, Any]] = [
    {"kind": "curate", "name": "curate", "count": 40, "held_out": 4},
    {"kind": "sft", "name": "sft", "steps": 2, "batch_size": 2},
    RL,
    RL | {"name": "hard", "steps": 2, "hard_subset": {"samples": 2}, "checkpoint_every": 2, "warmup_steps": 2},
    {
        "kind": "evaluate",
        "name": "evaluate",
        "board": "Test",
        "checkpoints": ["base", "sft", "latest"],
        "k": 2,
        "sampling": SAMPLING | {"temperature": 0.6},
    },
]


class FakeTool:
    """Answers every call with 2."""

    async def respond(
        self, call: ParsedCall, call_id: str, seed: int, earlier: Sequence[ToolCallRow] = ()
    ) -> ToolResponse:
        return ToolResponse(ToolStatus.OK, "2")


class FakeGrader:
    """Never right: the tests grade by the sampled ids instead."""

    async def grade(self, answer: str | None, reference: str) -> Grade:
        return Graded(reward=0.0, answer=answer)


async def collect_and_grade_by_ids(
    requests: Sequence[RolloutRequest], rollouts: Rollouts, watch: Watch | None = None
) -> list[Trajectory]:
    """A random model is never right, so half of its rollouts are called right."""
    trajectories = await collect(requests, rollouts, watch)
    for trajectory in trajectories:
        if trajectory.grade is not None and trajectory.grade.kind == "graded":
            trajectory.grade = Graded(reward=float(sum(trajectory.response_ids) % 2))
    return trajectories


def make_recipe(model: Path, **changes: Any) -> Recipe:
    return Recipe.model_validate({"name": "test", "model": str(model), "stages": STAGES} | changes)


class TinyRun:
    """One run in one folder, that can be started again and again."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, **changes: Any) -> None:
        patch.setattr("trainer.sampler.collect", collect_and_grade_by_ids)
        self.out = folder / "out"
        model = folder.parent / "tiny"
        self.recipe = make_recipe(model if model.exists() else save_tiny(model), **changes)
        self.reporter: Reporter | None = None

    def start(self) -> Outcome:
        self.reporter = Reporter(self.out, "r", heartbeat_s=60)
        places = Places(self.out, None, self.out)
        try:
            with asyncio.Runner() as runner:
                parts = Parts(lambda chat: FakeTool(), FakeGrader())
                return run_pipeline(self.recipe, places, self.reporter, parts=parts, runner=runner)
        finally:
            self.reporter.close()

    def events(self) -> list[Event]:
        lines = (self.out / "events.jsonl").read_text().splitlines()
        return [Event.model_validate_json(line) for line in lines]

    def payloads(self, kind: str) -> list[Any]:
        return [event.payload for event in self.events() if event.payload.kind == kind]

    def figures(self) -> dict[str, Any]:
        """Everything that must not depend on when or how often the run was started: the last word of each."""
        metrics = {}
        for payload in self.payloads("metrics"):
            for name, value in payload.values.items():
                if not name.startswith("time/"):
                    metrics[f"{payload.stage}/{payload.step}/{name}"] = value
        rows = {}
        for payload in self.payloads("trajectories"):
            for row in payload.rows:
                key = f"{row.stage}/{row.step}/{row.prompt_id}/{row.sample}"
                rows[key] = row.model_dump(mode="json") | {"duration_s": 0}
        boards = {f"{p.stage}/{p.step}": p.model_dump(mode="json") for p in self.payloads("evaluation_finished")}
        return {"metrics": metrics, "rows": rows, "boards": boards}

    def weights(self) -> dict[str, tuple[bytes, bytes]]:
        """Bytes of weights and optimizer of each checkpoint that is left."""
        return {
            c.path.name: (
                (c.path / "model.safetensors").read_bytes(),
                (c.path / "optimizer.safetensors").read_bytes(),
            )
            for c in CheckpointStore(self.out).find_all()
        }


def dump(figures: dict[str, Any]) -> str:
    return json.dumps(figures, sort_keys=True, indent=0)
