"""A run from its recipe: the stages in order, resumed where the newest checkpoint says, always ended by one event."""

import asyncio
import json
import subprocess
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, TypeGuard

import torch
from torch.optim import AdamW
from transformers import Qwen3ForCausalLM
from transformers.utils.logging import disable_progress_bar

from contracts.events import (
    CheckpointWritten,
    LogLevel,
    Outcome,
    ResumePoint,
    RunEnded,
    RunStarted,
    StageFinished,
    StageStarted,
)
from contracts.recipe import AnyStage, CurateStage, EvaluateStage, Recipe, RlStage, SftStage, upgrade
from contracts.text import clean_text
from trainer.analysis.tokens import MarkSettings, TokenAnalysis, analyze
from trainer.curate import held_out_file, run_curate, train_file
from trainer.evaluate import run_evaluate
from trainer.hard_subset import hard_file
from trainer.inputs import check_inputs, list_versions, note_curated
from trainer.journal import read_payloads
from trainer.policy.checkpoint import Checkpoint, CheckpointStore, Counters, Recovery, has_optimizer, load_optimizer
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
from trainer.seeds import derive_seed, seed_generators
from trainer.sft import run_sft
from trainer.store import Places, write_atomically, write_shard

RECIPE_FILE = "resolved_recipe.json"
VERSIONS_FILE = "versions.json"
MAX_BATCH = 256
MAX_DIFFERENCES = 10
_ABSENT = object()
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

    def begin_step(self, index: int, stage: SftStage | RlStage, stage_step: int) -> None:
        """The safe point before a step of the stage: raises Stopped when a stop was asked for.

        Nothing of ours draws from the libraries' global generators; what does begins each step alike.
        """
        if self.reporter.should_stop:
            self.save_checkpoint(index, stage, stage_step - 1)
            raise Stopped
        seed_generators(derive_seed(self.recipe.seed, "libraries", index, stage_step))

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
        self._tell_checkpoint(written.checkpoint, [str(path.relative_to(self.out)) for path in written.pruned])

    def _tell_checkpoint(self, checkpoint: Checkpoint, pruned: Sequence[str]) -> None:
        counters = checkpoint.counters
        name, step = counters.stage_name, counters.stage_step
        self.reporter.emit(
            CheckpointWritten(
                stage=counters.stage,
                step=counters.step,
                path=str(checkpoint.path.relative_to(self.out)),
                label=f"after {name}" if counters.is_stage_end else f"{name}, step {step}",
                size_bytes=checkpoint.size_bytes,
                pruned=list(pruned),
            )
        )

    def tell_untold_checkpoints(self) -> None:
        """Make up for the event that a kill right after a checkpoint, or damage to one, has left out."""
        if self.resumed is None:
            return
        told: set[str] = set()
        for payload in read_payloads(self.reporter.journal.path, CheckpointWritten):
            told = (told - set(payload.pruned)) | {payload.path}
        there = {str(c.path.relative_to(self.out)) for c in self.checkpoints.find_all()}
        if told != there:
            self._tell_checkpoint(self.resumed, sorted(told - there))

    def restore_policy(self) -> Recovery:
        """The newest sound checkpoint's weights, optimizer and version; those of the recipe's model where there is
        none."""
        recovery = self.checkpoints.recover()
        newest = recovery.checkpoint
        folder = newest.path if newest else self.places.resolve(self.recipe.model)
        load_weights(self.policy.model, folder)
        self.policy.optimizer = make_optimizer(self.policy.model)
        if has_optimizer(folder):  # the recipe's model may be a checkpoint of another run
            load_optimizer(self.policy.model, self.policy.optimizer, folder)
        self.policy.version = newest.counters.policy_version if newest else 0
        self.sampler.engine.set_version(self.policy.version)
        self.saved_at = (newest.counters.stage, newest.counters.stage_step) if newest else (-1, -1)
        return recovery

    def count_finished(self) -> int:
        """Stages that need not run again. One that trains is finished when its last checkpoint is there, or that of
        a later stage; another one by its note, unless a stage before it has to be done again."""
        counters = self.resumed.counters if self.resumed else None
        finished = counters.stage if counters else 0
        for index, stage in enumerate(self.recipe.stages[finished:], start=finished):
            is_trained = counters is not None and counters.stage == index and counters.is_stage_end
            if not (self.out / done_file(index)).exists() or (isinstance(stage, SftStage | RlStage) and not is_trained):
                return index
        return len(self.recipe.stages)

    def resume_point(self) -> ResumePoint:
        """From where on what older attempts reported is superseded. Step 0 of an RL stage is its screening."""
        index = self.count_finished()
        stage = self.recipe.stages[index] if index < len(self.recipe.stages) else None
        counters = self.resumed.counters if self.resumed else None
        done = counters.stage_step if counters and counters.stage == index else 0
        if isinstance(stage, RlStage):
            is_screened = stage.hard_subset is None or (self.out / hard_file(index)).exists()
            return ResumePoint(stage=index, step=self.first_step(index) + done if is_screened else 0)
        return ResumePoint(stage=index, step=done + 1 if isinstance(stage, SftStage) else 0)

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


def check_recipe(recipe: Recipe, places: Places, *, resume: bool) -> None:
    """Write the resolved recipe of a new run and note what it reads; RunRefused for a folder in use, or for a
    recipe or an input that changed since, with each difference."""
    out, path = places.out, places.out / RECIPE_FILE
    resolved = recipe.model_dump(mode="json")
    if path.exists():
        if not resume:
            raise RunRefused(f"{out} already holds a run: add --resume to continue it, or choose another folder")
        _refuse(f"the recipe differs from the one {out} was started with", list_differences(_stored(path), resolved))
    _refuse(f"what {out} was made from has changed", check_inputs(recipe, places))
    write_atomically(path, json.dumps(resolved, indent=1).encode())


def _refuse(what: str, differences: Sequence[str]) -> None:
    if not differences:
        return
    shown = "".join(f"\n  {line}" for line in differences[:MAX_DIFFERENCES])
    more = f"\n  and {len(differences) - MAX_DIFFERENCES} more" if len(differences) > MAX_DIFFERENCES else ""
    raise RunRefused(
        f"{what}:{shown}{more}\nPut it back as it was to resume this run, or start a new run in another folder "
        "(its model can be a checkpoint of this one)"
    )


def _stored(path: Path) -> Any:
    """The recipe a run was started with, in today's fields where it still holds."""
    stored = json.loads(path.read_text())
    try:
        return Recipe.model_validate(upgrade(stored)).model_dump(mode="json")
    except (ValueError, AttributeError):
        return stored


def list_differences(old: Any, new: Any, at: str = "") -> list[str]:
    """'field: old -> new' for each leaf of two JSON values that differs; what only one has is absent in the other."""
    if isinstance(old, dict) and isinstance(new, dict):
        pairs = {key: (old.get(key, _ABSENT), new.get(key, _ABSENT)) for key in sorted(old.keys() | new.keys())}
    elif isinstance(old, list) and isinstance(new, list):
        pairs = {str(i): pair for i, pair in enumerate(zip_longest(old, new, fillvalue=_ABSENT))}
    else:
        return [] if old == new else [f"{at}: {_shown(old)} -> {_shown(new)}"]
    return [d for key, (a, b) in pairs.items() for d in list_differences(a, b, f"{at}.{key}" if at else key)]


def _shown(value: Any) -> str:
    return "absent" if value is _ABSENT else json.dumps(value)


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
    recovery = context.restore_policy()
    context.resumed = recovery.checkpoint
    reporter.emit(
        RunStarted(
            stages=[stage.name for stage in recipe.stages],
            total_steps=recipe.total_rl_steps,
            resumed_from_step=context.resumed.counters.step if context.resumed else None,
            resumes_at=context.resume_point() if reporter.attempt > 1 else None,
            versions=list_versions(),
            git_commit=_git_commit(),
        )
    )
    _warn_of_faults(context, recovery)
    _warn_of_other_versions(context)
    context.tell_untold_checkpoints()
    return context


def _samples(stage: AnyStage) -> TypeGuard[CurateStage | RlStage | EvaluateStage]:
    return not isinstance(stage, SftStage) and (stage.kind != "curate" or stage.parsed_checks.screening is not None)


def _warn_of_faults(context: RunContext, recovery: Recovery) -> None:
    instead = recovery.checkpoint.path.name if recovery.checkpoint else "the recipe's model"
    for fault in recovery.faults:
        context.reporter.log(LogLevel.WARNING, f"{fault}; the run goes on from {instead}")


def _warn_of_other_versions(context: RunContext) -> None:
    path = context.out / VERSIONS_FILE
    now = list_versions()
    if path.exists() and (differences := list_differences(json.loads(path.read_text()), now)):
        text = f"the run goes on with {'; '.join(differences)}: numbers may differ from an uninterrupted run"
        context.reporter.log(LogLevel.WARNING, text)
    context.write(VERSIONS_FILE, json.dumps(now, indent=1).encode())


def _run_stages(context: RunContext) -> None:
    finished = context.count_finished()
    for index, stage in enumerate(context.recipe.stages):
        if index < finished:
            context.reporter.log(LogLevel.INFO, f"stage {stage.name} is finished already")
            continue
        (context.out / done_file(index)).unlink(missing_ok=True)
    for index, stage in enumerate(context.recipe.stages[finished:], start=finished):
        if context.reporter.should_stop:
            raise Stopped
        started = time.monotonic()
        seed_generators(derive_seed(context.recipe.seed, "libraries", index))
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
        if isinstance(stage, CurateStage):
            note_curated(context.out, [train_file(index), held_out_file(index)])
        context.write(done_file(index), json.dumps({"name": stage.name, "duration_s": duration}).encode())
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


def done_file(index: int) -> str:
    return f"stages/stage-{index:02d}.json"


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
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # we read what we write
    disable_progress_bar()
