from pathlib import Path

import pytest

from contracts.events import Outcome
from tests.trainer.pipeline_run import TinyRun
from trainer import cluster


def test_without_vllm_the_run_ends_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "ENGINE_PYTHON", tmp_path / "none")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    run = TinyRun(tmp_path / "run", monkeypatch, engines=2)
    assert run.start() is Outcome.FAILED
    (ended,) = run.payloads("run_ended")
    assert "engines above 0 need vLLM, which is not installed: `make vllm` installs it" in ended.reason


def test_a_gpu_run_in_an_environment_that_contradicts_itself_ends_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HIP_VISIBLE_DEVICES", "0,1")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    run = TinyRun(tmp_path / "run", monkeypatch, gpus=2, ranks=1, engines=1)
    assert run.start() is Outcome.FAILED
    (ended,) = run.payloads("run_ended")
    assert "DevicesError: HIP_VISIBLE_DEVICES=0,1 and CUDA_VISIBLE_DEVICES=0 name different devices" in ended.reason
