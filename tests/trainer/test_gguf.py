"""A tiny Llama written as GGUF and read back. Skipped where the extra `gguf` is not installed."""

from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.trainer.tiny import make_tokenizer
from trainer.__main__ import main
from trainer.policy import gguf as importing
from trainer.policy.gguf import GgufError, import_gguf
from trainer.policy.model import load_model
from trainer.rollout.chat import Chat, load_tokenizer

HEADS, KV_HEADS, WIDTH = 4, 2, 32
NAMES = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "input_layernorm.weight": "attn_norm.weight",
    "post_attention_layernorm.weight": "ffn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
}


def make_model(vocabulary: int) -> LlamaForCausalLM:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=WIDTH,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS,
        max_position_embeddings=256,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config).eval()


def pair_rows(weight: np.ndarray, heads: int) -> np.ndarray:
    """llama.cpp's order of the rows of q and k: the two halves of a head interleaved."""
    return weight.reshape(heads, 2, -1, weight.shape[1]).swapaxes(1, 2).reshape(weight.shape)


def write_gguf(file: Path, model: LlamaForCausalLM, architecture: str = "llama") -> None:
    gguf = pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    config, tokenizer = model.config, make_tokenizer()
    writer = gguf.GGUFWriter(file, architecture)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(config.vocab_size)
    tokens = sorted(tokenizer.get_vocab(), key=tokenizer.get_vocab().__getitem__)
    special = set(tokenizer.get_added_vocab())
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([*tokens, "ab"])
    writer.add_token_types([3 if token in special else 1 for token in [*tokens, "ab"]])
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    for name, tensor in model.state_dict().items():
        if name == "lm_head.weight":
            continue
        short = name.removeprefix("model.layers.")
        layer, _, part = short.partition(".")
        values = tensor.numpy()
        if part in ("self_attn.q_proj.weight", "self_attn.k_proj.weight"):
            values = pair_rows(values, HEADS if "q_proj" in part else KV_HEADS)
        writer.add_tensor(NAMES[name] if short == name else f"blk.{layer}.{NAMES[part]}", np.ascontiguousarray(values))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.filterwarnings("ignore")
def test_weights_and_chat_survive(tmp_path, capsys):
    model = make_model(len(make_tokenizer()) + 1)
    write_gguf(tmp_path / "tiny.gguf", model)
    assert main(["import-gguf", str(tmp_path / "tiny.gguf"), "--out", str(tmp_path / "model")]) == 0
    assert "parameters" in capsys.readouterr().out
    loaded = load_model(tmp_path / "model")
    for name, tensor in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], tensor), name
    chat = Chat(load_tokenizer(tmp_path / "model"))
    ids = chat.prompt_ids("2 + 2?")
    assert chat.text(ids) == "<|im_start|>user\n2 + 2?<|im_end|>\n<|im_start|>assistant\n<reason>"


@pytest.mark.filterwarnings("ignore")
def test_another_architecture_is_refused(tmp_path):
    write_gguf(tmp_path / "tiny.gguf", make_model(len(make_tokenizer()) + 1), architecture="mistral")
    with pytest.raises(GgufError, match="tiny.gguf"):
        import_gguf(tmp_path / "tiny.gguf", tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.fixture
def with_packages(monkeypatch):
    monkeypatch.setattr(importing, "PACKAGES", ())


def test_refuses_what_is_no_gguf(tmp_path, with_packages, capsys):
    (tmp_path / "zip.gguf").write_bytes(b"PK\x03\x04 a wheel")
    with pytest.raises(GgufError, match="no GGUF file"):
        import_gguf(tmp_path / "zip.gguf", tmp_path / "model")
    assert main(["import-gguf", str(tmp_path / "missing.gguf"), "--out", str(tmp_path / "model")]) == 2
    assert "No such file" in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore")
def test_a_torn_file_is_named(tmp_path):
    pytest.importorskip("gguf")
    pytest.importorskip("accelerate")
    (tmp_path / "torn.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    with pytest.raises(GgufError, match="torn.gguf"):
        import_gguf(tmp_path / "torn.gguf", tmp_path / "model")


def test_never_writes_over_a_folder(tmp_path, with_packages):
    (tmp_path / "tiny.gguf").write_bytes(b"GGUF")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    with pytest.raises(GgufError, match="not empty"):
        import_gguf(tmp_path / "tiny.gguf", tmp_path / "model")


def test_missing_packages_are_named_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setattr(importing, "PACKAGES", ("no_such_package",))
    with pytest.raises(GgufError, match="pip install no_such_package"):
        import_gguf(tmp_path / "tiny.gguf", tmp_path / "model")
