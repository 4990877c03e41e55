"""The trained model: loading and saving in transformers format, and scoring tokens in micro-batches."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict, set_model_state_dict
from torch.distributed.fsdp import FSDPModule
from transformers import AutoConfig, AutoModelForCausalLM, LlamaForCausalLM, PretrainedConfig, Qwen3ForCausalLM

from trainer.algorithm.logprobs import TokenScores
from trainer.algorithm.packing import Row, balance_rows, pack_rows, split_micro_batches
from trainer.policy.packed import score_packed
from trainer.policy.parallel import bind, ranks_of

MICRO_BATCH_TOKENS = 2048  # activations of a micro-batch stay in the cache: a third less CPU time than 8192
GPU_MICRO_BATCH_TOKENS = 20_480  # of a rank on a GPU (rStar2-Agent's released script); never measured here
_TOKENIZER_FILES = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "chat_template.jinja",
    "vocab.json",
    "merges.txt",
    "generation_config.json",
)


class ModelError(Exception):
    """The model folder cannot be used; the message names it and says why."""


def load_model(folder: Path) -> Qwen3ForCausalLM:
    """fp32 on the CPU, in evaluation mode (no dropout: the first update's ratio is exactly 1).

    A Llama is typed as a Qwen3 too: what is read of either is the same, but for the norms of queries and keys.
    """
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} is no model folder: it has no config.json")
    try:
        model = AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, attn_implementation="sdpa", local_files_only=True
        )
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(f"{folder} cannot be loaded as a model: {error}") from error
    if not isinstance(model, Qwen3ForCausalLM | LlamaForCausalLM):
        raise ModelError(f"{folder} holds a {type(model).__name__}; the embedded engine runs Qwen3 and Llama models")
    return cast(Qwen3ForCausalLM, model.eval())


def read_config(folder: Path) -> PretrainedConfig:
    """Of a model whose weights this process does not need."""
    if not (folder / "config.json").is_file():
        raise ModelError(f"{folder} is no model folder: it has no config.json")
    return AutoConfig.from_pretrained(folder, local_files_only=True)


def save_model(model: Qwen3ForCausalLM, folder: Path, source: Path) -> None:
    """Weights and config into `folder`, with the tokenizer files of `source` beside them.

    Ranks that share the model call it together; the first one gathers the weights and writes.
    """
    if not isinstance(model, FSDPModule):
        model.save_pretrained(folder)
    elif weights := get_model_state_dict(model, options=StateDictOptions(full_state_dict=True, cpu_offload=True)):
        model.save_pretrained(folder, state_dict=weights)
    for name in _TOKENIZER_FILES if ranks_of(model).rank == 0 else ():
        if (source / name).is_file() and not (folder / name).exists():
            shutil.copyfile(source / name, folder / name)


def load_weights(model: Qwen3ForCausalLM, folder: Path) -> None:
    """The weights of a checkpoint into a model that exists, in place (the engine shares them)."""
    if not isinstance(model, FSDPModule):
        model.load_state_dict(load_model(folder).state_dict())
        return
    weights = load_model(folder).state_dict() if ranks_of(model).rank == 0 else {}
    set_model_state_dict(model, weights, options=StateDictOptions(full_state_dict=True, broadcast_from_rank0=True))


@dataclass(frozen=True, slots=True)
class ScoredPart:
    """One micro-batch: positions into the rows given, their trained token counts, and the scores."""

    positions: list[int]
    lengths: list[int]
    scores: TokenScores


def score_rows(
    model: Qwen3ForCausalLM, rows: Sequence[Row], *, temperature: float = 1.0, token_budget: int | None = None
) -> Iterator[ScoredPart]:
    """Scores of the trained tokens, micro-batch by micro-batch; with gradients where they are enabled."""
    for positions in plan_micro_batches(model, rows, token_budget):
        yield score_part(model, rows, positions, temperature)


def plan_micro_batches(
    model: Qwen3ForCausalLM, rows: Sequence[Row], token_budget: int | None = None
) -> list[list[int]]:
    """Positions into `rows`, by default in batches of the device's usual size. Ranks that share a model get equally
    many, some of them empty: each pass is collective."""
    ranks = ranks_of(model)
    usual = GPU_MICRO_BATCH_TOKENS if ranks.device.type == "cuda" else MICRO_BATCH_TOKENS
    batches = split_micro_batches([row.length for row in rows], token_budget or usual)
    count = int(ranks.largest(len(batches)))
    return batches + [[] for _ in range(count - len(batches))]


def score_part(
    model: Qwen3ForCausalLM, rows: Sequence[Row], positions: list[int], temperature: float = 1.0
) -> ScoredPart:
    """One micro-batch."""
    batch = pack_rows([rows[i] for i in positions])
    logprobs, entropies = bind(score_packed, model)(batch, temperature)
    return ScoredPart(positions, [sum(rows[i].mask) for i in positions], TokenScores(logprobs, entropies))


@torch.no_grad()
def compute_scores(model: Qwen3ForCausalLM, rows: Sequence[Row], temperature: float) -> list[TokenScores]:
    """Of each row's trained tokens, in the order of the rows and on the CPU. Ranks that share the model share the
    work, and each gets all."""
    ranks = ranks_of(model)
    own = balance_rows([row.length for row in rows], ranks.size, model.config.hidden_size)[ranks.rank]
    counts = [sum(row.mask) for row in rows]
    found = torch.zeros(2, sum(counts))
    places = found.split(counts, dim=1)
    for part in score_rows(model, [rows[i] for i in own], temperature=temperature):
        both = torch.stack([part.scores.logprobs, part.scores.entropies]).float().cpu()
        for i, scores in zip(part.positions, both.split(part.lengths, dim=1), strict=True):
            places[own[i]].copy_(scores)
    return [TokenScores(*scores) for scores in ranks.add(found).split(counts, dim=1)]


def compute_logprobs(model: Qwen3ForCausalLM, rows: Sequence[Row], temperature: float) -> list[Tensor]:
    """Log-probabilities of each row's trained tokens, in the order of the rows."""
    return [scores.logprobs for scores in compute_scores(model, rows, temperature)]
