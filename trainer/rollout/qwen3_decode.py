"""One forward step of a Qwen3 over a slice of cache rows, written for many short rows on a CPU.

What is computed at a position depends on the tokens up to it and on nothing else, bit for bit: not on the other
rows, not on whether it was fed alone, with its prompt or after a tool's response. So a rollout is a function of
weights, prompt and seed (docs/decisions/resume.md says what makes it so and what it costs).

Reads the weights of a `Qwen3ForCausalLM` live at each call (no copies), so an in-place optimizer update is
seen at once. Equal to transformers' forward within float32 rounding; `test_torch_engine` holds it to 1e-4.
"""

import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import Qwen3ForCausalLM
from transformers.models.qwen3.modeling_qwen3 import Qwen3DecoderLayer, Qwen3RMSNorm

CHUNK = 512  # tokens of a row fed at once: bounds the attention mask of a long prompt
TILE = 16  # tokens are multiplied with the weights in whole tiles,
QUERIES = 4  # and queries with the keys in whole fours: products of fewer rows have kernels that sum in another order
KEY_BLOCK = 512  # keys that the attention kernel reads at once
VECTOR = 16  # floats: what is summed is padded with zeros to whole vectors


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
        self._key_counts = find_key_counts(self.head_dim)
        with torch.inference_mode():
            positions = torch.arange(max_context + 1)[None]
            cos, sin = model.model.rotary_emb(torch.zeros(1, 1, dtype=torch.float32), positions)
        self.cos, self.sin = cos[0], sin[0]

    def new_cache(self, rows: int) -> Tensor:
        """Zeros [2, layers, rows, kv_heads, tokens, head_dim]; the last tokens are a bin for padding."""
        tokens = self._pad_keys(self.max_context + 1)
        return torch.zeros(2, self.layers, rows, self.kv_heads, tokens, self.head_dim)

    @torch.inference_mode()
    def forward(self, cache: Tensor, ids: Tensor, starts: Tensor, counts: Tensor) -> Tensor:
        """Logits [rows, vocabulary] after the last token of each row.

        cache: the rows' slice of `new_cache`; ids [rows, tokens], right-padded; starts [rows]: tokens
        already in the cache; counts [rows]: tokens of `ids` that are real, at least 1.
        """
        rows = ids.shape[0]
        last = torch.zeros(_whole_tiles(rows), self.model.config.hidden_size)
        for begin in range(0, ids.shape[1], CHUNK):
            chunk = ids[:, begin : begin + CHUNK]
            hidden = self._hidden(cache, chunk, starts + begin, counts - begin)
            ends_here = ((counts > begin) & (counts <= begin + CHUNK)).nonzero()[:, 0]
            last[ends_here] = hidden[ends_here, counts[ends_here] - 1 - begin]
        norm = self.model.model.norm
        last = F.rms_norm(last, last.shape[-1:], norm.weight, norm.variance_epsilon)
        return F.linear(last, self.model.lm_head.weight)[:rows]

    def _hidden(self, cache: Tensor, ids: Tensor, starts: Tensor, counts: Tensor) -> Tensor:
        """[rows, tokens, width] after the last layer; inside, the tokens of all rows are one list of whole tiles."""
        rows, tokens = ids.shape
        offsets = torch.arange(tokens)
        # Padding is written behind the context, where no query looks.
        slots = torch.where(offsets < counts[:, None], starts[:, None] + offsets, self.max_context)
        cos, sin = self.cos[slots][:, :, None], self.sin[slots][:, :, None]
        longest = int(slots.masked_fill(slots == self.max_context, 0).max()) + 1
        keys = self._pad_keys(longest)
        seen = torch.arange(keys) <= slots[:, :, None]
        bias = torch.zeros(rows, tokens, keys).masked_fill_(~seen, float("-inf"))
        bias = bias.repeat(1, self.heads // self.kv_heads, 1)
        bias = F.pad(bias, (0, 0, 0, -bias.shape[1] % QUERIES))[:, None]
        count = rows * tokens
        hidden = F.embedding(
            F.pad(ids.reshape(-1), (0, _whole_tiles(count) - count)), self.model.model.embed_tokens.weight
        )
        where = torch.arange(rows)[:, None], slots
        for index, layer in enumerate(self.model.model.layers):
            hidden = self._layer(layer, hidden, (cos, sin), (cache[0, index], cache[1, index]), (where, bias))
        return hidden[:count].view(rows, tokens, -1)

    def _pad_keys(self, longest: int) -> int:
        """The next key count, of those that make no difference."""
        blocks, rest = divmod(longest, KEY_BLOCK)
        return blocks * KEY_BLOCK + (next(count for count in self._key_counts if count >= rest) if rest else 0)

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
        rows, tokens = slot.shape
        count = rows * tokens
        x = _rms(hidden, layer.input_layernorm)
        q, k, v = (
            F.linear(x, part.weight, part.bias)[:count].view(rows, tokens, -1, self.head_dim)
            for part in (attention.q_proj, attention.k_proj, attention.v_proj)
        )
        q, k = _rotate(_rms(q, attention.q_norm), *rotary), _rotate(_rms(k, attention.k_norm), *rotary)
        cache[0][row, :, slot] = k
        cache[1][row, :, slot] = v
        # Query heads of one key-value head are laid side by side as extra queries.
        group = self.heads // self.kv_heads
        q = q.view(rows, tokens, self.kv_heads, group, self.head_dim).permute(0, 2, 3, 1, 4)
        q = q.reshape(rows, self.kv_heads, group * tokens, self.head_dim)
        q = F.pad(q, (0, 0, 0, bias.shape[-2] - group * tokens))
        keys = bias.shape[-1]
        out = F.scaled_dot_product_attention(q, cache[0][:, :, :keys], cache[1][:, :, :keys], attn_mask=bias)
        out = (
            out[:, :, : group * tokens]
            .reshape(rows, self.kv_heads, group, tokens, self.head_dim)
            .permute(0, 3, 1, 2, 4)
        )
        out = out.reshape(count, self.heads * self.head_dim)
        out = F.pad(out, (0, 0, 0, hidden.shape[0] - count))
        hidden = hidden + F.linear(out, attention.o_proj.weight, attention.o_proj.bias)
        x = _rms(hidden, layer.post_attention_layernorm)
        x = F.silu(F.linear(x, mlp.gate_proj.weight)) * F.linear(x, mlp.up_proj.weight)
        return hidden + F.linear(x, mlp.down_proj.weight)


@torch.inference_mode()
def find_key_counts(head_dim: int) -> list[int]:
    """Key counts, up to a block's, over which attention sums the keys it sees as it does over the whole block.

    Found by trying: a matrix product splits long sums at places that depend on their length, and where it does
    depends on the library and the processor. The block itself is always one.
    """
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 1, n, head_dim, generator=generator) for n in (QUERIES, KEY_BLOCK, KEY_BLOCK))

    def attend(keys: int, seen: int) -> Tensor:
        bias = torch.zeros(1, 1, QUERIES, keys).masked_fill_(torch.arange(keys) >= seen, float("-inf"))
        return F.scaled_dot_product_attention(q, k[:, :, :keys], v[:, :, :keys], attn_mask=bias)

    return [
        keys
        for keys in range(VECTOR, KEY_BLOCK + 1, VECTOR)
        if all(torch.equal(attend(keys, s), attend(KEY_BLOCK, s)) for s in (keys, keys - 7, keys * 3 // 4, keys // 2))
    ]


def _whole_tiles(count: int) -> int:
    return -(-count // TILE) * TILE


def _rms(x: Tensor, norm: Qwen3RMSNorm) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], norm.weight, norm.variance_epsilon)


def _rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return x * cos + torch.cat([-x[..., half:], x[..., :half]], dim=-1) * sin
