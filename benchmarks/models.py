"""Random models for benchmarks and tests: one maker, so that figures taken apart are of the same model."""

from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

TINY: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 8,
}
THREE_MILLION: dict[str, Any] = {  # 3.2 million parameters and the embedding
    "hidden_size": 256,
    "intermediate_size": 768,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
}


def make_qwen3(vocabulary: int, *, seed: int = 0, **config: Any) -> Qwen3ForCausalLM:
    """A Qwen3 in evaluation mode, tied, of 1,024 positions; `config` is what of Qwen3Config is not as in TINY."""
    torch.manual_seed(seed)
    usual = {"max_position_embeddings": 1024, "tie_word_embeddings": True}
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=vocabulary, **(TINY | usual | config))).eval()
