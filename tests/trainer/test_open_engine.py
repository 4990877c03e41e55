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
