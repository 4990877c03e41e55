"""The committed base model: size, tokenizer, template, and that it copies numbers and writes its code forms."""

import json
import random
from pathlib import Path

import pytest
import torch
from transformers import AutoTokenizer, PreTrainedTokenizerFast, Qwen3ForCausalLM

from trainer.data.synthetic import generate_problems
from trainer.data.transcripts import demonstrations
from trainer.pretrain.chat import ASSISTANT_START, SPECIAL_TOKENS, render_pieces
from trainer.pretrain.corpus import draw_document, draw_problem
from trainer.pretrain.evaluate import evaluate_base
from trainer.pretrain.tokenizer import build_tokenizer
from trainer.pretrain.train import PretrainSettings, build_model, learning_rate, train

FOLDER = Path(__file__).resolve().parents[2] / "models" / "tiny-base"


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return AutoTokenizer.from_pretrained(FOLDER, local_files_only=True)


@pytest.fixture(scope="module")
def model() -> Qwen3ForCausalLM:
    return Qwen3ForCausalLM.from_pretrained(FOLDER, dtype=torch.float32, local_files_only=True).eval()


def encode(tokenizer: PreTrainedTokenizerFast, text: str) -> list[int]:
    return tokenizer.backend_tokenizer.encode(text).ids


def test_the_model_is_small_and_complete(model: Qwen3ForCausalLM) -> None:
    assert sum(file.stat().st_size for file in FOLDER.iterdir()) <= 8 << 20
    for name in ("config.json", "tokenizer.json", "chat_template.jinja", "generation_config.json", "README.md"):
        assert (FOLDER / name).is_file()
    assert model.config.model_type == "qwen3"
    assert model.config.max_position_embeddings >= 1024


def test_special_tokens_are_one_token_each(tokenizer: PreTrainedTokenizerFast, model: Qwen3ForCausalLM) -> None:
    for token in SPECIAL_TOKENS:
        assert len(encode(tokenizer, token)) == 1
    assert tokenizer.eos_token == "<|im_end|>"
    assert tokenizer.pad_token == "<|endoftext|>"
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert len(tokenizer) == model.config.vocab_size


def test_digits_stand_alone(tokenizer: PreTrainedTokenizerFast) -> None:
    assert [tokenizer.decode([i]) for i in encode(tokenizer, "90210")] == list("90210")


@pytest.mark.parametrize("text", ["naïve Ω ≠ 🙂\n\tx", "print('a\\n')", " 12  7", "日本語", '{"code": "x\\ny"}'])
def test_any_text_survives_the_tokenizer(tokenizer: PreTrainedTokenizerFast, text: str) -> None:
    assert tokenizer.decode(encode(tokenizer, text)) == text


def test_pieces_and_template_give_the_same_text_and_the_same_tokens(tokenizer: PreTrainedTokenizerFast) -> None:
    for demonstration in demonstrations(generate_problems(40, 2), 2):
        messages = [{"role": m.role, "content": m.content} for m in demonstration.messages]
        rendered = tokenizer.apply_chat_template(messages, tokenize=False)
        pieces = [text for text, _ in render_pieces(demonstration.messages)]
        assert "".join(pieces) == rendered
        assert [i for piece in pieces for i in encode(tokenizer, piece)] == encode(tokenizer, rendered)


def test_the_generation_prompt_opens_the_reason(tokenizer: PreTrainedTokenizerFast) -> None:
    rendered = tokenizer.apply_chat_template(
        [{"role": "user", "content": "What is 2+2?"}], tokenize=False, add_generation_prompt=True
    )
    assert rendered == f"<|im_start|>user\nWhat is 2+2?<|im_end|>\n{ASSISTANT_START}"


def test_a_system_prompt_is_refused(tokenizer: PreTrainedTokenizerFast) -> None:
    with pytest.raises(Exception, match="knows the roles user, assistant and tool, not system"):
        tokenizer.apply_chat_template([{"role": "system", "content": "Be nice."}], tokenize=False)


def test_the_model_writes_programs_copies_numbers_and_repairs(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast
) -> None:
    figures = evaluate_base(model, tokenizer, problems=45, seed=21)
    assert figures.code_is_valid >= 0.97
    assert figures.numbers_copied >= 0.95
    assert figures.code_is_right >= 0.93
    assert figures.answer_copied >= 0.93
    assert figures.mistake_repaired >= 0.85


def test_the_card_states_the_measured_figures() -> None:
    record = json.loads((FOLDER / "figures.json").read_text())
    card = (FOLDER / "README.md").read_text()
    for name in ("numbers_copied", "code_is_right", "answer_copied"):
        assert f"| {name.replace('_', ' ')} | {record['figures'][name]:.3f} |" in card


def test_the_corpus_leaves_the_reserved_problems_out() -> None:
    rng = random.Random(1)
    seen = {draw_problem(rng).id for _ in range(300)}
    reserved = {draw_problem(rng, reserved=True).id for _ in range(100)}
    assert not seen & reserved


def test_the_corpus_is_the_same_for_a_seed() -> None:
    first, second = random.Random(9), random.Random(9)
    assert [draw_document(first, 0.5) for _ in range(30)] == [draw_document(second, 0.5) for _ in range(30)]


def test_learning_rate_warms_up_and_falls_by_a_cosine() -> None:
    settings = PretrainSettings(steps=110, warmup_steps=10, learning_rate=1.0, final_learning_rate=0.0)
    assert learning_rate(settings, 5) == pytest.approx(0.5)
    assert learning_rate(settings, 10) == pytest.approx(1.0)
    assert learning_rate(settings, 60) == pytest.approx(0.5)
    assert learning_rate(settings, 110) == pytest.approx(0.0)


def test_the_recipe_makes_the_committed_tokenizer_again(tokenizer: PreTrainedTokenizerFast) -> None:
    assert build_tokenizer(PretrainSettings.seed).get_vocab() == tokenizer.get_vocab()


def test_a_short_pretraining_lowers_the_loss_and_is_repeatable(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    settings = PretrainSettings(steps=8, batch_tokens=512, warmup_steps=2)
    torch.set_num_threads(1)
    runs = [train(build_model(tokenizer, 1), tokenizer, settings, tmp_path) for _ in range(2)]
    assert runs[0] == runs[1]
    assert runs[0][-1] < runs[0][0]
