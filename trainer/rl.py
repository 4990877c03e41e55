"""The RL stage: GRPO-RoC, one step after another, read top to bottom (rStar2-Agent 2.2, 4.3)."""

import asyncio
import time
from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

import numpy as np

from contracts.events import LogLevel, SpanKind
from contracts.recipe import Overlong, RlStage, Sampling
from contracts.trajectory import Decision, TrajectoryRow
from trainer.ahead import Ahead
from trainer.algorithm.advantage import compute_advantages
from trainer.algorithm.overlong import shape_reward
from trainer.algorithm.packing import Row
from trainer.algorithm.resample import Candidate, LedgerLine, SelectionRule, make_candidate, select_rollouts
from trainer.analysis.entropy import is_bound, set_entropies
from trainer.analysis.report import entropy_metrics, token_report
from trainer.analysis.tokens import MarkSettings
from trainer.context import RunContext, Training
from trainer.data.problems import load_problems
from trainer.evaluate import Plan, evaluate_policy
from trainer.files import held_out_file, train_file, train_shard
from trainer.hard_subset import hard_problems
from trainer.measure import measure_learning, measure_ledger, measure_rollouts, measure_staleness, measure_time
from trainer.outage import Occasion
from trainer.policy.learner import LearnReport, Sample
from trainer.policy.optimizer import warmup_rate
from trainer.rollout.agent import RolloutRequest
from trainer.rollout.rows import Credit
from trainer.rollout.trajectory import Problem, Trajectory
from trainer.sampler import Stopped
from trainer.seeds import derive_seed
from trainer.store import iter_rows

EVALUATION_SAMPLES = 2
EVALUATION_TEMPERATURE = 0.6
WATCHED_PROMPTS = 2
_T = TypeVar("_T")


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
            draw=self.line.draw,
        )


@dataclass(frozen=True, slots=True)
class Sampled:
    """The groups of a step, `refilled` of them in place of dropped ones, and the seconds it took to have them."""

    groups: list[list[Judged]]
    refilled: int
    seconds: float


def run_rl(context: RunContext, index: int, stage: RlStage) -> None:
    """`stage.steps` steps. Rollouts of the next ones may have begun before one is learned from (`Ahead`)."""
    relearn = partial(_relearn, context, index, stage)
    done = context.begin_training(
        Training(index, stage.reset_optimizer, relearn, reference=_find_reference(context, index, stage))
    )
    problems = _training_problems(context, index, stage)
    make = partial(_sample_step, context, index, stage, problems)
    with closing(Ahead(context.sampler, make, staleness=stage.staleness, done=done, last=stage.steps)) as ahead:
        _run_steps(context, index, stage, range(done + 1, stage.steps + 1), ahead)


def _run_steps(context: RunContext, index: int, stage: RlStage, steps: range, ahead: Ahead[Sampled]) -> None:
    """Each: sample, grade, select, learn, report; now and then evaluate and checkpoint."""
    for stage_step in steps:
        context.begin_step(index, stage, stage_step)
        step = context.first_step(index) + stage_step - 1
        context.reporter.doing = f"{stage.name}: step {step}"
        started = time.monotonic()
        timeline = context.sampler.timeline
        timeline.begin()
        with timeline.phase(SpanKind.GENERATE):
            sampled = _take(context, index, stage, stage_step, ahead)
        generated = time.monotonic()
        groups = sampled.groups
        trajectories = [rollout.trajectory for group in groups for rollout in group]
        values = measure_staleness(trajectories, context.policy.version)
        give_advantages(groups, stage)
        rate = warmup_rate(stage.learning_rate, stage_step, stage.warmup_steps)
        with timeline.phase(SpanKind.SCORE):
            _score_others(context, stage, groups, done=stage_step - 1)
        with timeline.phase(SpanKind.LEARN):
            report = _learn(context, index, stage, groups, stage_step=stage_step)
        learned = time.monotonic()
        context.sampler.publish(context.policy.version)
        values |= measure_rollouts(trajectories) | {"refill/groups": float(sampled.refilled)}
        values |= measure_ledger([[(r.trajectory, r.line) for r in group] for group in groups])
        values |= measure_learning(report, rate) if report else {"policy/lr": rate}
        values |= _store(context, index, stage, step=step, rollouts=[r for group in groups for r in group])
        seconds = {"step": time.monotonic() - started, "generate": generated - started, "learn": learned - generated}
        rate_of = sum(sum(t.mask) for t in trajectories) / max(1e-9, sampled.seconds)
        values |= measure_time(seconds, rate_of) | timeline.metrics()
        context.reporter.metrics(index, step, values)
        context.reporter.emit(timeline.report(index, step))
        context.reporter.log(LogLevel.INFO, _describe(stage.name, step, values))
        if stage.evaluate_every and stage_step % stage.evaluate_every == 0:
            _evaluate(context, index, stage, step=step)
        if stage_step == stage.steps or (stage.checkpoint_every and stage_step % stage.checkpoint_every == 0):
            context.save_checkpoint(index, stage, stage_step, is_stage_end=stage_step == stage.steps)


def _take(context: RunContext, index: int, stage: RlStage, stage_step: int, ahead: Ahead[Sampled]) -> Sampled:
    try:
        return ahead.take(stage_step)
    except Stopped:
        context.save_checkpoint(index, stage, stage_step - 1)
        raise


def _beside(context: RunContext, stage: RlStage, work: Callable[[], _T]) -> _T:
    """Do work of the learner. Rollouts that were begun go on meanwhile, over weights of their engine's own; on GPUs
    engines that died are started again meanwhile."""
    return context.sampler.run(asyncio.to_thread(work)) if stage.staleness or context.recipe.gpus else work()


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


def pick_refill(problems: Sequence[Problem], used: Collection[str], count: int, seed: int) -> list[Problem]:
    """At most `count` problems whose ids are not in `used`: a function of these alone, so that a resume repeats it."""
    order = np.random.default_rng(seed).permutation(len(problems))
    return [problems[int(i)] for i in order if problems[int(i)].id not in used][:count]


async def _sample_step(
    context: RunContext, index: int, stage: RlStage, problems: Sequence[Problem], stage_step: int
) -> Sampled:
    """The groups of the step's prompts, then at most `stage.refill` rounds of new prompts, as many as groups were
    dropped so far (DAPO's dynamic sampling, bounded). All groups come back, also those that were dropped."""
    started = time.monotonic()
    step = context.first_step(index) + stage_step - 1
    prompts = pick_prompts(problems, stage.prompts_per_step, stage_step, derive_seed(context.recipe.seed, index))
    trajectories = await _sample(context, index, stage, step=step, prompts=prompts)
    groups = judge_groups(context, index, stage, step=step, trajectories=trajectories)
    used = {problem.id for problem in prompts}
    for round_ in range(1, stage.refill + 1):
        missing = len(prompts) - sum(any(r.line.is_kept for r in group) for group in groups)
        seed = derive_seed(context.recipe.seed, "refill", index, step, round_)
        more = pick_refill(problems, used, missing, seed)
        if not more:
            break
        trajectories = await _sample(context, index, stage, step=step, prompts=more)
        groups += judge_groups(context, index, stage, step=step, trajectories=trajectories)
        used |= {problem.id for problem in more}
    return Sampled(groups, len(groups) - len(prompts), time.monotonic() - started)


async def _sample(
    context: RunContext, index: int, stage: RlStage, *, step: int, prompts: Sequence[Problem]
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
    return await context.sampler.collect(requests, stage.sampling, Occasion(index, step, "rollouts"), context.reporter)


def judge_groups(
    context: RunContext, index: int, stage: RlStage, *, step: int, trajectories: Sequence[Trajectory]
) -> list[list[Judged]]:
    """The selection, group by group; a group is the rollouts of one prompt, by its id."""
    rule = SelectionRule(stage.resample, stage.group_size)
    by_prompt: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_prompt.setdefault(trajectory.problem.id, []).append(trajectory)
    groups = []
    for prompt, members in by_prompt.items():
        candidates = [make_candidate(t, context.sampler.chat.turn_texts(t)) for t in members]
        rng = np.random.default_rng(derive_seed(context.recipe.seed, "select", index, step, prompt))
        lines = select_rollouts(candidates, rule, rng)
        groups.append([Judged(t, c, line, prompt) for t, c, line in zip(members, candidates, lines, strict=True)])
    return groups


def give_advantages(groups: Sequence[Sequence[Judged]], stage: RlStage) -> None:
    """To the kept rollouts of a step. A truncated one that is masked counts in its group's mean and has advantage 0."""
    kept = [[r for r in group if r.line.is_kept] for group in groups]
    rewards = [[_shaped_reward(r, stage) for r in group] for group in kept]
    for group, advantages in zip(kept, compute_advantages(rewards, stage.advantage_scale), strict=True):
        for rollout, advantage in zip(group, advantages, strict=True):
            rollout.advantage = advantage if _is_learned(rollout.line.decision, stage) else 0.0


def _shaped_reward(rollout: Judged, stage: RlStage) -> float:
    return shape_reward(
        rollout.candidate.reward or 0.0,
        stage.overlong,
        response_tokens=len(rollout.trajectory.response_ids),
        limit=stage.sampling.max_response_tokens,
        is_truncated=rollout.candidate.is_truncated,
    )


def _find_reference(context: RunContext, index: int, stage: RlStage) -> Path | None:
    """The policy the stage began with (4.3), for a KL term; None without one: no second model is held.

    It is read back from where the stage started, so a resumed run has the same.
    """
    if not any(term.is_kl for term in stage.loss_terms):
        return None
    before = [c.path for c in context.checkpoints.find_all() if c.counters.stage < index]
    return before[-1] if before else context.places.resolve(context.recipe.model)


def _is_learned(decision: Decision, stage: RlStage) -> bool:
    """Whether the gradient has a part of such a rollout."""
    is_masked = stage.overlong is Overlong.MASK and decision is Decision.KEPT_TRUNCATED
    return decision.is_kept and not is_masked


def _find_learned(groups: Sequence[Sequence[Judged]], stage: RlStage) -> list[Judged]:
    rollouts = [rollout for group in groups for rollout in group]
    return [r for r in rollouts if _is_learned(r.line.decision, stage) and any(r.trajectory.mask)]


def _score_others(context: RunContext, stage: RlStage, groups: Sequence[Sequence[Judged]], *, done: int) -> None:
    """Entropies of the rollouts that are not learned from, where the engine had none but bounds; those of the others
    come with the update."""
    learned = {id(rollout) for rollout in _find_learned(groups, stage)}
    others = [r.trajectory for group in groups for r in group if id(r) not in learned and is_bound(r.trajectory)]
    if not others:
        return
    rows = [Row(t.prompt_ids, t.response_ids, t.mask) for t in others]
    score = partial(context.policy.learner.score, rows, stage.sampling.temperature)
    found = context.on_learner(partial(_beside, context, stage, score), done=done)
    for trajectory, scores in zip(others, found, strict=True):
        set_entropies(trajectory, scores.entropies)


def _learn(
    context: RunContext, index: int, stage: RlStage, groups: Sequence[Sequence[Judged]], *, stage_step: int
) -> LearnReport | None:
    """Update the policy from the kept rollouts; None (and the same policy version) when there are none."""
    learned = _find_learned(groups, stage)
    samples = [_to_sample(rollout) for rollout in learned]
    if not samples:
        context.reporter.log(LogLevel.WARNING, "no group gave a gradient, the policy stays as it is")
        return None
    learn = partial(_update, context, index, stage, samples, stage_step)

    def learn_and_offer() -> LearnReport:
        made = _beside(context, stage, learn)
        context.policy.learner.offer()
        return made

    report = context.on_learner(learn_and_offer, done=stage_step - 1)
    context.policy.version += 1
    for rollout, entropies in zip(learned, report.entropies, strict=True):
        if is_bound(rollout.trajectory):
            set_entropies(rollout.trajectory, entropies)
    return report


def _update(context: RunContext, index: int, stage: RlStage, samples: Sequence[Sample], stage_step: int) -> LearnReport:
    step = context.first_step(index) + stage_step - 1
    rate = warmup_rate(stage.learning_rate, stage_step, stage.warmup_steps)
    seed = derive_seed(context.recipe.seed, "learn", index, step)
    return context.policy.learner.learn(samples, stage=stage, rate=rate, seed=seed)


def _relearn(context: RunContext, index: int, stage: RlStage, stage_step: int) -> None:
    """The update of a step that is done, from its shard: what was learned from is all there."""
    rows = iter_rows(context.out / train_shard(index, context.first_step(index) + stage_step - 1))
    samples = [_stored_sample(r) for r in rows if _is_learned(r.index.decision, stage) and any(r.response_mask)]
    if samples:
        _update(context, index, stage, samples, stage_step)


def _to_sample(rollout: Judged) -> Sample:
    t = rollout.trajectory
    policy_logprobs = [p for p, m in zip(t.logprobs, t.mask, strict=True) if m]
    return Sample(Row(t.prompt_ids, t.response_ids, t.mask), rollout.group, rollout.advantage or 0.0, policy_logprobs)


def _stored_sample(row: TrajectoryRow) -> Sample:
    """As `_to_sample` made it: log-probabilities are float32 there too."""
    policy_logprobs = [p for p, m in zip(row.sampling_logprobs, row.response_mask, strict=True) if m]
    tokens = Row(row.prompt_ids, row.response_ids, row.response_mask)
    return Sample(tokens, row.index.prompt_id, row.index.advantage or 0.0, policy_logprobs)


def _store(
    context: RunContext, index: int, stage: RlStage, *, step: int, rollouts: Sequence[Judged]
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


def _evaluate(context: RunContext, index: int, stage: RlStage, *, step: int) -> None:
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


def _training_problems(context: RunContext, index: int, stage: RlStage) -> list[Problem]:
    problems = load_problems(context.out / train_file(context.curated_before(index)[0]))
    return hard_problems(context, index, stage, problems) if stage.hard_subset else problems
