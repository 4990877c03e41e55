"""The tables of docs/scale-step.md: `make scale-step`.

What `explain` says of the paper's recipe, and the simulator of its rollouts on the engines that `explain` lays out.
"""

from dataclasses import replace
from pathlib import Path
from statistics import fmean

from contracts.recipe import RlStage
from sandbox.simulate import write_between_marks
from trainer.__main__ import load_recipe
from trainer.explain import BF16, STEP, Assumptions, Explanation, Load, explain, read_shape
from trainer.rollout.simulate import Cluster, Policy, Workload, make_router, simulate

PROJECT = Path(__file__).parents[1]
PAGE = PROJECT / "docs" / "scale-step.md"
RECIPE = PROJECT / "recipes" / "rstar2_14b.yaml"
DAY_S = 86_400
STEP_S = 7 * DAY_S / 510  # the paper's run: 510 steps in less than a week (4.3)
TOOL_S = 0.3  # of a call, in the mean (3.1)
LEARN_FLOP = 8  # a parameter and token: forward, forward again for what was not kept, backward
LEARN_RATE = 0.4 * 1307e12  # FLOP/s of a GPU: the data sheet's, and the share that docs/decisions/scheduler.md assumes
SEED = 100  # the scheduler was tuned on seeds below


def explain_paper() -> Explanation:
    recipe = load_recipe(RECIPE, [])
    return explain(recipe, read_shape(recipe.model, PROJECT, None), Assumptions())


def format_needs(e: Explanation) -> str:
    """Two tables in markdown: a step of each RL stage, and what does not depend on the stage."""
    lines = [
        "| a step of | rollouts | response tokens | mean | tool calls | trajectories | kept and learned "
        "| policy tokens/s and GPU |",
        "|---|---|---|---|---|---|---|---|",
    ]
    stages = {stage.name: stage for stage in e.recipe.stages if isinstance(stage, RlStage)}
    for load in (load for load in e.loads if load.occasion == STEP):
        stage = stages[load.stage]
        kept = stage.prompts_per_step * stage.group_size
        needed = load.policy_tokens / STEP_S / e.recipe.gpus
        lines.append(
            f"| {load.stage} | {load.rollouts:,} | {load.tokens / 1e6:.1f} M | {load.tokens / load.rollouts:,.0f} "
            f"| {load.calls:,.0f} | {load.stored_bytes / 1e9:.2f} GB | {kept:,} | {needed:,.0f} |"
        )
    layout, m = e.layout, e.memory
    weights_gb = BF16 * e.shape.parameters / 1e9
    lines += [
        "",
        "| of the run | |",
        "|---|---|",
        f"| GPUs that learn | {e.recipe.ranks} |",
        f"| engines | {layout.engines} of {layout.tensor_parallel} GPU |",
        f"| KV cache of an engine | {m.kv_cache / 1e9:.0f} GB, {layout.kv_tokens:,} tokens |",
        f"| rollouts of full length in it | {layout.full_rollouts} of {layout.longest:,} tokens |",
        f"| memory of a GPU that learns | {m.learner / 1e9:.1f} GB: a whole gradient {m.whole_gradients / 1e9:.1f}, "
        f"activations {m.activations / 1e9:.1f} |",
        f"| weights of a sync | {weights_gb:.1f} GB to each engine, {layout.engines * weights_gb:,.0f} GB in all |",
    ]
    return "\n".join(lines)


def format_simulated(e: Explanation) -> str:
    """A markdown table: our scheduler and least requests on the engines of the layout; the learner by arithmetic. Then
    the days of all steps."""
    lines = [
        "| a step of | policy tokens a rollout | least requests s | ours s | ours, tokens/s and GPU | needed "
        "| learning s | left of a step | left where both work at once |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    cluster = Cluster(e.layout.engines, e.layout.kv_tokens, TOOL_S)
    taken: dict[int, tuple[float, float]] = {}  # seconds of a step's sampling and learning, by the stage's limit
    apart = together = steps = 0.0
    for load in (load for load in e.loads if load.occasion == STEP):
        stage = next(s for s in e.recipe.stages if isinstance(s, RlStage) and s.name == load.stage)
        limit = stage.sampling.max_response_tokens
        if limit not in taken:
            workload = _scale(stage, load.policy_tokens / load.rollouts)
            least, ours = (
                simulate(make_router(policy, cluster, load.rollouts), cluster, workload, SEED)
                for policy in (Policy.LEAST, Policy.OURS)
            )
            learning = _learning_s(e, stage, load)
            taken[limit] = ours.makespan_s, learning
            lines.append(
                f"| {load.stage} | {ours.generated / load.rollouts:,.0f} | {least.makespan_s:.0f} "
                f"| {ours.makespan_s:.0f} | {ours.tokens_per_s(e.recipe.gpus):,.0f} "
                f"| {ours.generated / STEP_S / e.recipe.gpus:,.0f} | {learning:.0f} "
                f"| {STEP_S - ours.makespan_s - learning:.0f} s | {STEP_S - max(ours.makespan_s, learning):.0f} s |"
            )
        steps += stage.steps
        apart += stage.steps * sum(taken[limit])
        together += stage.steps * max(taken[limit])
    lines += [
        "",
        f"The run's {steps:.0f} steps: {apart / DAY_S:.1f} days, or {together / DAY_S:.1f} where both work at once.",
    ]
    return "\n".join(lines)


def _learning_s(e: Explanation, stage: RlStage, load: Load) -> float:
    """Of a step's kept rollouts, by arithmetic alone."""
    tokens = stage.prompts_per_step * stage.group_size * (load.tokens / load.rollouts + e.assumptions.prompt_tokens)
    return LEARN_FLOP * e.shape.parameters * tokens / LEARN_RATE / e.recipe.ranks


def _scale(stage: RlStage, mean: float) -> Workload:
    """The simulator's rollouts, their turns made longer or shorter until they have the mean."""
    groups, size = stage.prompts_per_step, stage.oversample
    workload = Workload(groups, size, max_response_tokens=stage.sampling.max_response_tokens)
    for _ in range(6):
        found = fmean(sum(turns) for turns in workload.draw(SEED))
        workload = replace(workload, turn_median=round(workload.turn_median * mean / found))
    return workload


def main() -> None:
    e = explain_paper()
    write_between_marks(PAGE, "explained", format_needs(e))
    write_between_marks(PAGE, "simulated", format_simulated(e))


if __name__ == "__main__":
    main()
