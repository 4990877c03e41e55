"""Two real vLLM engines on CPUs, each in a Ray actor, for all tests of a file: half a minute to start."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Qwen3ForCausalLM

from trainer.cluster import ENGINE_PYTHON, EngineHost
from trainer.policy.model import load_model, load_weights
from trainer.rollout.engine import SamplingSpec
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.remote import EngineSettings
from trainer.rollout.weights import SharedWeights, exchange_file

TINY_BASE = Path("models/tiny-base").resolve()
CONTEXT = 700
START_S = 300.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            if not ENGINE_PYTHON.exists() and not os.environ.get("CI"):  # CI fails without it
                item.add_marker(pytest.mark.skip(reason="no vLLM here: `make vllm` installs it"))
            item.add_marker(pytest.mark.filterwarnings("ignore::ResourceWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"))
            item.add_marker(pytest.mark.filterwarnings("ignore::FutureWarning"))


class Engines:
    """The pool over the learner's model, which tests change."""

    def __init__(self, folder: Path, host: EngineHost, count: int) -> None:
        self.model: Qwen3ForCausalLM = load_model(TINY_BASE)
        self.vocabulary = int(self.model.config.vocab_size)
        self.told: list[str] = []
        self.runner = asyncio.Runner()
        self.weights = SharedWeights(self.model, exchange_file(folder, "engines"))
        self.pool = EnginePool(
            host, count, self.weights, max_context=CONTEXT, vocab_size=self.vocabulary, tell=self.told.append
        )
        self.version = 0
        self.run(self.publish())

    def run(self, work: Any) -> Any:
        return self.runner.run(work)

    async def publish(self) -> int:
        self.version += 1
        await self.pool.publish(self.version)
        return self.version

    async def train(self, seed: int) -> int:
        """Other weights, in place, as an optimizer would make them."""
        draw = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.add_(torch.randn(parameter.shape, generator=draw) * 0.02)
        return await self.publish()

    async def restore(self) -> int:
        load_weights(self.model, TINY_BASE)
        return await self.publish()

    def settle(self) -> None:
        """Until every engine is up, also one that a test killed, and has the newest weights: what a test does to the
        weights must not meet an engine that is only starting, where a guard that speaks ends the pool."""

        async def wait() -> None:
            spec = SamplingSpec(max_tokens=1, temperature=1.0, seed=0, stop_ids=())
            await self.pool.generate([1, 2, 3], spec)
            while any(slot.holds is not self.pool._snapshot for slot in self.pool._slots):
                await self.pool._changed.wait()

        self.run(asyncio.wait_for(wait(), START_S))


@pytest.fixture(scope="module")
def all_engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engines]:
    torch.set_num_threads(1)
    host = EngineHost(2, EngineSettings(str(TINY_BASE), CONTEXT))
    engines = Engines(tmp_path_factory.mktemp("weights"), host, 2)
    try:
        yield engines
    finally:
        engines.run(engines.pool.close())
        engines.runner.close()


@pytest.fixture
def engines(all_engines: Engines) -> Engines:
    """With the weights of models/tiny-base."""
    all_engines.run(all_engines.restore())
    all_engines.settle()
    all_engines.told.clear()
    return all_engines
