"""One forward step of a Qwen3 or Llama over a slice of cache rows, written for many short rows on a CPU.

What is computed at a position depends on the tokens up to it and on nothing else, bit for bit: not on the other
rows, not on whether it was fed alone, with its prompt or after a tool's response. So a rollout is a function of
weights, prompt and seed (docs/decisions/resume.md says what makes it so and what it costs).

Computes with copies of the weights, packed for products (`packed_linear.py`); `read_weights` takes them anew.
Equal to transformers' forward within float32 rounding; `test_torch_engine` holds log-probabilities to 1e-5.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaForCausalLM, Qwen3ForCausalLM
from transformers.models.llama.modeling_llama import LlamaDecoderLayer
from transformers.models.qwen3.modeling_qwen3 import Qwen3Attention, Qwen3DecoderLayer

from trainer.rollout.packed_linear import PackedLinear, pad_rows

CHUNK = 128  # tokens of a row fed at once: bounds the attention scores of a long prompt
QUERIES = 4  # queries times keys in whole fours: products of fewer rows have kernels that sum in another order
KEY_BLOCK = 128  # values summed in one product: longer sums are split where their length says
VECTOR = 16  # floats: what is summed is padded with zeros to whole vectors


class _Layer(NamedTuple):
    """A layer's weights, packed. The weights of the norms before `qkv`, `gate` and `up` are in those."""

    qkv: PackedLinear
    qk_norm: Tensor | None  # [heads + kv_heads, head_dim]
    out: PackedLinear
    gate: PackedLinear
    up: PackedLinear
    down: PackedLinear


@dataclass(frozen=True, slots=True)
class _Step:
    """What all layers of one step share. count = rows x tokens; n: count as padded by `pad_rows`; Q: queries of a
    key-value head in whole fours; keys: the longest row, padded."""

    rows: int
    tokens: int
    keys: int
    cos: Tensor  # [count, 1, head_dim]
    sin: Tensor  # the same, its first half negated
    bias: Tensor  # [rows * kv_heads, Q, keys], or [.., 1, keys] where all queries see the same: 0 or -inf
    slots: Tensor  # [count * 2 * kv_heads]: where keys and values go, counted in heads of the flat cache
    queries: Tensor  # [rows * kv_heads, Q, head_dim]; its padding stays 0
    mixed: Tensor  # [n, heads * head_dim]; its padding is never read


class Decode:
    """The weights of one model, float32 on the CPU, and the tables of its rotary embedding."""

    def __init__(self, model: Qwen3ForCausalLM | LlamaForCausalLM, max_context: int) -> None:
        config = model.config
        if getattr(config, "use_sliding_window", False):
            raise ValueError("the torch engine has no sliding-window attention")
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.kv_heads = int(config.num_key_value_heads or config.num_attention_heads)
        self.head_dim = int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
        self.max_context = max_context
        self._model = model
        self._eps = torch.tensor(config.rms_norm_eps)
        self.read_weights()
        self._key_counts = find_key_counts(self.head_dim)
        self._spare: dict[int, tuple[Tensor, Tensor]] = {}  # work space of decode steps, by padded rows
        with torch.inference_mode():
            positions = torch.arange(max_context + 1)[None]
            cos, sin = model.model.rotary_emb(torch.zeros(1, 1, dtype=torch.float32), positions)
            self._cos, self._sin = cos[0].clone(), sin[0].clone()
            self._sin[:, : self.head_dim // 2].neg_()

    @torch.inference_mode()
    def read_weights(self) -> None:
        """Those of the model as they are now, copied."""
        inner = self._model.model
        self._embeddings = inner.embed_tokens.weight.clone()
        self._layers = [self._pack(layer) for layer in inner.layers]
        self._head = PackedLinear([self._model.lm_head], inner.norm.weight)

    def _pack(self, layer: Qwen3DecoderLayer | LlamaDecoderLayer) -> _Layer:
        attention, mlp, norm = layer.self_attn, layer.mlp, layer.post_attention_layernorm.weight
        qk_norm = None
        if isinstance(attention, Qwen3Attention):
            q, k = attention.q_norm.weight, attention.k_norm.weight
            qk_norm = torch.cat((q.expand(self.heads, -1), k.expand(self.kv_heads, -1)))
        return _Layer(
            qkv=PackedLinear([attention.q_proj, attention.k_proj, attention.v_proj], layer.input_layernorm.weight),
            qk_norm=qk_norm,
            out=PackedLinear([attention.o_proj]),
            gate=PackedLinear([mlp.gate_proj], norm),
            up=PackedLinear([mlp.up_proj], norm),
            down=PackedLinear([mlp.down_proj]),
        )

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
        if tokens == 1:
            last = self._hidden(cache, ids, starts, counts, first)
        else:
            last = torch.zeros(pad_rows(rows), self._embeddings.shape[1])
            for begin in range(0, tokens, CHUNK):
                chunk = ids[:, begin : begin + CHUNK]
                hidden = self._hidden(cache, chunk, starts + begin, counts - begin, first)
                ends = counts - 1 - begin
                ends_here = ((ends >= 0) & (ends < CHUNK)).nonzero()[:, 0]
                last[ends_here] = hidden[ends_here * chunk.shape[1] + ends[ends_here]]
        return self._head.apply(last * self._inverse_rms(last))[:rows]

    def _hidden(self, cache: Tensor, ids: Tensor, starts: Tensor, counts: Tensor, first: int) -> Tensor:
        """[n, width] after the last layer: the tokens of all rows, one padded list."""
        step = self._prepare(cache, ids, starts, counts, first)
        hidden = torch.zeros(step.mixed.shape[0], self._embeddings.shape[1])
        hidden[: ids.numel()] = F.embedding(ids.reshape(-1), self._embeddings)
        heads = cache.view(-1, self.head_dim)
        rows = slice(first * self.kv_heads, (first + step.rows) * self.kv_heads)
        by_head = cache.view(2, self.layers, -1, *cache.shape[4:])[:, :, rows, : step.keys]
        layer_heads = heads.shape[0] // (2 * self.layers)
        for index, layer in enumerate(self._layers):
            layer_cache = heads[index * layer_heads :]
            hidden = self._attend(layer, hidden, step, layer_cache, by_head[0, index], by_head[1, index])
            hidden = self._feed_forward(layer, hidden)
        return hidden

    def _prepare(self, cache: Tensor, ids: Tensor, starts: Tensor, counts: Tensor, first: int) -> _Step:
        rows, tokens = ids.shape
        offsets = torch.arange(tokens)
        # Padding is written behind the context, where no query looks.
        slots = torch.where(offsets < counts[:, None], starts[:, None] + offsets, self.max_context)
        keys = self._pad_keys(int((starts + counts.clamp(max=tokens)).max()))
        row_heads = torch.arange(first * self.kv_heads, (first + rows) * self.kv_heads).view(rows, 1, self.kv_heads)
        to_keys = row_heads * cache.shape[4] + slots[:, :, None]
        half = cache.numel() // 2 // self.head_dim
        queries, mixed = self._space(rows, tokens)
        return _Step(
            rows=rows,
            tokens=tokens,
            keys=keys,
            cos=self._cos.index_select(0, slots.view(-1))[:, None],
            sin=self._sin.index_select(0, slots.view(-1))[:, None],
            bias=self._mask(slots, keys),
            slots=torch.cat((to_keys, to_keys + half), dim=-1).view(-1),
            queries=queries,
            mixed=mixed,
        )

    def _mask(self, slots: Tensor, keys: int) -> Tensor:
        """What the tokens in these slots must not see, [rows * kv_heads, Q or 1, keys]."""
        rows, tokens = slots.shape
        group = self.heads // self.kv_heads
        unseen = torch.arange(keys) > slots[:, :, None]
        if tokens == 1:
            bias = torch.zeros(rows, self.kv_heads, 1, keys)
            return bias.masked_fill_(unseen[:, None], float("-inf")).view(-1, 1, keys)
        bias = torch.zeros(rows, self.kv_heads, _whole_fours(group * tokens), keys)
        by_group = bias[:, :, : group * tokens].view(rows, self.kv_heads, group, tokens, keys)
        by_group.masked_fill_(unseen[:, None, None], float("-inf"))
        return bias.view(rows * self.kv_heads, -1, keys)

    def _space(self, rows: int, tokens: int) -> tuple[Tensor, Tensor]:
        """`queries` and `mixed` of a step. Those of a decode step are used again: their padding is the same."""
        n = pad_rows(rows * tokens)
        found = self._spare.get(n) if tokens == 1 else None
        if found is None:
            padded_rows = n if tokens == 1 else rows
            queries = _whole_fours(self.heads // self.kv_heads * tokens)
            found = (
                torch.zeros(padded_rows * self.kv_heads, queries, self.head_dim),
                torch.zeros(n, self.heads * self.head_dim),
            )
            if tokens == 1:
                self._spare[n] = found
        spare, mixed = found
        return spare[: rows * self.kv_heads], mixed

    def _pad_keys(self, longest: int) -> int:
        """The next key count, of those that make no difference."""
        blocks, rest = divmod(longest, KEY_BLOCK)
        return blocks * KEY_BLOCK + (next(count for count in self._key_counts if count >= rest) if rest else 0)

    def _attend(
        self, layer: _Layer, hidden: Tensor, step: _Step, heads: Tensor, keys: Tensor, values: Tensor
    ) -> Tensor:
        """`hidden` and what attention finds. heads: the flat cache from this layer's keys on; keys and
        values [rows * kv_heads, keys of the step, head_dim]."""
        rows, tokens, group = step.rows, step.tokens, self.heads // self.kv_heads
        count, rotated = rows * tokens, self.heads + self.kv_heads
        projected = layer.qkv.apply(hidden * self._inverse_rms(hidden))
        qkv = projected.view(-1, rotated + self.kv_heads, self.head_dim)[:count]
        to_rotate = qkv[:, :rotated]
        if layer.qk_norm is not None:
            to_rotate.mul_(self._inverse_rms(to_rotate)).mul_(layer.qk_norm)
        swapped = to_rotate.roll(self.head_dim // 2, -1)
        to_rotate.mul_(step.cos).addcmul_(swapped, step.sin)
        heads.index_copy_(0, step.slots, qkv[:, self.heads :].reshape(-1, self.head_dim))
        # Query heads of one key-value head are laid side by side as queries.
        real = slice(0, group * tokens)
        by_kv_head = (rows, self.kv_heads, group, tokens, self.head_dim)
        queries = step.queries.view(rows, self.kv_heads, -1, self.head_dim)[:, :, real].view(by_kv_head)
        queries.copy_(qkv[:, : self.heads].view(rows, tokens, self.kv_heads, group, -1).permute(0, 2, 3, 1, 4))
        scores = torch.baddbmm(step.bias, step.queries, keys.transpose(1, 2), alpha=self.head_dim**-0.5)
        out = weigh(torch.softmax(scores, dim=-1), values).view(rows, self.kv_heads, -1, self.head_dim)
        mixed = step.mixed[:count].view(rows, tokens, self.kv_heads, group, self.head_dim)
        mixed.copy_(out[:, :, real].view(by_kv_head).permute(0, 3, 1, 2, 4))
        return layer.out.apply_plus(step.mixed, hidden)

    def _feed_forward(self, layer: _Layer, hidden: Tensor) -> Tensor:
        x = hidden * self._inverse_rms(hidden)
        return layer.down.apply_plus(layer.up.apply_times(x, layer.gate.apply_silu(x)), hidden)

    def _inverse_rms(self, x: Tensor) -> Tensor:
        """1 / sqrt(mean(x^2) + eps) over the last dimension, which is kept."""
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
        return torch.addcmul(self._eps, length, length, value=1 / x.shape[-1]).rsqrt_()


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


def _whole_fours(count: int) -> int:
    return -(-count // QUERIES) * QUERIES
