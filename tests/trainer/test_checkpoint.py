"""Checkpoints are complete or not there; they restore weights and optimizer bit for bit; old ones go."""

import json
from pathlib import Path

import pytest
import torch

from tests.trainer.tiny import make_model, save_tiny
from trainer.policy.checkpoint import (
    MANIFEST,
    CheckpointError,
    CheckpointStore,
    Counters,
    Recovery,
    load_optimizer,
    verify_checkpoint,
)
from trainer.policy.model import ModelError, load_model, load_weights
from trainer.policy.optimizer import apply_update, cosine_rate, make_optimizer, warmup_rate
from trainer.rollout.chat import load_tokenizer


def counters(stage: int = 1, stage_step: int = 1, *, is_stage_end: bool = False) -> Counters:
    return Counters(
        stage=stage,
        stage_name=f"stage {stage}",
        stage_step=stage_step,
        step=stage_step,
        policy_version=stage_step,
        cursor=0,
        is_stage_end=is_stage_end,
        recipe={"name": "x"},
    )


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return save_tiny(tmp_path / "source")


def train_once(model: torch.nn.Module, optimizer: torch.optim.AdamW) -> float:
    model(input_ids=torch.tensor([[1, 2, 3, 4]]), labels=torch.tensor([[1, 2, 3, 4]])).loss.backward()
    return apply_update(optimizer, model.parameters(), 1e-2)


def test_weights_and_optimizer_come_back_bit_for_bit(tmp_path: Path, source: Path) -> None:
    model = make_model()
    optimizer = make_optimizer(model)
    train_once(model, optimizer)
    written = CheckpointStore(tmp_path).write(model, optimizer, counters(), source).checkpoint
    verify_checkpoint(written.path)
    train_once(model, optimizer)

    again = make_model(seed=9)
    load_weights(again, written.path)
    optimizer_again = make_optimizer(again)
    load_optimizer(again, optimizer_again, written.path)
    train_once(again, optimizer_again)
    for a, b in zip(model.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)


def test_a_checkpoint_is_a_model_folder_with_its_tokenizer(tmp_path: Path, source: Path) -> None:
    written = CheckpointStore(tmp_path).write(make_model(), None, counters(), source).checkpoint
    assert load_model(written.path).config.hidden_size == 16
    assert load_tokenizer(written.path).chat_template
    assert written.counters == counters()


def test_incomplete_ones_are_ignored(tmp_path: Path, source: Path) -> None:
    store = CheckpointStore(tmp_path)
    good = store.write(make_model(), None, counters(stage_step=1), source).checkpoint
    torn = store.write(make_model(), None, counters(stage_step=2), source).checkpoint
    with (torn.path / "model.safetensors").open("r+b") as stream:
        stream.truncate(10)
    assert store.latest() == good
    (good.path / MANIFEST).unlink()
    assert store.latest() is None
    assert CheckpointStore(tmp_path / "nowhere").latest() is None


def test_a_draft_left_by_a_kill_is_no_checkpoint(tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = CheckpointStore(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("trainer.policy.checkpoint._write_manifest", _raise)
        with pytest.raises(KeyboardInterrupt):
            store.write(make_model(), None, counters(), source)
    assert store.latest() is None
    store.write(make_model(), None, counters(), source)
    assert [p.name for p in store.folder.iterdir() if p.is_dir()] == ["stage-01-stage_1-step-000001"]


def _raise(folder: Path) -> None:
    raise KeyboardInterrupt


def test_recovery_passes_over_what_is_not_sound_and_says_so(tmp_path: Path, source: Path) -> None:
    store = CheckpointStore(tmp_path)
    first, second = (store.write(make_model(), None, counters(stage_step=n), source).checkpoint for n in (1, 2))
    assert store.recover() == Recovery(second, [])
    (second.path / "trainer.json").unlink()
    assert store.recover() == Recovery(
        first, ["checkpoint stage-01-stage_1-step-000002 is damaged: trainer.json: No such file or directory"]
    )
    with (first.path / "model.safetensors").open("r+b") as stream:
        size = stream.seek(0, 2)
        stream.truncate(10)
    assert store.recover() == Recovery(
        None,
        [
            "checkpoint stage-01-stage_1-step-000002 is missing",
            f"checkpoint stage-01-stage_1-step-000001 is damaged: model.safetensors has 10 of {size} bytes",
        ],
    )
    third = store.write(make_model(), None, counters(stage_step=3), source).checkpoint
    assert store.recover() == Recovery(third, [])
    assert [p.name for p in store.folder.iterdir() if p.is_dir()] == [third.path.name]


def test_damage_is_found_by_hash(tmp_path: Path, source: Path) -> None:
    written = CheckpointStore(tmp_path).write(make_model(), None, counters(), source).checkpoint
    data = bytearray((written.path / "model.safetensors").read_bytes())
    data[-1] ^= 1
    (written.path / "model.safetensors").write_bytes(data)
    with pytest.raises(CheckpointError, match="model.safetensors"):
        verify_checkpoint(written.path)


def test_pruning_keeps_the_newest_two_and_the_ends_of_stages(tmp_path: Path, source: Path) -> None:
    store, model = CheckpointStore(tmp_path), make_model()
    store.write(model, None, counters(1, 5, is_stage_end=True), source)
    pruned = [path.name for step in (1, 2, 3) for path in store.write(model, None, counters(2, step), source).pruned]
    assert pruned == ["stage-02-stage_2-step-000001"]
    assert [(c.counters.stage, c.counters.stage_step) for c in store.find_all()] == [(1, 5), (2, 2), (2, 3)]
    assert store.stage_end("stage 1").counters.stage_step == 5
    assert store.stage_end("stage 9") is None


def test_the_manifest_lists_every_other_file(tmp_path: Path, source: Path) -> None:
    written = CheckpointStore(tmp_path).write(make_model(), None, counters(), source).checkpoint
    listed = json.loads((written.path / MANIFEST).read_text())["files"]
    assert set(listed) == {p.name for p in written.path.iterdir()} - {MANIFEST}


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="no config.json"):
        load_model(tmp_path)


def test_learning_rates() -> None:
    assert [warmup_rate(1.0, step, 4) for step in (1, 2, 4, 9)] == [0.25, 0.5, 1.0, 1.0]
    assert warmup_rate(1.0, 1, 0) == 1.0
    assert [cosine_rate(1.0, step, 100, 0.04) for step in (1, 4)] == [0.25, 1.0]
    assert cosine_rate(1.0, 52, 100, 0.04) == pytest.approx(0.55)
    assert cosine_rate(1.0, 100, 100, 0.04) == pytest.approx(0.1)
