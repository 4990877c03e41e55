"""The trained model: loading and saving in transformers format, and scoring tokens in micro-batches."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaForCausalLM, Qwen3ForCausalLM

from trainer.algorithm.logprobs import TokenScores, score_tokens
from trainer.algorithm.packing import Row, pad_rows, split_micro_batches

MICRO_BATCH_TOKENS = 2048  # activations of a micro-batch stay in the cache: a third less CPU time than 8192
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


def save_model(model: Qwen3ForCausalLM, folder: Path, source: Path) -> None:
    """Weights and config into `folder`, with the tokenizer files of `source` beside them."""
    model.save_pretrained(folder)
    for name in _TOKENIZER_FILES:
        if (source / name).is_file() and not (folder / name).exists():
            shutil.copyfile(source / name, folder / name)


def load_weights(model: Qwen3ForCausalLM, folder: Path) -> None:
    """The weights of a checkpoint into a model that exists, in place (the engine shares them)."""
    loaded = load_model(folder)
    model.load_state_dict(loaded.state_dict())


@dataclass(frozen=True, slots=True)
class ScoredPart:
    """One micro-batch: positions into the rows given, their trained token counts, and the scores."""

    positions: list[int]
    lengths: list[int]
    scores: TokenScores

    def spread(self, values: Sequence[float]) -> Tensor:
        """One value per row (of all rows) on each of its tokens here: (tokens,)."""
        own = torch.tensor([values[i] for i in self.positions])
        return own.repeat_interleave(torch.tensor(self.lengths))


def score_rows(
    model: Qwen3ForCausalLM, rows: Sequence[Row], *, temperature: float = 1.0, token_budget: int = MICRO_BATCH_TOKENS
) -> Iterator[ScoredPart]:
    """Scores of the trained tokens, micro-batch by micro-batch; with gradients where they are enabled."""
    lengths = [len(row.prompt_ids) + len(row.response_ids) for row in rows]
    for positions in split_micro_batches(lengths, token_budget):
        batch = pad_rows([rows[i] for i in positions], pad_id=0)
        states = model.model(input_ids=batch.ids, use_cache=False).last_hidden_state
        hidden = states.reshape(-1, states.shape[-1])[batch.sources]
        scores = score_tokens(hidden, model.lm_head.weight, batch.targets, temperature)
        yield ScoredPart(positions, [sum(rows[i].mask) for i in positions], scores)


@torch.no_grad()
def compute_logprobs(model: Qwen3ForCausalLM, rows: Sequence[Row], temperature: float) -> list[Tensor]:
    """Log-probabilities of each row's trained tokens, in the order of the rows."""
    found: dict[int, Tensor] = {}
    for part in score_rows(model, rows, temperature=temperature):
        for i, logprobs in zip(part.positions, part.scores.logprobs.split(part.lengths), strict=True):
            found[i] = logprobs
    return [found[i] for i in range(len(rows))]
