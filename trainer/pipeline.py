"""A run from its recipe: the stages in order, resumed where the newest checkpoint says, always ended by one event."""

import asyncio
import json
import platform
import subprocess
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch.optim import AdamW
from transformers import Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from contracts.events import CheckpointWritten, LogLevel, Outcome, RunEnded, RunStarted, StageFinished, StageStarted
from contracts.recipe import AnyStage, CurateStage, EvaluateStage, Recipe, RlStage, SftStage, upgrade
from trainer.analysis.tokens import MarkSettings, TokenAnalysis, analyze
from trainer.curate import run_curate
from trainer.evaluate import run_evaluate
from trainer.policy.checkpoint import (
    Checkpoint,
    CheckpointStore,
    Counters,
    has_optimizer,
    load_optimizer,
    verify_checkpoint,
)
from trainer.policy.model import load_model, load_weights
from trainer.policy.optimizer import make_optimizer
from trainer.reporter import Reporter
from trainer.rl import run_rl
from trainer.rollout.agent import Grader, Tool
from trainer.rollout.chat import Chat, load_tokenizer
from trainer.rollout.rows import Credit, RowPlace, build_row
from trainer.rollout.torch_engine import TorchEngine
from trainer.rollout.trajectory import Trajectory
from trainer.sampler import Sampler, Stopped
from trainer.sft import run_sft
from trainer.store import Places, clean_text, write_atomically, write_shard

RECIPE_FILE = "resolved_recipe.json"
MAX_BATCH = 256
MAX_PROMPT_TOKENS = 512  # room the engine's context leaves for the prompt, beside the longest response


class RunRefused(Exception):
    """The run cannot start as asked; the message is for the person who asked."""


@dataclass(slots=True)
class Policy:
    """The model that is trained. `source` is the folder whose tokenizer goes into checkpoints."""

    model: Qwen3ForCausalLM
    optimizer: AdamW
    source: Path
    version: int = 0


@dataclass(slots=True)
class RunContext:
    """What every stage works with."""

    recipe: Recipe
    places: Places
    reporter: Reporter
    sampler: Sampler
    policy: Policy
    checkpoints: CheckpointStore
    resumed: Checkpoint | None = None
    saved_at: tuple[int, int] = field(default=(-1, -1))

    @property
    def out(self) -> Path:
        return self.places.out

    def write(self, path: str, data: bytes) -> None:
        """A small file under the run's artifact folder, atomically."""
        write_atomically(self.out / path, data)

    def curated_before(self, index: int) -> tuple[int, CurateStage]:
        """The newest curate stage before a stage; the recipe's validator has seen to it that there is one."""
        for i in range(index - 1, -1, -1):
            stage = self.recipe.stages[i]
            if isinstance(stage, CurateStage):
                return i, stage
        raise RunRefused(f"no curate stage before stage {index}")

    def first_step(self, index: int) -> int:
        """The run's RL step with which an RL stage begins; steps count from 1 over all RL stages."""
        return 1 + sum(stage.steps for stage in self.recipe.stages[:index] if isinstance(stage, RlStage))

    def begin_training(self, index: int, stage: SftStage | RlStage, *, reset_optimizer: bool) -> int:
        """Steps of the stage that are done. A stage that begins gets a fresh optimizer if it asks for one."""
        self.sampler.engine.set_version(self.policy.version)
        if self.resumed is not None and self.resumed.counters.stage == index:
            return self.resumed.counters.stage_step
        if reset_optimizer:
            self.policy.optimizer = make_optimizer(self.policy.model)
        return 0

    def check_stop(self, index: int, stage: SftStage | RlStage, stage_step: int) -> None:
        """The safe point between two steps: raises Stopped when a stop was asked for."""
        if self.reporter.should_stop:
            self.save_checkpoint(index, stage, stage_step)
            raise Stopped

    def save_checkpoint(
        self, index: int, stage: SftStage | RlStage, stage_step: int, *, is_stage_end: bool = False
    ) -> None:
        """After `stage_step` steps of the stage. The journal is made durable first: it may never lag behind."""
        if self.saved_at == (index, stage_step) or stage_step == 0:
            return
        step = self.first_step(index) - 1 + (stage_step if isinstance(stage, RlStage) else 0)
        counters = Counters(
            stage=index,
            stage_name=stage.name,
            stage_step=stage_step,
            step=step,
            policy_version=self.policy.version,
            cursor=stage_step * (stage.prompts_per_step if isinstance(stage, RlStage) else stage.batch_size),
            is_stage_end=is_stage_end,
            recipe=self.recipe.model_dump(mode="json"),
        )
        self.reporter.sync()
        written = self.checkpoints.write(self.policy.model, self.policy.optimizer, counters, self.policy.source)
        self.saved_at = (index, stage_step)
        self.reporter.emit(
            CheckpointWritten(
                stage=index,
                step=step,
                path=str(written.checkpoint.path.relative_to(self.out)),
                label=f"after {stage.name}" if is_stage_end else f"{stage.name}, step {stage_step}",
                size_bytes=written.checkpoint.size_bytes,
                pruned=[str(path.relative_to(self.out)) for path in written.pruned],
            )
        )

    def restore_policy(self) -> Checkpoint | None:
        """The newest checkpoint's weights, optimizer and version; the base model's where there is none."""
        newest = self.checkpoints.latest()
        if newest is None:
            load_weights(self.policy.model, self.places.resolve(self.recipe.model))
            return None
        verify_checkpoint(newest.path)
        load_weights(self.policy.model, newest.path)
        self.policy.version = newest.counters.policy_version
        self.policy.optimizer = make_optimizer(self.policy.model)
        if has_optimizer(newest.path):
            load_optimizer(self.policy.model, self.policy.optimizer, newest.path)
        self.sampler.engine.set_version(self.policy.version)
        self.saved_at = (newest.counters.stage, newest.counters.stage_step)
        return newest

    def store_trajectories(
        self,
        trajectories: Sequence[Trajectory],
        credits: Sequence[Credit],
        shard: str,
        *,
        stage: tuple[int, str],
        step: int,
    ) -> list[TokenAnalysis]:
        """Write the shard, then tell of its rows; the token analysis of each trajectory comes back."""
        chat = self.sampler.chat
        marks = MarkSettings(self.recipe.forking_share, self.recipe.reflection_window)
        analyses = [analyze(t, chat.token_texts(t.response_ids), marks) for t in trajectories]
        place = RowPlace(self.reporter.run, self.reporter.attempt, stage[0], stage[1], step, shard)
        rows = [
            build_row(t, analysis, credit, place, number, chat)
            for number, (t, analysis, credit) in enumerate(zip(trajectories, analyses, credits, strict=True))
        ]
        write_shard(self.out / shard, rows)
        self.reporter.trajectories([row.index for row in rows])
        return analyses


@dataclass(frozen=True, slots=True)
class Parts:
    """What differs between a real run and a test."""

    make_tool: Callable[[Chat], Tool]
    grader: Grader


def run_pipeline(
    recipe: Recipe, places: Places, reporter: Reporter, *, parts: Parts, runner: asyncio.Runner
) -> Outcome:
    """All stages. Ends the run with one RunEnded whatever happens, and says how it ended."""
    outcome, reason, steps = Outcome.FAILED, "", 0
    try:
        context = _open_run(recipe, places, reporter, parts, runner)
        try:
            _run_stages(context)
        finally:
            runner.run(context.sampler.engine.close())
            newest = context.checkpoints.latest()
            steps = newest.counters.step if newest else 0
        outcome = Outcome.FINISHED
    except Stopped:
        outcome, reason = Outcome.CANCELLED, "stopped on request"
    except Exception as error:  # noqa: BLE001  the one place where a run's failure is recorded
        reason = f"{type(error).__name__}: {error}"
        reporter.log(LogLevel.ERROR, traceback.format_exc())
    reporter.end(RunEnded(outcome=outcome, reason=clean_text(reason)[:2000], steps=steps))
    return outcome


def check_recipe(recipe: Recipe, out: Path, *, resume: bool) -> None:
    """Write the resolved recipe of a new run; RunRefused for a folder in use, or a recipe that changed."""
    path = out / RECIPE_FILE
    resolved = recipe.model_dump(mode="json")
    if path.exists():
        if not resume:
            raise RunRefused(f"{out} already holds a run: add --resume to continue it, or choose another folder")
        if differences := list_differences(_stored_recipe(path), resolved):
            raise RunRefused(f"the recipe differs from the one {out} was started with: {'; '.join(differences[:10])}")
    write_atomically(path, json.dumps(resolved, indent=1).encode())


def _stored_recipe(path: Path) -> Any:
    """The recipe a run was started with, in today's fields where it still holds."""
    stored = json.loads(path.read_text())
    try:
        return Recipe.model_validate(upgrade(stored)).model_dump(mode="json")
    except (ValueError, AttributeError):
        return stored


def list_differences(old: Any, new: Any, at: str = "") -> list[str]:
    """'field: old -> new' for each leaf of two JSON values that differs."""
    if isinstance(old, dict) and isinstance(new, dict):
        keys = sorted(old.keys() | new.keys())
        return [d for k in keys for d in list_differences(old.get(k), new.get(k), f"{at}.{k}" if at else k)]
    if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        return [d for i, (a, b) in enumerate(zip(old, new, strict=True)) for d in list_differences(a, b, f"{at}.{i}")]
    return [] if old == new else [f"{at}: {json.dumps(old)} -> {json.dumps(new)}"]


def _open_run(recipe: Recipe, places: Places, reporter: Reporter, parts: Parts, runner: asyncio.Runner) -> RunContext:
    if recipe.gpus:
        raise RunRefused(
            f"the recipe is laid out for {recipe.gpus} GPUs and this trainer runs on CPUs only; "
            "`python -m trainer explain RECIPE` prints what the run would need, gpus: 0 runs it here"
        )
    source = places.resolve(recipe.model)
    model = load_model(source)
    longest = max(
        (s.sampling.max_response_tokens for s in recipe.stages if _samples(s)),
        default=1024,
    )
    engine = TorchEngine(model, max_batch=MAX_BATCH, max_context=longest + MAX_PROMPT_TOKENS)
    chat = Chat(load_tokenizer(source))
    sampler = Sampler(runner, engine, chat, tool=parts.make_tool(chat), grader=parts.grader)
    context = RunContext(
        recipe=recipe,
        places=places,
        reporter=reporter,
        sampler=sampler,
        policy=Policy(model, make_optimizer(model), source),
        checkpoints=CheckpointStore(places.out),
    )
    context.resumed = context.restore_policy() if context.checkpoints.latest() else None
    reporter.emit(
        RunStarted(
            stages=[stage.name for stage in recipe.stages],
            total_steps=recipe.total_rl_steps,
            resumed_from_step=context.resumed.counters.step if context.resumed else None,
            versions=_versions(),
            git_commit=_git_commit(),
        )
    )
    return context


def _samples(stage: AnyStage) -> TypeGuard[CurateStage | RlStage | EvaluateStage]:
    return not isinstance(stage, SftStage) and (stage.kind != "curate" or stage.parsed_checks.screening is not None)


def _run_stages(context: RunContext) -> None:
    for index, stage in enumerate(context.recipe.stages):
        if _is_finished(context, index):
            context.reporter.log(LogLevel.INFO, f"stage {stage.name} is finished already")
            continue
        if context.reporter.should_stop:
            raise Stopped
        started = time.monotonic()
        context.reporter.log(LogLevel.INFO, f"stage {stage.name} ({stage.kind}) begins")
        context.reporter.doing = stage.name
        context.reporter.emit(
            StageStarted(
                stage=index,
                name=stage.name,
                stage_kind=stage.kind,
                steps=stage.steps if isinstance(stage, (SftStage, RlStage)) else 0,
                first_step=context.first_step(index) if isinstance(stage, RlStage) else 0,
            )
        )
        _run_stage(context, index, stage)
        duration = time.monotonic() - started
        context.reporter.emit(StageFinished(stage=index, name=stage.name, duration_s=duration))
        context.reporter.sync()
        context.write(_done_file(index), json.dumps({"name": stage.name, "duration_s": duration}).encode())
        context.reporter.log(LogLevel.INFO, f"stage {stage.name} finished after {duration:.1f} s")


def _run_stage(context: RunContext, index: int, stage: AnyStage) -> None:
    match stage.kind:
        case "curate":
            run_curate(context, index, stage)
        case "sft":
            run_sft(context, index, stage)
        case "rl":
            run_rl(context, index, stage)
        case "evaluate":
            run_evaluate(context, index, stage)


def _done_file(index: int) -> str:
    return f"stages/stage-{index:02d}.json"


def _is_finished(context: RunContext, index: int) -> bool:
    return (context.out / _done_file(index)).exists()


def _versions() -> dict[str, str]:
    names = ("torch", "transformers", "numpy", "pyarrow", "math-verify")
    return {"python": platform.python_version()} | {name: version(name) for name in names}


def _git_commit() -> str:
    """The commit of the project's folder; '' outside a repository."""
    try:
        found = subprocess.run(
            ["git", "rev-parse", "HEAD"],
            cwd=Path(__file__).parent,
            capture_output=True,
            text=True,
            timeout=5,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()


def prepare_libraries(threads: int) -> None:
    """One thread by default: the sandbox and the engine's bookkeeping want the other core. No progress bars."""
    torch.set_num_threads(threads)
    disable_progress_bar()
