"""What a recipe would need, without running it: rollouts, tokens, tool calls, bytes, memory, the engine's layout.

Every number is arithmetic on the recipe, the model's shape and the named assumptions that are printed with it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any, TypeGuard

from contracts.recipe import AnyStage, CurateStage, EvaluateStage, Recipe, RlStage, Sampling
from trainer.algorithm.logprobs import CHUNK_LOGITS
from trainer.analysis.shard import read_report
from trainer.hard_subset import SCREEN_FACTOR
from trainer.open_engine import MAX_BATCH
from trainer.pipeline import MAX_PROMPT_TOKENS
from trainer.policy.model import GPU_MICRO_BATCH_TOKENS, MICRO_BATCH_TOKENS
from trainer.rl import EVALUATION_SAMPLES
from trainer.rollout.remote import MEMORY_SHARE

FP32, BF16 = 4, 2
LOGITS = 3 * CHUNK_LOGITS  # values alive at once in the loss: log-probabilities, probabilities, what is made of them
STEP, SCREENING = "a step", "screening, at most"


class AssumptionError(Exception):
    """Something that has to be known or assumed is missing or unusable; the message says what to give."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A decoder of the Qwen3 or Llama kind, as its config.json describes it."""

    name: str
    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocabulary: int
    tied: bool

    @property
    def layer_parameters(self) -> int:
        """Attention (q, k, v, o and the norms of q and k), gated MLP, two norms."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads) + 2 * self.head_dim
        return attention + 3 * self.hidden * self.intermediate + 2 * self.hidden

    @property
    def outer_parameters(self) -> int:
        """Embedding, head (one matrix when tied) and the last norm."""
        return (1 if self.tied else 2) * self.vocabulary * self.hidden + self.hidden

    @property
    def parameters(self) -> int:
        return self.layers * self.layer_parameters + self.outer_parameters

    @property
    def kv_values(self) -> int:
        """Keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_dim

    @property
    def layer_activations(self) -> int:
        """Values a token leaves in one layer for its backward pass, attention scores never stored: residual and
        normed input of attention and MLP; q, k, v and what attention returns; gate, up, activation, product."""
        return 4 * self.hidden + (2 * self.heads + 2 * self.kv_heads) * self.head_dim + 4 * self.intermediate


QWEN3_14B = Shape("Qwen3-14B", 40, 5120, 17408, 40, 8, 128, 151_936, tied=False)
SMOLLM2_135M = Shape("SmolLM2-135M", 30, 576, 1536, 9, 3, 64, 49_152, tied=True)
KNOWN_SHAPES = {"qwen3-14b": QWEN3_14B, "smollm2": SMOLLM2_135M}  # by a part of the model's path


def _assume(value: float, why: str, *, only_gpus: bool = False) -> Any:
    return field(default=value, metadata={"why": why, "only_gpus": only_gpus})


@dataclass(frozen=True, slots=True)
class Assumptions:
    """What neither recipe nor model says. `why` of each field is printed; `--assume NAME=VALUE` changes it."""

    response_share: float = _assume(
        0.41, "mean response / its limit; the paper's stages grow 1K-4K of 8K, 4K-6K and 6K-8K of 12K (4.3, Fig. 8)"
    )
    mean_turns: float = _assume(3.75, "assistant turns, at most the recipe's; 45K calls of 16,384 rollouts (3.1)")
    tool_share: float = _assume(0.1, "of response tokens that are tool responses, which no policy sampled")
    prompt_tokens: float = _assume(400, "system prompt, tool schema and problem")
    bytes_per_token: float = _assume(
        13.6,
        "of a shard, a response token; 162,477 / 11,980 in a smoke run's four steps, --shard FILE measures another",
    )
    benchmark_problems: float = _assume(30, "of an evaluation on a file, which is not opened here (AIME24 has 30)")
    micro_batch_tokens: float = _assume(
        GPU_MICRO_BATCH_TOKENS, "of a rank, never less than the longest row (released script)", only_gpus=True
    )
    gpu_memory_gb: float = _assume(192, "of one GPU, in 10^9 bytes: MI300X (3)", only_gpus=True)
    engine_memory_share: float = _assume(
        MEMORY_SHARE, "of an engine's own GPUs for weights and KV cache, as the trainer sets it", only_gpus=True
    )


def read_assumptions(given: Sequence[str], shard: Path | None) -> Assumptions:
    """Defaults, then what the shard measures, then NAME=VALUE. AssumptionError for a name or value of no use."""
    assumptions = Assumptions()
    if shard is not None:
        assumptions = replace(assumptions, bytes_per_token=read_report(shard, 1).bytes_per_token)
    known = [f.name for f in fields(Assumptions)]
    for item in given:
        name, _, text = item.partition("=")
        try:
            value = float(text)
        except ValueError:
            value = -1.0
        if name not in known:
            raise AssumptionError(f"--assume {item}: there is no assumption {name!r}, only {', '.join(known)}")
        if not 0 < value < 1e12:
            raise AssumptionError(f"--assume {item}: expected a number above 0")
        assumptions = replace(assumptions, **{name: value})
    return assumptions


def read_shape(model: str, project: Path, config: Path | None) -> Shape:
    """From the config.json given, else of the model's folder where it ships, else what is known by its name."""
    shipped = project / model / "config.json"
    path = config or (shipped if model.startswith("models/") and shipped.is_file() else None)
    if path is None:
        if found := [shape for part, shape in KNOWN_SHAPES.items() if part in model.lower()]:
            return found[0]
        raise AssumptionError(f"the model {model!r} is not here, so its shape is not known: give --config config.json")
    try:
        values = json.loads(path.read_text())
        return Shape(
            name=model,
            layers=int(values["num_hidden_layers"]),
            hidden=int(values["hidden_size"]),
            intermediate=int(values["intermediate_size"]),
            heads=int(values["num_attention_heads"]),
            kv_heads=int(values["num_key_value_heads"]),
            head_dim=int(values.get("head_dim") or values["hidden_size"] // values["num_attention_heads"]),
            vocabulary=int(values["vocab_size"]),
            tied=bool(values.get("tie_word_embeddings", False)),
        )
    except (OSError, ValueError, TypeError, AttributeError) as error:
        raise AssumptionError(f"{path}: no model's config.json: {error}") from error
    except KeyError as error:
        raise AssumptionError(f"{path}: no config.json of a decoder: it has no {error}") from error


@dataclass(frozen=True, slots=True)
class Load:
    """Rollouts of one occasion. The figures are of one time (a step, a checkpoint, a screening)."""

    stage: str
    occasion: str
    times: int
    rollouts: int
    tokens: float
    policy_tokens: float
    calls: float
    stored_bytes: float


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes. With GPUs: what the learner has on each of its own, and an engine on each of its own; else all of it in
    the trainer's process."""

    weights: float
    gathered: float
    gradients: float
    whole_gradients: float
    optimizer: float
    activations: float
    engine_weights: float
    kv_cache: float

    @property
    def learner(self) -> float:
        """While it learns."""
        parts = (self.weights, self.gathered, self.gradients, self.whole_gradients, self.optimizer, self.activations)
        return sum(parts)


@dataclass(frozen=True, slots=True)
class Layout:
    """Engines of `tensor_parallel` GPUs each, beside those of the ranks; 0 engines: the one in the driver's process.

    `full_rollouts`: rollouts of full length whose keys and values fit one engine at once."""

    engines: int
    tensor_parallel: int
    kv_tokens: int
    full_rollouts: int
    longest: int


@dataclass(frozen=True, slots=True)
class Explanation:
    recipe: Recipe
    shape: Shape
    assumptions: Assumptions
    loads: list[Load]
    memory: Memory
    layout: Layout


def explain(recipe: Recipe, shape: Shape, assumptions: Assumptions) -> Explanation:
    """All numbers. AssumptionError where engine or learner does not fit its GPUs."""
    longest = longest_row(recipe, assumptions)
    memory, layout = _on_gpus(recipe, shape, assumptions, longest) if recipe.gpus else _on_cpu(recipe, shape)
    return Explanation(recipe, shape, assumptions, list(find_loads(recipe, assumptions)), memory, layout)


def find_loads(recipe: Recipe, assumptions: Assumptions) -> Iterator[Load]:
    """In the order of the stages; a stage that samples nothing has none."""
    problems = held_out = 0
    for stage in recipe.stages:
        if isinstance(stage, CurateStage):
            problems, held_out = max(0, stage.count - stage.held_out), stage.held_out
            if (screening := stage.parsed_checks.screening) is not None:
                load = _load(stage, SCREENING, 1, stage.count * screening.samples, assumptions)
                yield replace(load, stored_bytes=0.0)  # a curation keeps the counts, not the trajectories
        elif isinstance(stage, RlStage):
            yield from _rl_loads(stage, problems, held_out, assumptions)
        elif isinstance(stage, EvaluateStage):
            count = held_out if stage.benchmark == "held_out" else int(assumptions.benchmark_problems)
            count = min(count, stage.problems) if stage.problems else count
            yield _load(stage, "a checkpoint", len(stage.checkpoints), count * stage.k, assumptions)


def _rl_loads(stage: RlStage, problems: int, held_out: int, assumptions: Assumptions) -> Iterator[Load]:
    if stage.hard_subset:
        needed = min(problems, stage.steps * stage.prompts_per_step)
        screened = min(problems, SCREEN_FACTOR * needed)
        yield _load(stage, SCREENING, 1, screened * stage.hard_subset, assumptions)
    yield _load(stage, STEP, stage.steps, stage.prompts_per_step * stage.oversample, assumptions)
    if stage.evaluate_every and held_out:
        rollouts = min(held_out, stage.evaluate_problems) * EVALUATION_SAMPLES
        yield _load(stage, "an evaluation", stage.steps // stage.evaluate_every, rollouts, assumptions)


def _load(
    stage: CurateStage | RlStage | EvaluateStage, occasion: str, times: int, rollouts: int, assumptions: Assumptions
) -> Load:
    sampling: Sampling = stage.sampling
    tokens = rollouts * assumptions.response_share * sampling.max_response_tokens
    turns = min(sampling.max_turns, assumptions.mean_turns)
    return Load(
        stage=stage.name,
        occasion=occasion,
        times=times,
        rollouts=rollouts,
        tokens=tokens,
        policy_tokens=tokens * (1 - assumptions.tool_share),
        calls=rollouts * (turns - 1),  # the last turn answers
        stored_bytes=tokens * assumptions.bytes_per_token,
    )


def longest_row(recipe: Recipe, assumptions: Assumptions) -> int:
    """Tokens of the longest prompt with response of the RL stages; of the evaluations where there are none."""
    by_kind = [
        [s.sampling.max_response_tokens for s in recipe.stages if isinstance(s, kind)]
        for kind in (RlStage, EvaluateStage)
    ]
    return max(by_kind[0] or by_kind[1], default=0) + max(1, int(assumptions.prompt_tokens))


def _screens(stage: AnyStage) -> TypeGuard[CurateStage]:
    return isinstance(stage, CurateStage) and stage.parsed_checks.screening is not None


def _on_gpus(recipe: Recipe, shape: Shape, assumptions: Assumptions, longest: int) -> tuple[Memory, Layout]:
    """The layout that the trainer runs: a rank a GPU, the others for the engines. The learner: FSDP2 over its ranks,
    fp32 master weights, gradients and AdamW state, bf16 compute, every layer recomputed; the gradient of the
    micro-batches so far is whole on each rank until the update's last one. The engine: bf16."""
    ranks, parallel, parameters = recipe.ranks, recipe.workers_per_engine, shape.parameters
    tokens = max(int(assumptions.micro_batch_tokens), longest)
    engine_bytes = assumptions.engine_memory_share * assumptions.gpu_memory_gb * 1e9
    engine_weights = BF16 * parameters / parallel
    memory = Memory(
        weights=FP32 * parameters / ranks,
        gathered=BF16 * (2 * shape.layer_parameters + shape.outer_parameters),  # a layer at work, the next on its way
        gradients=FP32 * parameters / ranks,
        whole_gradients=FP32 * parameters,
        optimizer=2 * FP32 * parameters / ranks,
        activations=BF16 * tokens * (shape.layers * shape.hidden + shape.layer_activations) + FP32 * LOGITS,
        engine_weights=engine_weights,
        kv_cache=engine_bytes - engine_weights,
    )
    _require_room(recipe, memory, assumptions)
    kv_tokens = int(memory.kv_cache * parallel / (BF16 * shape.kv_values))
    if kv_tokens < longest:
        raise AssumptionError(
            f"the KV cache of an engine of {parallel} GPUs holds {kv_tokens:,} tokens and a rollout has up to "
            f"{longest:,}: fewer engines or more GPUs, so that each has more of them"
        )
    return memory, Layout(recipe.engines, parallel, kv_tokens, kv_tokens // longest, longest)


def _require_room(recipe: Recipe, memory: Memory, assumptions: Assumptions) -> None:
    """AssumptionError where weights do not fit."""
    if memory.kv_cache <= 0:
        raise AssumptionError(
            f"{memory.engine_weights / 1e9:,.1f} GB of weights on each of an engine's {recipe.workers_per_engine} GPUs "
            f"do not fit the {assumptions.engine_memory_share:g} of {assumptions.gpu_memory_gb:g} GB that it has of "
            "it: fewer engines or more GPUs, so that each has more of them"
        )
    if memory.learner > assumptions.gpu_memory_gb * 1e9:
        raise AssumptionError(
            f"a rank of the learner needs {memory.learner / 1e9:,.1f} GB of its GPU's {assumptions.gpu_memory_gb:g}, "
            f"{memory.whole_gradients / 1e9:,.1f} GB of them for a whole gradient, at ranks: {recipe.ranks}: more "
            "ranks, or a smaller micro-batch"
        )


def _on_cpu(recipe: Recipe, shape: Shape) -> tuple[Memory, Layout]:
    """Everything in one process, fp32; the engine has a packed copy of the weights. Nothing is recomputed."""
    sampling = [s for s in recipe.stages if isinstance(s, (RlStage, EvaluateStage)) or _screens(s)]
    longest = max((s.sampling.max_response_tokens for s in sampling), default=1024) + MAX_PROMPT_TOKENS
    tokens = max(MICRO_BATCH_TOKENS, longest)
    kv_tokens = MAX_BATCH * longest
    memory = Memory(
        weights=FP32 * shape.parameters,
        gathered=0,
        gradients=FP32 * shape.parameters,
        whole_gradients=0,
        optimizer=2 * FP32 * shape.parameters,
        activations=FP32 * tokens * shape.layers * shape.layer_activations + FP32 * LOGITS,
        engine_weights=FP32 * (shape.parameters + shape.tied * shape.vocabulary * shape.hidden),
        kv_cache=FP32 * shape.kv_values * kv_tokens,
    )
    return memory, Layout(0, 1, kv_tokens, MAX_BATCH, longest)
