"""One forward step of a Qwen3 or Llama over a slice of cache rows, written for many short rows on a CPU.

What is computed at a position depends on the tokens up to it and on nothing else, bit for bit: not on the other
rows, not on whether it was fed alone, with its prompt or after a tool's response. So a rollout is a function of
weights, prompt and seed (docs/decisions/resume.md says what makes it so and what it costs).

Reads the weights of the model live at each call (no copies), so an in-place optimizer update is seen at once.
Equal to transformers' forward within float32 rounding; `test_torch_engine` holds log-probabilities to 1e-5.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaForCausalLM, Qwen3ForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer, LlamaRMSNorm
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm

CHUNK = 128  # tokens of a row fed at once: bounds the attention scores of a long prompt
TILE = 16  # tokens are multiplied with the weights in whole tiles,
QUERIES = 4  # and queries with the keys in whole fours: products of fewer rows have kernels that sum in another order
KEY_BLOCK = 128  # values summed in one product: longer sums are split where their length says
VECTOR = 16  # floats: what is summed is padded with zeros to whole vectors

Layer = Qwen3DecoderLayer | LlamaDecoderLayer


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers of one step share. count = rows x tokens; n: count in whole tiles; Q: queries of a
    key-value head in whole fours; keys: the longest row, padded."""

    rows: int
    tokens: int
    keys: int
    cos: Tensor  # [count, 1, head_dim]
    sin: Tensor  # the same, its first half negated
    bias: Tensor  # [rows * kv_heads, Q, keys]: 0 or -inf
    slots: Tensor  # [count * 2 * kv_heads]: where keys and values go, counted in heads of the flat cache
    qkv: Tensor  # [n, heads + 2 * kv_heads, head_dim]
    queries: Tensor  # [rows * kv_heads, Q, head_dim]; its padding stays 0
    mixed: Tensor  # [n, heads * head_dim]; its padding stays 0


class Decode:
    """The weights of one model, float32 on the CPU, and the tables of its rotary embedding."""

    def __init__(self, model: Qwen3ForCausalLM | LlamaForCausalLM, max_context: int) -> None:
        config = model.config
        if getattr(config, "use_sliding_window", False):
            raise ValueError("the torch engine has no sliding-window attention")
        self.model = model
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.kv_heads = int(config.num_key_value_heads or config.num_attention_heads)
        self.head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        self.max_context = max_context
        self._key_counts = find_key_counts(self.head_dim)
        with torch.inference_mode():
            positions = torch.arange(max_context + 1)[None]
            cos, sin = model.model.rotary_emb(torch.zeros(1, 1, dtype=torch.float32), positions)
            self._cos, self._sin = cos[0].clone(), sin[0].clone()
            self._sin[:, : self.head_dim // 2].neg_()

    def new_cache(self, rows: int) -> Tensor:
        """Zeros [2, layers, rows, kv_heads, tokens, head_dim]; the last tokens are a bin for padding.

        Memory is taken row by row when one is first used: numpy's zeros are not written, torch's are.
        """
        tokens = self._pad_keys(self.max_context + 1)
        shape = (2, self.layers, rows, self.kv_heads, tokens, self.head_dim)
        return torch.from_numpy(np.zeros(shape, dtype=np.float32))

    @torch.inference_mode()
    def forward(self, cache: Tensor, ids: Tensor, starts: Tensor, counts: Tensor, first: int = 0) -> Tensor:
        """Logits [rows, vocabulary] after the last token of each row.

        cache: `new_cache`, of which the rows from `first` on are meant; ids [rows, tokens], right-padded;
        starts [rows]: tokens already in the cache; counts [rows]: tokens of `ids` that are real, at least 1.
        """
        rows, tokens = ids.shape
        last = torch.zeros(_whole_tiles(rows), self.model.config.hidden_size)
        for begin in range(0, tokens, CHUNK):
            chunk = ids[:, begin : begin + CHUNK]
            hidden = self._hidden(cache, chunk, starts + begin, counts - begin, first)
            ends = counts - 1 - begin
            ends_here = ((ends >= 0) & (ends < CHUNK)).nonzero()[:, 0]
            last[ends_here] = hidden[ends_here * chunk.shape[1] + ends[ends_here]]
        return F.linear(_rms(last, self.model.model.norm), self.model.lm_head.weight)[:rows]

    def _hidden(self, cache: Tensor, ids: Tensor, starts: Tensor, counts: Tensor, first: int) -> Tensor:
        """[n, width] after the last layer: the tokens of all rows, one list in whole tiles."""
        step = self._prepare(cache, ids, starts, counts, first)
        padded = F.pad(ids.reshape(-1), (0, step.mixed.shape[0] - ids.numel()))
        hidden = F.embedding(padded, self.model.model.embed_tokens.weight)
        heads = cache.view(-1, self.head_dim)
        rows = slice(first * self.kv_heads, (first + step.rows) * self.kv_heads)
        layer_heads = heads.shape[0] // (2 * self.layers)
        for index, layer in enumerate(self.model.model.layers):
            keys, values = (part.flatten(0, 1)[rows] for part in (cache[0, index], cache[1, index]))
            self._attend(layer, hidden, step, heads[index * layer_heads :], keys, values)
            _feed_forward(layer, hidden)
        return hidden

    def _prepare(self, cache: Tensor, ids: Tensor, starts: Tensor, counts: Tensor, first: int) -> _Step:
        rows, tokens = ids.shape
        group = self.heads // self.kv_heads
        n = _whole_tiles(rows * tokens)
        offsets = torch.arange(tokens)
        # Padding is written behind the context, where no query looks.
        slots = torch.where(offsets < counts[:, None], starts[:, None] + offsets, self.max_context)
        keys = self._pad_keys(int((starts + counts.clamp(max=tokens)).max()))
        queries = -(-group * tokens // QUERIES) * QUERIES
        bias = torch.zeros(rows, self.kv_heads, queries, keys)
        unseen = torch.arange(keys) > slots[:, :, None]
        by_group = bias[:, :, : group * tokens].view(rows, self.kv_heads, group, tokens, keys)
        by_group.masked_fill_(unseen[:, None, None], float("-inf"))
        row_heads = (torch.arange(first, first + rows)[:, None] * self.kv_heads + torch.arange(self.kv_heads))[:, None]
        to_keys = row_heads * cache.shape[4] + slots[:, :, None]
        half = cache.numel() // 2 // self.head_dim
        return _Step(
            rows=rows,
            tokens=tokens,
            keys=keys,
            cos=self._cos[slots.view(-1)][:, None],
            sin=self._sin[slots.view(-1)][:, None],
            bias=bias.view(rows * self.kv_heads, queries, keys),
            slots=torch.cat((to_keys, to_keys + half), dim=-1).view(-1),
            qkv=torch.zeros(n, self.heads + 2 * self.kv_heads, self.head_dim),
            queries=torch.zeros(rows * self.kv_heads, queries, self.head_dim),
            mixed=torch.zeros(n, self.heads * self.head_dim),
        )

    def _pad_keys(self, longest: int) -> int:
        """The next key count, of those that make no difference."""
        blocks, rest = divmod(longest, KEY_BLOCK)
        return blocks * KEY_BLOCK + (next(count for count in self._key_counts if count >= rest) if rest else 0)

    def _attend(self, layer: Layer, hidden: Tensor, step: _Step, heads: Tensor, keys: Tensor, values: Tensor) -> None:
        """Add what attention finds to `hidden`. heads: the flat cache from this layer's keys on; keys and
        values [rows * kv_heads, tokens of the cache, head_dim]."""
        attention = layer.self_attn
        rows, tokens, group = step.rows, step.tokens, self.heads // self.kv_heads
        count, rotated = rows * tokens, self.heads + self.kv_heads
        x = _rms(hidden, layer.input_layernorm)
        flat = step.qkv.view(step.qkv.shape[0], -1)
        at = 0
        for part in (attention.q_proj, attention.k_proj, attention.v_proj):
            _linear(x, part, flat[:, at : at + part.out_features])
            at += part.out_features
        qkv = step.qkv[:count]
        if isinstance(layer, Qwen3DecoderLayer):
            qkv[:, :rotated].mul_(_inverse_rms(qkv[:, :rotated], layer.self_attn.q_norm.variance_epsilon))
            qkv[:, : self.heads].mul_(layer.self_attn.q_norm.weight)
            qkv[:, self.heads : rotated].mul_(layer.self_attn.k_norm.weight)
        _rotate(qkv[:, :rotated], step.cos, step.sin)
        heads.index_copy_(0, step.slots, qkv[:, self.heads :].reshape(-1, self.head_dim))
        # Query heads of one key-value head are laid side by side as queries.
        real = slice(0, group * tokens)
        by_kv_head = (rows, self.kv_heads, group, tokens, self.head_dim)
        queries = step.queries.view(rows, self.kv_heads, -1, self.head_dim)[:, :, real].view(by_kv_head)
        queries.copy_(qkv[:, : self.heads].view(rows, tokens, self.kv_heads, group, -1).permute(0, 2, 3, 1, 4))
        out = _mix(step, keys, values, self.head_dim**-0.5).view(rows, self.kv_heads, -1, self.head_dim)
        mixed = step.mixed[:count].view(rows, tokens, self.kv_heads, group, self.head_dim)
        mixed.copy_(out[:, :, real].view(by_kv_head).permute(0, 3, 1, 2, 4))
        _add_linear(hidden, step.mixed, attention.o_proj)


def _mix(step: _Step, keys: Tensor, values: Tensor, scale: float) -> Tensor:
    """Values by the softmax of queries times keys, summed block by block: [rows * kv_heads, Q, head_dim]."""
    scores = torch.baddbmm(step.bias, step.queries, keys[:, : step.keys].transpose(1, 2), alpha=scale)
    shares = torch.softmax(scores, dim=-1)
    return weigh(shares, values[:, : step.keys])


def weigh(shares: Tensor, values: Tensor) -> Tensor:
    """shares [heads, Q, keys] times values [heads, keys, head_dim], in blocks of keys from the first."""
    out = torch.bmm(shares[:, :, :KEY_BLOCK], values[:, :KEY_BLOCK])
    for at in range(KEY_BLOCK, shares.shape[-1], KEY_BLOCK):
        out.baddbmm_(shares[:, :, at : at + KEY_BLOCK], values[:, at : at + KEY_BLOCK])
    return out


@torch.inference_mode()
def find_key_counts(head_dim: int) -> list[int]:
    """Key counts, up to a block's, over which values are summed as they are over the whole block.

    Found by trying: a matrix product splits long sums at places that depend on their length, and where it does
    depends on the library and the processor. The block itself is always one.
    """
    generator = torch.Generator().manual_seed(0)
    shares = torch.rand(2, QUERIES, KEY_BLOCK, generator=generator)
    values = torch.randn(2, KEY_BLOCK, head_dim, generator=generator)

    def sums_alike(keys: int, seen: int) -> bool:
        some = shares.masked_fill(torch.arange(KEY_BLOCK) >= seen, 0.0)
        return torch.equal(weigh(some[:, :, :keys].contiguous(), values[:, :keys]), weigh(some, values))

    return [
        keys
        for keys in range(VECTOR, KEY_BLOCK + 1, VECTOR)
        if all(sums_alike(keys, seen) for seen in (keys, keys - 7, keys * 3 // 4, keys // 2))
    ]


def _feed_forward(layer: Layer, hidden: Tensor) -> None:
    mlp = layer.mlp
    x = _rms(hidden, layer.post_attention_layernorm)
    gate = F.silu(F.linear(x, mlp.gate_proj.weight, mlp.gate_proj.bias), inplace=True)
    gate *= F.linear(x, mlp.up_proj.weight, mlp.up_proj.bias)
    _add_linear(hidden, gate, mlp.down_proj)


def _linear(x: Tensor, part: nn.Linear, out: Tensor) -> None:
    if part.bias is None:
        torch.mm(x, part.weight.t(), out=out)
    else:
        torch.addmm(part.bias, x, part.weight.t(), out=out)


def _add_linear(hidden: Tensor, x: Tensor, part: nn.Linear) -> None:
    hidden.addmm_(x, part.weight.t())
    if part.bias is not None:
        hidden += part.bias


def _whole_tiles(count: int) -> int:
    return -(-count // TILE) * TILE


def _rms(x: Tensor, norm: Qwen3RMSNorm | LlamaRMSNorm) -> Tensor:
    """Qwen3's and Llama's norm over the last dimension."""
    return (x * _inverse_rms(x, norm.variance_epsilon)).mul_(norm.weight)


def _inverse_rms(x: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(x^2) + eps) over the last dimension, which is kept."""
    length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return length.square_().div_(x.shape[-1]).add_(eps).rsqrt_()


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> None:
    """Rotary embedding in place."""
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    x.mul_(cos).add_(swapped.mul_(sin))
