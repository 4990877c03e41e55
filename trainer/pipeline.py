"""A run from its recipe: the stages in order, resumed where the newest checkpoint says, always ended by one event."""

import asyncio
import json
import subprocess
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard

import torch
from transformers.utils.logging import disable_progress_bar

from contracts.events import LogLevel, Outcome, RunEnded, RunStarted, StageFinished, StageStarted
from contracts.recipe import AnyStage, CurateStage, EvaluateStage, Recipe, RlStage, SftStage
from contracts.text import clean_text
from trainer.context import Policy, RunContext
from trainer.curate import run_curate
from trainer.evaluate import run_evaluate
from trainer.files import VERSIONS_FILE, done_file, held_out_file, train_file
from trainer.inputs import list_versions, note_curated
from trainer.open_engine import open_engine
from trainer.open_gpus import open_on_gpus
from trainer.open_learner import open_learner
from trainer.policy.checkpoint import CheckpointStore, Recovery
from trainer.policy.learners import Learner
from trainer.policy.model import load_model
from trainer.refusal import list_differences
from trainer.reporter import Reporter
from trainer.rl import run_rl
from trainer.rollout.agent import Grader, Tool
from trainer.rollout.chat import Chat, open_chat
from trainer.sampler import OwnEngine, Sampler, Stopped
from trainer.seeds import derive_seed, seed_generators
from trainer.sft import run_sft
from trainer.store import Places

MAX_PROMPT_TOKENS = 512  # room the engine's context leaves for the prompt, beside the longest response


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
            context.policy.learner.close()
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


def _open_run(recipe: Recipe, places: Places, reporter: Reporter, parts: Parts, runner: asyncio.Runner) -> RunContext:
    source = places.resolve(recipe.model)
    longest = max(
        (s.sampling.max_response_tokens for s in recipe.stages if _samples(s)),
        default=1024,
    )
    engine, learner = _open_engine_and_learner(recipe, source, places.out, longest + MAX_PROMPT_TOKENS, reporter)
    chat = open_chat(source)
    sampler = Sampler(runner, engine, chat, tool=parts.make_tool(chat), grader=parts.grader)
    context = RunContext(
        recipe=recipe,
        places=places,
        reporter=reporter,
        sampler=sampler,
        policy=Policy(learner),
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
    if recipe.ranks > 1 and not recipe.gpus:
        reporter.log(LogLevel.INFO, f"the learner is {recipe.ranks} ranks, each a Ray actor with its part of the model")
    _warn_of_faults(context, recovery)
    _warn_of_other_versions(context)
    context.tell_untold_checkpoints()
    return context


def _open_engine_and_learner(
    recipe: Recipe, source: Path, out: Path, max_context: int, reporter: Reporter
) -> tuple[OwnEngine, Learner]:
    if recipe.gpus:
        return open_on_gpus(recipe, source, out=out, max_context=max_context, reporter=reporter)
    model = load_model(source)
    engine = open_engine(recipe, model, source, out=out, max_context=max_context, reporter=reporter)
    return engine, open_learner(recipe, model, source, out)


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


def prepare_libraries(threads: int, *, is_deterministic: bool = True) -> None:
    """One thread by default: the sandbox and the engine's bookkeeping want the other core. No progress bars.

    `is_deterministic` False: on GPUs, where some of what is used has no other way.
    """
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(is_deterministic)
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]  # we read what we write
    disable_progress_bar()
