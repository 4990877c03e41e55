"""One forward step of a Qwen3 over a slice of cache rows, written for many short rows on a CPU.

Reads the weights of a `Qwen3ForCausalLM` live at each call (no copies), so an in-place optimizer update is
seen at once. Equal to transformers' forward within float32 rounding; `test_torch_engine` holds it to 1e-4.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm

CHUNK = 512  # tokens of a row fed at once: bounds the attention mask of a long prompt
KEY_MULTIPLE = 16  # keys are read in whole vectors, so sums do not depend on the longest row of the batch


class Qwen3Decode:
    """The weights of one model, float32 on the CPU, and the tables of its rotary embedding."""

    def __init__(self, model: Qwen3ForCausalLM, max_context: int) -> None:
        config = model.config
        if config.use_sliding_window:
            raise ValueError("the torch engine has no sliding-window attention")
        self.model = model
        self.layers: int = config.num_hidden_layers
        self.heads: int = config.num_attention_heads
        self.kv_heads = int(config.num_key_value_heads or config.num_attention_heads)
        self.head_dim = int(config.head_dim or config.hidden_size // config.num_attention_heads)
        self.max_context = max_context
        with torch.inference_mode():
            positions = torch.arange(max_context + KEY_MULTIPLE)[None]
            cos, sin = model.model.rotary_emb(torch.zeros(1, 1, dtype=torch.float32), positions)
        self.cos, self.sin = cos[0], sin[0]

    def new_cache(self, rows: int) -> Tensor:
        """Zeros [2, layers, rows, kv_heads, tokens, head_dim]; the last tokens are a bin for padding."""
        tokens = (self.max_context // KEY_MULTIPLE + 1) * KEY_MULTIPLE
        return torch.zeros(2, self.layers, rows, self.kv_heads, tokens, self.head_dim)

    @torch.inference_mode()
    def forward(self, cache: Tensor, ids: Tensor, starts: Tensor, counts: Tensor) -> Tensor:
        """Logits [rows, vocabulary] after the last token of each row.

        cache: the rows' slice of `new_cache`; ids [rows, tokens], right-padded; starts [rows]: tokens
        already in the cache; counts [rows]: tokens of `ids` that are real, at least 1.
        """
        last = torch.empty(ids.shape[0], self.model.config.hidden_size)
        for begin in range(0, ids.shape[1], CHUNK):
            chunk = ids[:, begin : begin + CHUNK]
            hidden = self._hidden(cache, chunk, starts + begin, counts - begin)
            ends_here = ((counts > begin) & (counts <= begin + CHUNK)).nonzero()[:, 0]
            last[ends_here] = hidden[ends_here, counts[ends_here] - 1 - begin]
        norm = self.model.model.norm
        last = F.rms_norm(last, last.shape[-1:], norm.weight, norm.variance_epsilon)
        return F.linear(last, self.model.lm_head.weight)

    def _hidden(self, cache: Tensor, ids: Tensor, starts: Tensor, counts: Tensor) -> Tensor:
        rows, tokens = ids.shape
        offsets = torch.arange(tokens)
        # Padding is written behind the context, where no query looks.
        slots = torch.where(offsets < counts[:, None], starts[:, None] + offsets, self.max_context)
        cos, sin = self.cos[slots][:, :, None], self.sin[slots][:, :, None]
        longest = int(slots.masked_fill(slots == self.max_context, 0).max()) + 1
        keys = -(-longest // KEY_MULTIPLE) * KEY_MULTIPLE
        seen = torch.arange(keys) <= slots[:, :, None]
        bias = torch.zeros(rows, tokens, keys).masked_fill_(~seen, float("-inf"))
        bias = bias.repeat(1, self.heads // self.kv_heads, 1)[:, None]
        hidden = F.embedding(ids, self.model.model.embed_tokens.weight)
        where = torch.arange(rows)[:, None], slots
        for index, layer in enumerate(self.model.model.layers):
            hidden = self._layer(layer, hidden, (cos, sin), (cache[0, index], cache[1, index]), (where, bias))
        return hidden

    def _layer(
        self,
        layer: Qwen3DecoderLayer,
        hidden: Tensor,
        rotary: tuple[Tensor, Tensor],
        cache: tuple[Tensor, Tensor],
        place: tuple[tuple[Tensor, Tensor], Tensor],
    ) -> Tensor:
        attention, mlp = layer.self_attn, layer.mlp
        (row, slot), bias = place
        rows, tokens, width = hidden.shape
        x = _rms(hidden, layer.input_layernorm)
        q = F.linear(x, attention.q_proj.weight, attention.q_proj.bias).view(rows, tokens, self.heads, self.head_dim)
        k = F.linear(x, attention.k_proj.weight, attention.k_proj.bias).view(rows, tokens, self.kv_heads, self.head_dim)
        v = F.linear(x, attention.v_proj.weight, attention.v_proj.bias).view(rows, tokens, self.kv_heads, self.head_dim)
        q, k = _rotate(_rms(q, attention.q_norm), *rotary), _rotate(_rms(k, attention.k_norm), *rotary)
        cache[0][row, :, slot] = k
        cache[1][row, :, slot] = v
        # Query heads of one key-value head are laid side by side as extra queries.
        group = self.heads // self.kv_heads
        q = q.view(rows, tokens, self.kv_heads, group, self.head_dim).permute(0, 2, 3, 1, 4)
        q = q.reshape(rows, self.kv_heads, group * tokens, self.head_dim)
        keys = bias.shape[-1]
        out = F.scaled_dot_product_attention(q, cache[0][:, :, :keys], cache[1][:, :, :keys], attn_mask=bias)
        out = out.view(rows, self.kv_heads, group, tokens, self.head_dim).permute(0, 3, 1, 2, 4)
        out = out.reshape(rows, tokens, self.heads * self.head_dim)
        hidden = hidden + F.linear(out, attention.o_proj.weight, attention.o_proj.bias)
        x = _rms(hidden, layer.post_attention_layernorm)
        x = F.silu(F.linear(x, mlp.gate_proj.weight)) * F.linear(x, mlp.up_proj.weight)
        return hidden + F.linear(x, mlp.down_proj.weight)


def _rms(x: Tensor, norm: Qwen3RMSNorm) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin
