"""An explanation of a recipe as plain text tables."""

from collections.abc import Sequence
from dataclasses import fields
from math import ceil
from typing import Any

from contracts.recipe import CurateStage, LossTerm, RlStage, SftStage
from trainer.explain import BF16, STEP, Assumptions, Explanation, Load
from trainer.tables import format_table

_SUMMED = ("rollouts", "tokens", "policy_tokens", "calls", "stored_bytes")


def format_explanation(e: Explanation) -> str:
    stages = [[str(i + 1), s.name, s.kind, _describe(s)] for i, s in enumerate(e.recipe.stages)]
    lines = [f"{e.recipe.name}: {e.recipe.description}", "", "Stages"]
    lines += [f"  {number} {name} ({kind}): {text}" for number, name, kind, text in stages]
    model = f"\nModel: {e.shape.name}, {e.shape.parameters / 1e9:,.3f} billion parameters\n"
    parts = [
        "\n".join(lines),
        model,
        _load_table(e),
        _learning(e),
        _memory_tables(e),
        _layout(e),
        _ranks(e),
        _assumption_table(e),
    ]
    return "\n".join(part for part in parts if part)


def _describe(stage: Any) -> str:
    match stage:
        case CurateStage():
            return f"at most {stage.count:,} problems of {' and '.join(stage.sources)}, {stage.held_out:,} held out"
        case SftStage():
            demonstrations = stage.steps * stage.batch_size
            return f"{stage.steps:,} steps of {stage.batch_size} demonstrations, {demonstrations:,} in all"
        case RlStage():
            hard = ", hard problems only" if stage.hard_subset else ""
            mode = (
                f"; asynchronous: rollouts begin up to {stage.staleness} steps early, weighed by TIS up to "
                f"{stage.loss_terms[LossTerm.TIS]:g}"
                if stage.staleness
                else "; synchronous"
            )
            return (
                f"{stage.steps:,} steps of {stage.prompts_per_step} prompts x {stage.oversample} rollouts, "
                f"{stage.group_size} kept ({stage.resample.value}), {stage.sampling.max_response_tokens:,} tokens, "
                f"{stage.sampling.max_turns} turns, learning rate {stage.learning_rate:g}{hard}{mode}"
            )
    return f"{len(stage.checkpoints)} checkpoints on {stage.benchmark}, {stage.k} samples a problem"


def _load_table(e: Explanation) -> str:
    rows = [[f"{load.stage}: {load.occasion}", f"{load.times:,}", *_figures(load)] for load in e.loads]
    total = Load("", "", 1, *(sum(load.times * getattr(load, name) for load in e.loads) for name in _SUMMED))
    if e.loads:
        rows.append(["in all", "", *_figures(total)])
    headers = ["sampling", "times", "rollouts", "response tokens", "policy tokens", "tool calls", "trajectories"]
    return format_table("Sampling, each time", headers, rows)


def _figures(load: Load) -> list[str]:
    counts = (load.rollouts, load.tokens, load.policy_tokens, load.calls)
    return [*(f"{round(value):,}" for value in counts), _size(load.stored_bytes)]


def _learning(e: Explanation) -> str:
    rows = []
    for stage in e.recipe.stages:
        if isinstance(stage, RlStage):
            kept = stage.prompts_per_step * stage.group_size
            tokens = kept * e.assumptions.response_share * stage.sampling.max_response_tokens
            updates = ceil(kept / (stage.mini_batch or kept))
            learned = tokens * (1 - e.assumptions.tool_share)
            rows.append([stage.name, f"{stage.steps:,}", f"{kept:,}", f"{round(learned):,}", f"{updates:,}"])
    headers = ["learning", "steps", "kept rollouts", "their policy tokens", "updates"]
    return format_table("Learning, each step, when no group is dropped", headers, rows)


def _memory_tables(e: Explanation) -> str:
    m, recipe = e.memory, e.recipe
    learner: list[tuple[str, float]] = [
        ("weights, fp32", m.weights),
        ("weights of the layers at work, bf16", m.gathered),
        ("gradients, fp32", m.gradients),
        ("gradient of the micro-batches so far, whole, fp32", m.whole_gradients),
        ("optimizer (AdamW, two moments, fp32)", m.optimizer),
        ("activations of a micro-batch", m.activations),
    ]
    if not recipe.gpus:
        engine = [("the engine's copy of the weights, fp32", m.engine_weights), ("KV cache", m.kv_cache)]
        kept = m.engine_weights + m.kv_cache
        rows = [*learner, *engine, ("while learning", m.learner + kept)]
        rows.append(("while sampling", m.weights + m.optimizer + kept))  # no gradient, no activation
        return _size_table("Memory of the trainer's process", rows)
    size = f"{e.assumptions.gpu_memory_gb:g} GB"
    engine = [("weights, bf16", m.engine_weights), ("KV cache", m.kv_cache)]
    others = recipe.gpus - recipe.ranks
    return "\n".join(
        [
            _size_table(
                f"Memory of each of the learner's GPUs, {recipe.ranks} of {size}", [*learner, _add_up(learner)]
            ),
            _size_table(f"Memory of each of the engines' GPUs, {others} of {size}", [*engine, _add_up(engine)]),
        ]
    )


def _add_up(rows: Sequence[tuple[str, float]]) -> tuple[str, float]:
    return "in all", sum(size for _, size in rows)


def _size_table(title: str, rows: Sequence[tuple[str, float]]) -> str:
    return format_table(title, ["part", "size"], [[name, _size(size)] for name, size in rows if size])


def _layout(e: Explanation) -> str:
    layout = e.layout
    if not layout.engines:
        return (
            f"Engine: inside the trainer's process, over the learner's own weights; {layout.full_rollouts} rollouts at "
            f"once, {layout.longest:,} tokens each at most\n"
        )
    in_flight = layout.engines * layout.full_rollouts
    most = max((load.rollouts for load in e.loads if load.occasion == STEP), default=0)
    return (
        f"Engines: {layout.engines} of {layout.tensor_parallel} GPU{'s' * (layout.tensor_parallel > 1)} each (tensor "
        f"parallel {layout.tensor_parallel}), beside the learner's; a KV cache of "
        f"{layout.kv_tokens:,} tokens an engine holds {layout.full_rollouts:,} rollouts of {layout.longest:,} tokens, "
        f"{in_flight:,} in all: {ceil(most / max(1, in_flight))} waves for the {most:,} rollouts of a step if all were "
        "that long\n"
    )


def _ranks(e: Explanation) -> str:
    ranks = e.recipe.ranks
    if e.recipe.gpus:
        return (
            f"Learner: {ranks} rank{'s' * (ranks > 1)}, each a Ray actor on its own GPU with 1/{ranks} of weights, "
            "gradients and optimizer; beside the first one a process that sends the weights to the engines "
            f"has {_size(2 * BF16 * e.shape.parameters)} of its node's memory: the published version and the next one\n"
        )
    if ranks == 1:
        return ""
    return (
        f"Learner: {ranks} ranks, each a Ray actor with 1/{ranks} of weights, gradients and optimizer; the trainer's "
        "process holds one more copy of the weights, which the engines are given\n"
    )


def _assumption_table(e: Explanation) -> str:
    values = [
        (f.name, getattr(e.assumptions, f.name), f.metadata["why"])
        for f in fields(Assumptions)
        if e.recipe.gpus or not f.metadata["only_gpus"]
    ]
    width = max(len(f"{name} = {value:g}") for name, value, _ in values)
    lines = [f"  {f'{name} = {value:g}'.ljust(width)}  {why}" for name, value, why in values]
    return "\n".join(["Assumptions (change one with --assume NAME=VALUE)", *lines, ""])


def _size(count: float) -> str:
    for name in ("B", "kB", "MB", "GB"):
        if count < 1000:
            return f"{count:.0f} B" if name == "B" else f"{count:.2f} {name}"
        count /= 1000
    return f"{count:.2f} TB"
