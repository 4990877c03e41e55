"""One vLLM engine of two processes, each with half of the model: weights, guards and samples are those of the whole."""

import asyncio
from pathlib import Path

import pytest
import torch

from tests.vllm.conftest import CONTEXT, TINY_BASE
from trainer.cluster import EngineHost
from trainer.policy.model import load_model
from trainer.rollout.engine import Generation, SamplingSpec
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.remote import EngineSettings
from trainer.rollout.weights import SharedWeights, exchange_file

LIMIT = 1e-4  # nats


def test_an_engine_of_two_workers_samples_by_the_learner_s_weights(tmp_path: Path) -> None:
    torch.set_num_threads(1)
    model = load_model(TINY_BASE)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)) * 0.02)
    host = EngineHost(1, EngineSettings(str(TINY_BASE), CONTEXT, tensor_parallel=2))
    weights = SharedWeights(model, exchange_file(tmp_path, "engines"), is_whole=False)
    vocabulary = int(model.config.vocab_size)
    told: list[str] = []
    ids = [5, 6, 7, 8]
    with asyncio.Runner() as runner:
        pool = EnginePool(host, 1, weights, max_context=CONTEXT, vocab_size=vocabulary, tell=told.append)

        async def sample() -> Generation:
            await pool.publish(1)
            return await pool.generate(ids, SamplingSpec(64, 1.0, 3, ()))

        try:
            found = runner.run(sample())
        finally:
            runner.run(pool.close())
    assert not told
    with torch.no_grad():
        logits = model(torch.tensor([ids + found.ids])).logits[0, len(ids) - 1 : -1]
    exact = torch.log_softmax(logits, -1).gather(1, torch.tensor(found.ids)[:, None])[:, 0]
    assert torch.tensor(found.logprobs).numpy() == pytest.approx(exact.numpy(), abs=LIMIT)
