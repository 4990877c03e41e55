"""The pretraining loop: whole documents, batched by length, cosine learning rate, one model file out."""

import logging
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional
from transformers import GenerationConfig, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from trainer.pretrain.corpus import draw_document
from trainer.pretrain.tokenizer import MAX_POSITIONS

logger = logging.getLogger(__name__)

_POOL_DOCUMENTS = 256
_CONTEXT_WEIGHT = 0.1  # problems and tool responses: the model has to read them, hardly to write them
_IGNORED = -100


@dataclass(frozen=True)
class PretrainSettings:
    seed: int = 1
    steps: int = 3600
    batch_tokens: int = 4096
    learning_rate: float = 3e-3
    final_learning_rate: float = 1e-4
    warmup_steps: int = 60
    weight_decay: float = 0.05
    clip_norm: float = 1.0
    save_every: int = 300


@dataclass(frozen=True)
class Batch:
    token_ids: Tensor
    weights: Tensor  # of predicting each token; 0 on padding and on the first token


def build_model(tokenizer: PreTrainedTokenizerFast, seed: int) -> Qwen3ForCausalLM:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=128,
        intermediate_size=384,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=MAX_POSITIONS,
        rope_parameters={"rope_type": "default", "rope_theta": 10_000.0},
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    model = Qwen3ForCausalLM(config)
    model.generation_config = GenerationConfig(
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        do_sample=True,
    )
    return model


def train(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, settings: PretrainSettings, out: Path
) -> list[float]:
    """Train in place, saving now and then; the loss of each step comes back."""
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=settings.learning_rate, betas=(0.9, 0.95), weight_decay=settings.weight_decay
    )
    batches = _batches(tokenizer, settings)
    losses: list[float] = []
    started = time.monotonic()
    model.train()
    for step in range(1, settings.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(settings, step)
        loss = weighted_loss(model, next(batches))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), settings.clip_norm)
        optimizer.step()
        losses.append(loss.item())
        if step % 50 == 0:
            mean = sum(losses[-50:]) / 50
            logger.info("step %d loss %.4f after %.0f s", step, mean, time.monotonic() - started)
        if step % settings.save_every == 0 or step == settings.steps:
            model.save_pretrained(out)
    model.eval()
    return losses


def learning_rate(settings: PretrainSettings, step: int) -> float:
    """Linear warm-up, then half a cosine down to the final rate."""
    if step <= settings.warmup_steps:
        return settings.learning_rate * step / settings.warmup_steps
    done = (step - settings.warmup_steps) / max(1, settings.steps - settings.warmup_steps)
    span = settings.learning_rate - settings.final_learning_rate
    return settings.final_learning_rate + span * (1 + math.cos(math.pi * done)) / 2


def weighted_loss(model: Qwen3ForCausalLM, batch: Batch) -> Tensor:
    """Cross-entropy of the next token, averaged with the weights."""
    logits = model(input_ids=batch.token_ids, use_cache=False).logits[:, :-1]
    losses = functional.cross_entropy(logits.flatten(0, 1), batch.token_ids[:, 1:].flatten(), reduction="none")
    weights = batch.weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()


def _batches(tokenizer: PreTrainedTokenizerFast, settings: PretrainSettings) -> Iterator[Batch]:
    """Documents of about equal length share a batch, so that little of it is padding."""
    rng = random.Random(f"pretrain-{settings.seed}")  # noqa: S311
    taken = 0
    while True:
        progress = taken / settings.steps
        pool = [_encode(tokenizer, rng, progress) for _ in range(_POOL_DOCUMENTS)]
        pool.sort(key=lambda document: len(document[0]))
        groups: list[list[tuple[list[int], list[float]]]] = [[]]
        for document in pool:
            if (len(groups[-1]) + 1) * len(document[0]) > settings.batch_tokens:
                groups.append([])
            groups[-1].append(document)
        rng.shuffle(groups)
        for group in groups:
            taken += 1
            yield _pad(group, tokenizer.pad_token_id)


def _encode(tokenizer: PreTrainedTokenizerFast, rng: random.Random, progress: float) -> tuple[list[int], list[float]]:
    """Token ids and weights of one document; pieces are encoded apart, as a rollout does."""
    ids: list[int] = []
    weights: list[float] = []
    for text, full_weight in draw_document(rng, progress):
        piece = tokenizer.backend_tokenizer.encode(text, add_special_tokens=False).ids
        ids += piece
        weights += [1.0 if full_weight else _CONTEXT_WEIGHT] * len(piece)
    return ids, weights


def _pad(documents: list[tuple[list[int], list[float]]], pad_id: int) -> Batch:
    width = max(len(ids) for ids, _ in documents)
    token_ids = torch.full((len(documents), width), pad_id, dtype=torch.long)
    weights = torch.zeros(len(documents), width)
    for row, (ids, weight) in enumerate(documents):
        token_ids[row, : len(ids)] = torch.tensor(ids)
        weights[row, : len(ids)] = torch.tensor(weight)
    return Batch(token_ids, weights)
