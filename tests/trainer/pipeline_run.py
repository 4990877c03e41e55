"""Runs whole pipelines in seconds: a random tiny model, a fake tool, grades that depend on the sampled ids.

`with_calls`: turns end and call the tool often, and the tool answers after a random number of decode steps, so
that the engine's batches are never the same twice.
"""

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from random import SystemRandom
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch

from contracts.events import Event, Outcome, RunStarted
from contracts.metrics import TIME_METRICS
from contracts.recipe import Recipe
from contracts.scoring import Grade, Graded
from contracts.trajectory import TIME_FIELDS, ToolCallRow, ToolStatus
from tests.trainer.tiny import save_tiny
from trainer.pipeline import Parts, run_pipeline
from trainer.policy.checkpoint import CheckpointStore
from trainer.reporter import Reporter
from trainer.rollout.agent import RolloutRequest, Rollouts, ToolResponse
from trainer.rollout.chat import Chat
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
    "mini_batch": 4,
    "evaluate_every": 2,
    "evaluate_problems": 2,
    "sampling": SAMPLING,
}
STAGES: list[dict[str, Any]] = [
    {"kind": "curate", "name": "curate", "count": 40, "held_out": 4},
    {"kind": "sft", "name": "sft", "steps": 2, "batch_size": 2},
    RL,
    RL | {"name": "hard", "steps": 2, "hard_subset": 2, "checkpoint_every": 2, "warmup_steps": 2},
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


class UnsteadyTool(FakeTool):
    """Answers after up to 20 decode steps; what it answers depends on the call and its seed alone."""

    async def respond(
        self, call: ParsedCall, call_id: str, seed: int, earlier: Sequence[ToolCallRow] = ()
    ) -> ToolResponse:
        for _ in range(SystemRandom().randrange(20)):
            await asyncio.sleep(0)
        return ToolResponse(ToolStatus.OK if seed % 3 else ToolStatus.ERROR, str(seed % 10))


def call_by_parity(text: str) -> ParsedCall | None:
    """Every second turn is a call: a random model writes none that parses."""
    if sum(map(ord, text)) % 2:
        return None
    return ParsedCall(0, len(text), "python_code_with_standard_io", text, "", ToolStatus.OK, "")


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

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch, *, with_calls: bool = False, **changes: Any) -> None:
        patch.setattr("trainer.sampler.collect", collect_and_grade_by_ids)
        if with_calls:
            patch.setattr("trainer.rollout.agent.parse_tool_call", call_by_parity)
        self.with_calls = with_calls
        self.out = folder / "out"
        tiny = folder.parent / "tiny"
        model = changes.pop("model", None) or (tiny if tiny.exists() else save_tiny(tiny))
        self.recipe = make_recipe(model, **changes)
        self.reporter: Reporter | None = None

    def start(self) -> Outcome:
        torch.set_num_threads(1)  # as a run does: two sum in another order
        self.reporter = Reporter(self.out, "r", heartbeat_s=60)
        places = Places(self.out, None, self.out)
        try:
            with asyncio.Runner() as runner:
                parts = Parts(self._make_tool, FakeGrader())
                return run_pipeline(self.recipe, places, self.reporter, parts=parts, runner=runner)
        finally:
            self.reporter.close()

    def _make_tool(self, chat: Chat) -> FakeTool:
        if not self.with_calls:
            return FakeTool()
        chat.stop_ids = tuple(range(0, 267, 12))
        return UnsteadyTool()

    def events(self) -> list[Event]:
        lines = (self.out / "events.jsonl").read_text().splitlines()
        return [Event.model_validate_json(line) for line in lines]

    def payloads(self, kind: str) -> list[Any]:
        return [event.payload for event in self.events() if event.payload.kind == kind]

    def figures(self) -> dict[str, Any]:
        """Everything reported that must not depend on when or how often the run was started, by its place.

        What a later attempt supersedes is left out; what is left is reported once.
        """
        found: dict[str, Any] = {}
        for payload in standing(self.events()):
            match payload.kind:
                case "metrics":
                    reported = {f"{n}": v for n, v in payload.values.items() if n not in TIME_METRICS}
                case "trajectories":
                    reported = {
                        f"{row.prompt_id}/{row.sample}/{row.shard}": without_times(row.model_dump(mode="json"))
                        for row in payload.rows
                    }
                case "evaluation_finished" | "funnel" | "token_report":
                    reported = {payload.kind: payload.model_dump(mode="json")}
                case "checkpoint_written":  # told again where a kill left unsaid what became of it
                    found["/".join(map(str, place_of(payload)))] = [payload.path, payload.label]
                    continue
                case _:
                    continue
            for name, value in reported.items():
                key = "/".join(map(str, (*place_of(payload), name)))
                assert key not in found, f"{key} is reported twice"
                found[key] = value
        return found

    def prompts(self) -> list[tuple[int, int, list[str]]]:
        """(stage, step, ids of the prompts in their order) of each shard of training rollouts, from the files."""
        rows = [
            json.loads(row)
            for shard in sorted(self.out.glob("trajectories/*/step-*.parquet"))
            for row in pq.read_table(shard)["index"].to_pylist()
        ]
        steps = dict.fromkeys((row["stage"], row["step"]) for row in rows)
        return [
            (*key, list(dict.fromkeys(r["prompt_id"] for r in rows if (r["stage"], r["step"]) == key))) for key in steps
        ]

    def shards(self) -> dict[str, list[Any]]:
        """Every column of every shard but clock readings."""
        found = {}
        for path in sorted(self.out.glob("trajectories/*/*.parquet")):
            rows = pq.read_table(path).to_pylist()
            decoded = [row | {n: json.loads(row[n]) for n in ("index", "turns", "tool_calls")} for row in rows]
            found[str(path.relative_to(self.out))] = without_times(decoded)
        return found

    def problem_files(self) -> dict[str, bytes]:
        return {str(p.relative_to(self.out)): p.read_bytes() for p in sorted(self.out.glob("problems/*/*"))}

    def weights(self) -> dict[str, dict[str, bytes]]:
        """Bytes of each file of each checkpoint that is left: weights, optimizer, counters."""
        return {
            c.path.name: {p.name: p.read_bytes() for p in sorted(c.path.iterdir())}
            for c in CheckpointStore(self.out).find_all()
        }

    def tensors(self) -> dict[str, tuple[bytes, bytes]]:
        """Bytes of weights and optimizer alone."""
        return {k: (v["model.safetensors"], v["optimizer.safetensors"]) for k, v in self.weights().items()}

    def everything(self) -> dict[str, Any]:
        return {
            "weights": self.weights(),
            "figures": self.figures(),
            "prompts": self.prompts(),
            "shards": self.shards(),
            "problems": self.problem_files(),
        }


def place_of(payload: Any) -> tuple[int, int]:
    """(stage, step) of what an event reports."""
    where = payload.rows[0] if payload.kind == "trajectories" else payload
    return where.stage, getattr(where, "step", 0)


def standing(events: Sequence[Event]) -> list[Any]:
    """The payloads that report something of a stage, without what a later attempt supersedes."""
    left: list[Any] = []
    for event in events:
        if isinstance(event.payload, RunStarted) and (at := event.payload.resumes_at):
            left = [p for p in left if place_of(p) < (at.stage, at.step)]
        if event.payload.kind == "trajectories" or hasattr(event.payload, "stage"):
            left.append(event.payload)
    return left


def without_times(value: Any) -> Any:
    """JSON without the fields of `TIME_FIELDS`."""
    if isinstance(value, dict):
        return {k: without_times(v) for k, v in value.items() if k not in TIME_FIELDS}
    return [without_times(v) for v in value] if isinstance(value, list) else value


def assert_equal(one: TinyRun, other: TinyRun) -> None:
    """Byte for byte but for clock readings; the message names the first place that differs."""
    left, right = one.everything(), other.everything()
    for part, value in left.items():
        if difference := first_difference(value, right[part], part):
            pytest.fail(difference)


def first_difference(one: Any, other: Any, at: str) -> str | None:
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() != other.keys():
            return f"{at}: only in one of them: {sorted(one.keys() ^ other.keys())[:5]}"
        return next(filter(None, (first_difference(one[k], other[k], f"{at}/{k}") for k in one)), None)
    if isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        pairs = enumerate(zip(one, other, strict=True))
        return next(filter(None, (first_difference(a, b, f"{at}/{i}") for i, (a, b) in pairs)), None)
    return None if one == other else f"{at}: {str(one)[:200]} != {str(other)[:200]}"
