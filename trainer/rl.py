"""The RL stage: GRPO-RoC, one step after another, read top to bottom (rStar2-Agent 2.2, 4.3)."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from contracts.events import Funnel, FunnelRow, LogLevel
from contracts.recipe import HardSubset, RlStage, Sampling
from trainer.algorithm.advantage import compute_advantages
from trainer.algorithm.packing import Row
from trainer.algorithm.resample import Candidate, LedgerLine, SelectionRule, make_candidate, select_rollouts
from trainer.analysis.entropy import fill_entropies
from trainer.analysis.report import entropy_metrics, token_report
from trainer.analysis.tokens import MarkSettings
from trainer.curate import held_out_file, train_file
from trainer.data.problems import dump_problems, load_problems
from trainer.evaluate import Plan, evaluate_policy
from trainer.measure import is_right, measure_learning, measure_ledger, measure_rollouts, measure_time
from trainer.policy.learner import LearnReport, Sample, learn
from trainer.policy.optimizer import warmup_rate
from trainer.rollout.agent import RolloutRequest
from trainer.rollout.rows import Credit
from trainer.rollout.trajectory import Problem, Trajectory
from trainer.sampler import Occasion, Stopped
from trainer.seeds import derive_seed
from trainer.store import train_shard

if TYPE_CHECKING:
    from trainer.pipeline import RunContext

EVALUATION_SAMPLES = 2
EVALUATION_TEMPERATURE = 0.6
WATCHED_PROMPTS = 2
SCREEN_CHUNK = 64
SCREEN_FACTOR = 2  # at most so many times the problems the stage can use are screened for the hard subset


@dataclass(slots=True)
class Judged:
    """A rollout with all that was decided about it."""

    trajectory: Trajectory
    candidate: Candidate
    line: LedgerLine
    group: str
    advantage: float | None = None

    def credit(self) -> Credit:
        return Credit(
            decision=self.line.decision,
            advantage=self.advantage,
            weight=self.line.weight,
            p_err=self.candidate.p_err,
            p_format=self.candidate.p_format,
            draw_probability=self.line.draw_probability,
        )


def run_rl(context: "RunContext", index: int, stage: RlStage) -> None:
    """`stage.steps` steps; each: sample, grade, select, learn, report; now and then evaluate and checkpoint."""
    done = context.begin_training(index, stage, reset_optimizer=stage.reset_optimizer)
    problems = _training_problems(context, index, stage)
    first = context.first_step(index)
    for stage_step in range(done + 1, stage.steps + 1):
        context.check_stop(index, stage, stage_step - 1)
        step = first + stage_step - 1
        context.reporter.doing = f"{stage.name}: step {step}"
        started = time.monotonic()
        prompts = pick_prompts(problems, stage.prompts_per_step, stage_step, derive_seed(context.recipe.seed, index))
        trajectories = _sample(context, index, stage, step=step, prompts=prompts)
        generated = time.monotonic()
        fill_entropies(context.policy.model, trajectories, stage.sampling.temperature)
        groups = judge_groups(context, index, stage, step=step, trajectories=trajectories)
        kept = [rollout for group in groups for rollout in group if rollout.line.is_kept]
        rate = warmup_rate(stage.learning_rate, stage_step, stage.warmup_steps)
        report = _learn(context, index, stage, step=step, kept=kept, rate=rate)
        learned = time.monotonic()
        values = measure_rollouts(trajectories)
        values |= measure_ledger([[(r.trajectory, r.line) for r in group] for group in groups])
        values |= measure_learning(report, rate) if report else {"policy/lr": rate}
        values |= _store(context, index, stage, step=step, rollouts=[r for group in groups for r in group])
        seconds = {"step": time.monotonic() - started, "generate": generated - started, "learn": learned - generated}
        values |= measure_time(seconds, sum(sum(t.mask) for t in trajectories))
        context.reporter.metrics(index, step, values)
        context.reporter.log(LogLevel.INFO, _describe(stage.name, step, values))
        if stage.evaluate_every and stage_step % stage.evaluate_every == 0:
            _evaluate(context, index, stage, step=step)
        if stage_step == stage.steps or (stage.checkpoint_every and stage_step % stage.checkpoint_every == 0):
            context.save_checkpoint(index, stage, stage_step, is_stage_end=stage_step == stage.steps)


def _describe(name: str, step: int, values: dict[str, float]) -> str:
    """A step in one line."""
    kept = values["ledger/kept_right"] + values["ledger/kept_wrong"] + values["ledger/kept_truncated"]
    errors = values.get("tools/error_ratio_right")
    return (
        f"{name} step {step}  reward {values.get('reward/mean', 0.0):.3f}  kept {kept:.0f}  "
        f"tool errors in right ones {'-' if errors is None else f'{errors:.3f}'}  {values['time/step_s']:.1f} s "
        f"(generate {values['time/generate_s']:.1f}, learn {values['time/learn_s']:.1f})"
    )


def pick_prompts(problems: Sequence[Problem], count: int, stage_step: int, seed: int) -> list[Problem]:
    """The prompts of a step, all different: a permutation per epoch, whose remainder is not used.

    A function of step and seed alone, so a resumed run goes on with the same prompts.
    """
    steps_per_epoch = max(1, len(problems) // count)
    epoch, offset = divmod(stage_step - 1, steps_per_epoch)
    order = np.random.default_rng(derive_seed(seed, "prompts", epoch)).permutation(len(problems))
    return [problems[int(i)] for i in order[offset * count : (offset + 1) * count]]


def _sample(
    context: "RunContext", index: int, stage: RlStage, *, step: int, prompts: Sequence[Problem]
) -> list[Trajectory]:
    """The 2G rollouts of each prompt, prompt after prompt."""
    requests = [
        RolloutRequest(
            problem,
            sample,
            derive_seed(context.recipe.seed, "rollout", index, step, problem.id, sample),
            watched=sample == 0 and number < WATCHED_PROMPTS,
        )
        for number, problem in enumerate(prompts)
        for sample in range(stage.oversample)
    ]
    try:
        return context.sampler.sample(requests, stage.sampling, Occasion(index, step, "rollouts"), context.reporter)
    except Stopped:
        context.save_checkpoint(index, stage, step - context.first_step(index))
        raise


def judge_groups(
    context: "RunContext", index: int, stage: RlStage, *, step: int, trajectories: Sequence[Trajectory]
) -> list[list[Judged]]:
    """Selection and advantages, group by group; a group is the rollouts of one prompt, by its id."""
    rule = SelectionRule(stage.resample, stage.group_size, context.recipe.penalty_floor)
    by_prompt: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_prompt.setdefault(trajectory.problem.id, []).append(trajectory)
    groups = []
    for prompt, members in by_prompt.items():
        candidates = [make_candidate(t, context.sampler.chat.turn_texts(t)) for t in members]
        rng = np.random.default_rng(derive_seed(context.recipe.seed, "select", index, step, prompt))
        lines = select_rollouts(candidates, rule, rng)
        group = [Judged(t, c, line, prompt) for t, c, line in zip(members, candidates, lines, strict=True)]
        kept = [r for r in group if r.line.is_kept]
        advantages = compute_advantages([r.candidate.reward or 0.0 for r in kept], stage.advantage_scale)
        for rollout, advantage in zip(kept, advantages, strict=True):
            rollout.advantage = advantage
        groups.append(group)
    return groups


def _learn(
    context: "RunContext", index: int, stage: RlStage, *, step: int, kept: Sequence[Judged], rate: float
) -> LearnReport | None:
    """Update the policy from the kept rollouts; None (and the same policy version) when there are none."""
    samples = [_to_sample(rollout) for rollout in kept if any(rollout.trajectory.mask)]
    if not samples:
        context.reporter.log(LogLevel.WARNING, f"step {step}: no group gave a gradient, the policy stays as it is")
        return None
    policy = context.policy
    seed = derive_seed(context.recipe.seed, "learn", index, step)
    report = learn(policy.model, policy.optimizer, samples, stage=stage, rate=rate, seed=seed)
    policy.version += 1
    context.sampler.engine.set_version(policy.version)
    return report


def _to_sample(rollout: Judged) -> Sample:
    t = rollout.trajectory
    policy_logprobs = [p for p, m in zip(t.logprobs, t.mask, strict=True) if m]
    return Sample(Row(t.prompt_ids, t.response_ids, t.mask), rollout.group, rollout.advantage or 0.0, policy_logprobs)


def _store(
    context: "RunContext", index: int, stage: RlStage, *, step: int, rollouts: Sequence[Judged]
) -> dict[str, float]:
    """Shard, index rows and token report; the entropy metrics come back."""
    trajectories = [r.trajectory for r in rollouts]
    credits = [r.credit() for r in rollouts]
    analyses = context.store_trajectories(
        trajectories, credits, train_shard(index, step), stage=(index, stage.name), step=step
    )
    marks = MarkSettings(context.recipe.forking_share, context.recipe.reflection_window)
    context.reporter.emit(token_report(analyses, marks, stage=index, step=step))
    return entropy_metrics(analyses)


def _evaluate(context: "RunContext", index: int, stage: RlStage, *, step: int) -> None:
    """avg@2 at temperature 0.6 on the first held-out problems."""
    held_out = load_problems(context.out / held_out_file(context.curated_before(index)[0]))[: stage.evaluate_problems]
    if not held_out:
        return
    sampling = Sampling(**(stage.sampling.model_dump() | {"temperature": EVALUATION_TEMPERATURE}))
    plan = Plan(index, stage.name, step, f"step-{step:05d}", EVALUATION_SAMPLES, sampling)
    result = evaluate_policy(context, held_out, plan)
    values: dict[str, float] = {}
    if result.avg is not None:
        values |= {"eval/avg": result.avg.value, "eval/half_width": result.avg.half_width}
    if result.tool_error_ratio_right is not None:
        values["eval/tool_error_ratio_right"] = result.tool_error_ratio_right
    context.reporter.metrics(index, step, values)
    avg = f"{result.avg.value:.3f}" if result.avg else "ungraded"
    context.reporter.log(LogLevel.INFO, f"{stage.name} step {step}  held-out avg@{EVALUATION_SAMPLES} {avg}")


def hard_file(index: int) -> str:
    """Path of the problems an RL stage with a hard subset trains on."""
    return f"problems/stage-{index:02d}/hard.jsonl"


def _training_problems(context: "RunContext", index: int, stage: RlStage) -> list[Problem]:
    problems = load_problems(context.out / train_file(context.curated_before(index)[0]))
    if stage.hard_subset is None:
        return problems
    path = context.out / hard_file(index)
    if not path.exists():  # screened with the policy the stage began with: never again after a resume
        context.write(hard_file(index), dump_problems(_screen(context, index, stage, stage.hard_subset, problems)))
    return load_problems(path)


def _screen(
    context: "RunContext", index: int, stage: RlStage, subset: HardSubset, problems: Sequence[Problem]
) -> list[Problem]:
    """Problems the newest policy does not always solve (4.3), screened in a fixed order until there are as
    many as the stage's steps can use. None left: all problems are used, and the log says so."""
    needed = min(len(problems), stage.steps * stage.prompts_per_step)
    order = np.random.default_rng(derive_seed(context.recipe.seed, "hard", index)).permutation(len(problems))
    queue = [problems[int(i)] for i in order[: SCREEN_FACTOR * needed]]
    hard: list[Problem] = []
    easy: list[Problem] = []
    while queue and len(hard) < needed:
        chunk, queue = queue[:SCREEN_CHUNK], queue[SCREEN_CHUNK:]
        context.reporter.doing = f"{stage.name}: hard subset, {len(hard)} of {needed} problems"
        requests = [
            RolloutRequest(p, sample, derive_seed(context.recipe.seed, "hard", index, p.id, sample))
            for p in chunk
            for sample in range(subset.samples)
        ]
        occasion = Occasion(index, 0, "screening rollouts")
        trajectories = context.sampler.sample(requests, stage.sampling, occasion, context.reporter)
        for i, problem in enumerate(chunk):
            own = trajectories[i * subset.samples : (i + 1) * subset.samples]
            is_easy = sum(map(is_right, own)) / subset.samples >= subset.drop_at
            (easy if is_easy else hard).append(problem)
    examples = [p.text[:160] for p in easy[:5]]
    screened = len(hard) + len(easy)
    row = FunnelRow(filter=f"right {subset.samples} of {subset.samples}", entered=screened, left=len(hard))
    context.reporter.emit(
        Funnel(
            stage=index,
            rows=[row.model_copy(update={"examples": examples})],
            train=len(hard) or len(problems),
            held_out=0,
            train_path=hard_file(index),
        )
    )
    if not hard:
        context.reporter.log(LogLevel.WARNING, f"{stage.name}: no hard problem among {screened}; all are used")
    return hard or list(problems)
