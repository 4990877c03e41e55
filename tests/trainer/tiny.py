"""A random tiny Qwen3 and a character-level tokenizer with our chat template, made in milliseconds."""

from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from benchmarks.models import make_qwen3
from trainer.pretrain.chat import CHAT_TEMPLATE, END_OF_TEXT, SPECIAL_TOKENS, TURN_END


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes and special tokens, no merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=TURN_END, pad_token=END_OF_TEXT)
    fast.chat_template = CHAT_TEMPLATE
    return fast


def make_model(vocabulary: int = 267, seed: int = 0) -> Qwen3ForCausalLM:
    """Two layers of width 16, in evaluation mode."""
    return make_qwen3(vocabulary, seed=seed)


def save_tiny(folder: Path) -> Path:
    """A model folder."""
    make_model().save_pretrained(folder)
    make_tokenizer().save_pretrained(folder)
    return folder
