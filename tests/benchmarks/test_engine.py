"""The engine benchmark's arithmetic on numbers worked by hand, and one real round of two engines."""

import pytest
import torch

from benchmarks.engine import BASELINE, OURS, Row, Sample, compare, format_table, judge, measure
from benchmarks.models import THREE_MILLION, make_qwen3


def row(name: str, speed: float, parity: float = 1e-6) -> Row:
    samples = [Sample(1000, 1000 / s, 0.2) for s in (speed / 2, speed, speed * 2)]
    return Row(name, {1: samples, 16: samples, 64: samples}, parity)


def test_medians_ratio_and_bar():
    rows = [row(OURS, 9000.0), row(BASELINE, 3000.0), Row("vLLM AsyncLLM", reason="vLLM is not installed here")]
    assert rows[0].tokens_s(64) == pytest.approx(9000)
    assert rows[0].cpu_s_per_1000(64) == pytest.approx(0.2)
    table = format_table(rows)
    assert "| torch (ours) | 9,000 | 9,000 | 9,000 | 0.200 | 0.200 | 0.200 | 3.00 | 1.0e-06 |" in table
    assert "vLLM is not installed here" in table
    assert len({line.count("|") for line in table.splitlines()}) == 1
    assert judge(rows) == (True, "bar: torch (ours) at batch 64, 9,000 tok/s of 8,000: met")
    assert judge([row(OURS, 7999.0)])[1].endswith("NOT met")
    assert not judge([Row(OURS)])[0]


def test_parity_is_the_largest_difference(tmp_path):
    model = make_qwen3(64)
    with torch.no_grad():
        true = torch.log_softmax(model(torch.tensor([[3, 5, 7]])).logits[0], -1)
    logprobs = [float(true[0, 5]), float(true[1, 7]) + 0.25]
    answer = {"prompts": [[3]], "ids": [[5, 7]], "logprobs": [logprobs]}
    assert compare(model, answer) == pytest.approx(0.25, abs=1e-4)


@pytest.mark.integration
def test_a_real_round(tmp_path, monkeypatch):
    monkeypatch.setattr("benchmarks.engine.BATCHES", (2,))
    monkeypatch.setattr("benchmarks.engine.ENGINE_PYTHON", tmp_path / "no vllm")
    model = make_qwen3(320, **THREE_MILLION)
    model.save_pretrained(tmp_path / "model")
    rows = [Row(OURS), Row(BASELINE), Row("vLLM in process"), Row("vLLM AsyncLLM")]
    measure(model, tmp_path / "model", rows, rounds=1, tokens=6, threads=1)
    assert [len(r.samples.get(2, [])) for r in rows] == [1, 1, 0, 0]
    assert rows[2].reason.endswith("`make vllm`")
    assert all(r.parity is not None and r.parity < 1e-4 for r in rows[:2])
    assert rows[0].samples[2][0].cpu_s > 0
