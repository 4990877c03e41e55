import pytest
import torch
from safetensors.torch import load_file

from tests.trainer.tiny import make_model
from trainer.rollout.remote import UpdateReport
from trainer.rollout.weights import PROBE_TOKENS, SharedWeights, WeightsDiffer, exchange_file


@pytest.fixture
def weights(tmp_path, monkeypatch):
    monkeypatch.setattr("trainer.rollout.weights.SHARED_MEMORY", tmp_path / "none")
    return SharedWeights(make_model(), exchange_file(tmp_path, "engines"))


def test_the_file_holds_every_tensor_and_the_tied_head_too(weights, tmp_path):
    snapshot = weights.snapshot(3)
    held = load_file(snapshot.info["path"])
    assert set(held) == set(weights._model.state_dict())
    assert torch.equal(held["lm_head.weight"], held["model.embed_tokens.weight"])
    assert snapshot.version == 3 and len(snapshot.checksums) == 3
    weights.close()
    assert list(tmp_path.iterdir()) == []


def test_a_snapshot_does_not_follow_later_updates(weights):
    before = weights.snapshot(1)
    with torch.no_grad():
        weights._model.model.norm.weight.add_(1)
    assert not torch.equal(load_file(before.info["path"])["model.norm.weight"], weights._model.model.norm.weight)
    after = weights.snapshot(1)
    assert before.checksums != after.checksums or before.probe_logprobs != after.probe_logprobs


def test_each_version_has_other_tensors_checked(weights):
    assert len({tuple(sorted(weights.snapshot(version).checksums)) for version in range(6)}) > 1


def test_the_probe_is_the_model_s_own_forward(weights):
    snapshot = weights.snapshot(1)
    assert len(snapshot.probe_ids) == PROBE_TOKENS and len(snapshot.probe_logprobs) == PROBE_TOKENS - 1
    with torch.no_grad():
        logits = weights._model(torch.tensor([snapshot.probe_ids])).logits[0]
    expected = torch.log_softmax(logits, -1)[4, snapshot.probe_ids[5]]
    assert snapshot.probe_logprobs[4] == pytest.approx(float(expected), abs=1e-6)


def test_what_an_engine_reports_is_compared(weights):
    snapshot = weights.snapshot(2)
    snapshot.check_update("engine 0", UpdateReport(2, dict(snapshot.checksums), 0.0))
    snapshot.check_probe("engine 0", [p + 9e-5 for p in snapshot.probe_logprobs])
    with pytest.raises(WeightsDiffer, match="version 1 after the update to 2"):
        snapshot.check_update("engine 0", UpdateReport(1, dict(snapshot.checksums), 0.0))
    with pytest.raises(WeightsDiffer, match="another "):
        snapshot.check_update("engine 0", UpdateReport(2, {}, 0.0))
    with pytest.raises(WeightsDiffer, match="nats off"):
        snapshot.check_probe("engine 0", [p + 2e-4 for p in snapshot.probe_logprobs])
    with pytest.raises(WeightsDiffer, match="scored 1 of 31"):
        snapshot.check_probe("engine 0", [-1.0])
