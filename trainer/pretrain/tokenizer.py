"""The tiny model's tokenizer: byte-level BPE with single digits and the constant parts of a tool call as few tokens."""

import random

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from trainer.pretrain.chat import CHAT_TEMPLATE, END_OF_TEXT, SPECIAL_TOKENS, TURN_END
from trainer.pretrain.corpus import draw_document

VOCABULARY_SIZE = 896
MAX_POSITIONS = 1024
_SAMPLE_DOCUMENTS = 6000

# The fixed beginning and end of every call stay whole, so that BPE can merge each into one token and a call costs the
# model a handful of tokens instead of fifty. Digits never merge: a number is copied digit by digit.
_WORD_PATTERN = (
    r'\{"name": "execute_python_code_with_standard_io", "arguments": \{"code": "'
    r'|", "input": ""\}\}'
    r"|\\boxed\{"
    r"|\\n *"
    r'|\\"'
    r"|\d"
    r"| ?\p{L}+"
    r'| ?[^\s\p{L}\d\\"]+'
    r'| ?"'
    r"|\\"
    r"|\s"
)


def build_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """Train the merges on a sample of the corpus; any UTF-8 text can be encoded, byte by byte if need be."""
    rng = random.Random(f"tokenizer-{seed}")  # noqa: S311
    texts = ["".join(text for text, _ in draw_document(rng, 1.0)) for _ in range(_SAMPLE_DOCUMENTS)]
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_WORD_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[token for token in SPECIAL_TOKENS if token not in (TURN_END, END_OF_TEXT)],
        chat_template=CHAT_TEMPLATE,
        model_max_length=MAX_POSITIONS,
        clean_up_tokenization_spaces=False,
    )
