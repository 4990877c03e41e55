"""A rank, its sender and two real vLLM engines, laid out for three GPUs that are not there: the weights come over gloo,
by the receiving half of vLLM's transfer `nccl`, into engines on CPUs."""

import asyncio
import os
import signal
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
import torch

from tests.trainer.gloo_parts import GLOO
from tests.trainer.two_ranks import RATE, SINGLE, make_samples
from tests.vllm.conftest import CONTEXT, START_S, TINY_BASE
from tests.vllm.on_cpu import OnCpu
from trainer.algorithm.packing import Row
from trainer.cluster import ANY_ENGINE, CPU_ENGINE, EngineHost
from trainer.policy.handover import Offers
from trainer.policy.learners import RemoteLearner
from trainer.policy.model import compute_logprobs, load_model
from trainer.ranks import LearnerHost
from trainer.rollout.engine import Generation, SamplingSpec
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.nccl_weights import NcclWeights
from trainer.rollout.offer import Offer, read_offer
from trainer.rollout.remote import EngineSettings

LIMIT = 1e-4  # nats
PROMPTS = [[5, 6, 7, 8 + i] for i in range(8)]


async def settle(pool: EnginePool) -> None:
    while any(slot.holds is not pool._snapshot for slot in pool._slots):
        await pool._changed.wait()


def worst_gap(offer: Offer, turns: Sequence[Generation]) -> float:
    """Between the engines' log-probabilities and those by the weights that were sent, nats."""
    model = load_model(TINY_BASE)
    parameters = dict(model.named_parameters())
    with torch.no_grad():
        for name, tensor in zip(offer.names, read_offer(offer.path, offer.shapes), strict=True):
            parameters[name].copy_(tensor)
    rows = [Row(ids, turn.ids, [1] * len(turn.ids)) for ids, turn in zip(PROMPTS, turns, strict=True)]
    found = torch.tensor([p for turn in turns for p in turn.logprobs])
    return float((found - torch.cat(compute_logprobs(model, rows, 1.0))).abs().max())


def _runs(process: psutil.Process) -> bool:
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


def test_vllm_engines_hold_what_the_rank_has_learned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("RAY_")]:
        monkeypatch.delenv(name)
    import ray

    ray.init(num_cpus=2, num_gpus=3, include_dashboard=False, log_to_driver=False, object_store_memory=100_000_000)
    monkeypatch.setattr("trainer.cluster.EngineActor", OnCpu)
    monkeypatch.setattr("trainer.cluster.ANY_ENGINE", ANY_ENGINE | CPU_ENGINE)
    vocabulary = int(load_model(TINY_BASE).config.vocab_size)
    told: list[str] = []
    with asyncio.Runner() as runner:
        engines = EngineHost(2, EngineSettings(str(TINY_BASE), CONTEXT, is_on_gpu=True))
        ranks = LearnerHost(1, TINY_BASE, GLOO, is_on_gpu=True)
        offers = Offers(ranks, [tmp_path / "offer-0", tmp_path / "offer-1"])
        weights = NcclWeights(offers.publish, ranks.sender, workers=1, vocabulary=vocabulary)
        pool = EnginePool(
            engines,
            2,
            weights,
            max_context=CONTEXT,
            vocab_size=vocabulary,
            tell=lambda text: told.append(text) or print(text),
        )
        learner = RemoteLearner(ranks, offers)

        async def sample(version: int) -> list[Generation]:
            learner.offer()
            await pool.publish(version)
            specs = [SamplingSpec(40, 1.0, seed, ()) for seed in range(len(PROMPTS))]
            turns = await asyncio.gather(*map(pool.generate, PROMPTS, specs))
            await asyncio.wait_for(settle(pool), START_S)
            assert worst_gap(offers.publish(), turns) < LIMIT
            assert {turn.policy_version for turn in turns} == {version}
            return turns

        try:
            first = runner.run(sample(1))
            facts = [runner.run(slot.engine.facts()) for slot in pool._slots]
            assert sorted([ranks.places()[0].gpus, *(fact.gpus for fact in facts)]) == ["0", "1", "2"]
            learner.learn(make_samples(), stage=SINGLE, rate=RATE, seed=1)
            below = psutil.Process(facts[0].pid).children(recursive=True)
            for process in below:
                process.suspend()  # as one that hangs in a transfer: it cannot end itself
            os.kill(facts[0].pid, signal.SIGKILL)
            second = runner.run(sample(2))
            assert below and not [process for process in below if _runs(process)]  # they would keep their GPU's memory
        finally:
            runner.run(pool.close())
            learner.close()
            ray.shutdown()
    assert [turn.ids for turn in first] != [turn.ids for turn in second]
    assert len(told) == 1 and told[0].startswith("engine 0 is gone")
