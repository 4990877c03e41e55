"""The model over packed rows: linear layers on all tokens, attention within each row, the head on trained tokens.

On GPUs in half precision attention is torch's flash kernel for rows of different lengths; elsewhere one causal
SDPA call a row (docs/decisions/learner.md has the measurements).
"""

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from torch.nn.functional import scaled_dot_product_attention
from transformers import Qwen3ForCausalLM
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, sdpa_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from trainer.algorithm.logprobs import LossOf, apply_loss, score_tokens
from trainer.algorithm.packing import PackedBatch

PACKED = "packed"  # its name in transformers; without row lengths it is sdpa
_NO_MASK = torch.ones(1, 1, 1, 1, dtype=torch.bool)  # of four dimensions: transformers makes none of its own


def score_packed(model: Qwen3ForCausalLM, batch: PackedBatch, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of the trained tokens, (trained,) each, nats, with a graph where enabled."""
    scores = score_tokens(*_read(model, batch), temperature)
    return scores.logprobs, scores.entropies


def lose_packed(
    model: Qwen3ForCausalLM, batch: PackedBatch, temperature: float, loss_of: LossOf
) -> tuple[Tensor, Tensor, Tensor]:
    """A loss over the trained tokens with its graph, and their scores without one: see `apply_loss`."""
    loss, scores = apply_loss(*_read(model, batch), temperature, loss_of)
    return loss, scores.logprobs, scores.entropies


def _read(model: Qwen3ForCausalLM, batch: PackedBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Hidden states that predict the trained tokens (trained, width), the head, and those tokens."""
    model.config._attn_implementation = PACKED
    device = model.model.embed_tokens.weight.device
    states = model.model(
        input_ids=batch.ids[None].to(device),
        position_ids=batch.positions[None].to(device),
        attention_mask=_NO_MASK,
        use_cache=False,
        row_lengths=batch.lengths,
    ).last_hidden_state[0]
    return states[batch.sources.to(device)], model.lm_head.weight, batch.targets.to(device)


def packed_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    row_lengths: Sequence[int] | None = None,
    scaling: float | None = None,
    **others: Any,
) -> tuple[Tensor, None]:
    """Causal attention within each row of one packed sequence: (1, heads, tokens, size) to (1, tokens, heads, size)."""
    if row_lengths is None:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **others)
    if query.is_cuda and query.dtype in (torch.bfloat16, torch.float16):
        return _flash_attention(query, key, value, row_lengths, scaling), None
    is_grouped = query.shape[1] != key.shape[1]
    attended = [
        scaled_dot_product_attention(q, k, v, is_causal=True, scale=scaling, enable_gqa=is_grouped)
        for q, k, v in zip(*(states.split(list(row_lengths), dim=2) for states in (query, key, value)), strict=True)
    ]
    return torch.cat(attended, dim=2).transpose(1, 2).contiguous(), None


def _flash_attention(
    query: Tensor, key: Tensor, value: Tensor, row_lengths: Sequence[int], scaling: float | None
) -> Tensor:
    ends = torch.tensor([0, *row_lengths], dtype=torch.int32, device=query.device).cumsum(0, dtype=torch.int32)
    longest = max(row_lengths)
    q, k, v = (states[0].transpose(0, 1) for states in (query, key, value))
    attended = varlen_attn(
        q, k, v, ends, ends, longest, longest, scale=scaling, window_size=(-1, 0), enable_gqa=q.shape[1] != k.shape[1]
    )
    return cast(Tensor, attended)[None]


ALL_ATTENTION_FUNCTIONS.register(PACKED, packed_attention)
ALL_MASK_ATTENTION_FUNCTIONS.register(PACKED, sdpa_mask)
