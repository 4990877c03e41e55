"""Evaluation: k samples a problem of a checkpoint, as a leaderboard row or as a point on the held-out chart."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import fmean

from contracts.events import EvaluationFinished, LogLevel, StageProgress
from contracts.recipe import EvaluateStage, Sampling
from contracts.scoring import Estimate, avg_at_k, pass_at_k
from contracts.trajectory import Decision
from trainer.context import RunContext
from trainer.data.problems import load_problems
from trainer.files import evaluation_shard, held_out_file
from trainer.measure import is_right, tool_error_ratio
from trainer.outage import Occasion
from trainer.rollout.agent import RolloutRequest
from trainer.rollout.rows import Credit
from trainer.rollout.trajectory import Problem, Trajectory
from trainer.seeds import derive_seed
from trainer.store import PathError

HELD_OUT = "held_out"


@dataclass(frozen=True, slots=True)
class Plan:
    """One evaluation. `step` is what its trajectories are stored under; `label` names the shard."""

    stage: int
    stage_name: str
    step: int
    label: str
    k: int
    sampling: Sampling


@dataclass(frozen=True, slots=True)
class Result:
    avg: Estimate | None
    pass_at_k: float | None
    tool_error_ratio_right: float | None
    mean_response_tokens: float
    mean_tool_calls: float
    correct_by_problem: dict[str, int]


def run_evaluate(context: RunContext, index: int, stage: EvaluateStage) -> None:
    """Each checkpoint on the benchmark. `step` of its event and trajectories is its place in the list, from 1."""
    problems = _read_benchmark(context, index, stage)
    for number, name in enumerate(stage.checkpoints, start=1):
        label, folder = _find_checkpoint(context, name)
        context.reporter.doing = f"{stage.name}: {label}"
        context.on_learner(partial(context.policy.learner.offer, folder), done=0)
        context.sampler.publish(context.policy.version + number)
        result = evaluate_policy(
            context, problems, Plan(index, stage.name, number, f"{number}-{label}", stage.k, stage.sampling)
        )
        avg = f"{result.avg.value:.3f} ± {result.avg.half_width:.3f}" if result.avg else "ungraded"
        context.reporter.log(LogLevel.INFO, f"{stage.name}: {label} avg@{stage.k} {avg}")
        context.reporter.emit(_make_event(context, index, stage, number=number, checkpoint=folder, result=result))
    context.restore_policy()


def evaluate_policy(context: RunContext, problems: Sequence[Problem], plan: Plan) -> Result:
    """Sample, grade, store. Seeds depend on problem and sample only, so checkpoints are compared on equal luck."""
    requests = [
        RolloutRequest(problem, sample, derive_seed(context.recipe.seed, "evaluate", problem.id, sample))
        for problem in problems
        for sample in range(plan.k)
    ]
    occasion = Occasion(plan.stage, plan.step, "evaluation rollouts")
    trajectories = context.sampler.sample(requests, plan.sampling, occasion, context.reporter)
    credits = [Credit(Decision.EVALUATION)] * len(trajectories)
    shard = evaluation_shard(plan.stage, plan.label)
    context.store_trajectories(trajectories, credits, shard, stage=(plan.stage, plan.stage_name), step=plan.step)
    done = len(problems)
    context.reporter.emit(
        StageProgress(stage=plan.stage, step=plan.step, done=done, total=done, what="problems evaluated")
    )
    return summarise(trajectories, plan.k)


def summarise(trajectories: Sequence[Trajectory], k: int) -> Result:
    """avg@k with its half-width; pass@k over the problems all of whose k samples were graded."""
    rewards: dict[str, list[float | None]] = defaultdict(list)
    for t in trajectories:
        rewards[t.problem.id].append(t.reward)
    correct = {problem: sum(r is not None and r > 0 for r in rs) for problem, rs in rewards.items()}
    passed = [
        pass_at_k(sum(r is not None for r in rs), correct[problem], k)
        for problem, rs in rewards.items()
        if sum(r is not None for r in rs) >= k
    ]
    return Result(
        avg=avg_at_k(rewards),
        pass_at_k=fmean(p for p in passed if p is not None) if passed else None,
        tool_error_ratio_right=tool_error_ratio([t for t in trajectories if is_right(t)]),
        mean_response_tokens=fmean(len(t.response_ids) for t in trajectories),
        mean_tool_calls=fmean(len(t.tool_calls) for t in trajectories),
        correct_by_problem=correct,
    )


def _read_benchmark(context: RunContext, index: int, stage: EvaluateStage) -> list[Problem]:
    if stage.benchmark == HELD_OUT:
        path = context.out / held_out_file(context.curated_before(index)[0])
    else:
        path = context.places.resolve(stage.benchmark)
    problems = load_problems(path)
    if not problems:
        raise PathError(f"stage {stage.name!r}: benchmark {stage.benchmark!r} has no problems")
    return problems[: stage.problems or None]


def _find_checkpoint(context: RunContext, name: str) -> tuple[str, Path]:
    """(label, folder) of 'base', 'latest', a stage's name, or a path."""
    if name == "base":
        return "base model", context.places.resolve(context.recipe.model)
    if name == "latest":
        newest = context.checkpoints.latest()
        if newest is None:
            return "base model", context.places.resolve(context.recipe.model)
        return f"after {newest.counters.stage_name}", newest.path
    if name in {stage.name for stage in context.recipe.stages}:
        found = context.checkpoints.stage_end(name)
        if found is None:
            raise PathError(f"stage {name!r} has not written a checkpoint")
        return f"after {name}", found.path
    folder = context.places.resolve(name)
    return folder.name, folder


def _make_event(
    context: RunContext, index: int, stage: EvaluateStage, *, number: int, checkpoint: Path, result: Result
) -> EvaluationFinished:
    name = stage.checkpoints[number - 1]
    is_own = checkpoint.is_relative_to(context.out)
    return EvaluationFinished(
        stage=index,
        step=number,
        board=stage.board,
        benchmark=stage.benchmark,
        checkpoint=str(checkpoint.relative_to(context.out)) if is_own else name,
        label=_find_checkpoint(context, name)[0],
        k=stage.k,
        temperature=stage.sampling.temperature,
        max_response_tokens=stage.sampling.max_response_tokens,
        max_turns=stage.sampling.max_turns,
        avg=result.avg,
        pass_at_k=result.pass_at_k,
        tool_error_ratio_right=result.tool_error_ratio_right,
        mean_response_tokens=result.mean_response_tokens,
        mean_tool_calls=result.mean_tool_calls,
        correct_by_problem=result.correct_by_problem,
    )
