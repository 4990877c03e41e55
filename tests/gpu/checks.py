"""What only an accelerator can show, as functions that return figures: `check.sh` prints them, `test_gpu.py` asserts.

Nothing of this has run on one yet. torch calls NVIDIA's and AMD's devices "cuda", and RCCL "nccl".
"""

import asyncio
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from benchmarks.models import THREE_MILLION, make_qwen3
from contracts.events import Outcome
from contracts.recipe import RlStage
from tests.trainer.pipeline_run import RL, STAGES, TinyRun
from tests.trainer.tiny import make_tokenizer
from trainer.algorithm.packing import Row
from trainer.cluster import ANY_ENGINE, ENGINE_PYTHON, EngineHost
from trainer.policy.handover import Offers
from trainer.policy.learner import Sample, learn
from trainer.policy.learners import RemoteLearner
from trainer.policy.model import compute_logprobs, load_model
from trainer.policy.optimizer import make_optimizer
from trainer.policy.parallel import GPU, shard_model
from trainer.ranks import ON_GPU, RANK, LearnerHost
from trainer.rollout.engine import SamplingSpec
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.nccl_weights import NcclWeights
from trainer.rollout.remote import MEMORY_SHARE, EngineSettings
from trainer.rollout.weights import exchange_file

NO_ACCELERATOR = 3  # exit status
VOCABULARY, CONTEXT, ROWS, PROMPT, TOKENS = 2048, 512, 64, 32, 128
MASK = [1] * TOKENS
STAGE = RlStage.model_validate({"kind": "rl", "name": "rl", "prompts_per_step": 8, "steps": 1})
TINY_VOCABULARY = 267  # of `make_tokenizer`
SHARED_MEMORY_SHARE = 0.3
DRIFT_MEAN, DRIFT_MAX = 0.01, 0.1  # nats, bfloat16 against float32: on a CPU this model drifts by 0.0026 and 0.0143


@dataclass(frozen=True)
class Figure:
    name: str
    value: str
    is_right: bool = True


def find_missing() -> list[str]:
    """A sentence for each thing without which the checks cannot run."""
    return [] if ENGINE_PYTHON.exists() else [f"vLLM is missing: there is no {ENGINE_PYTHON}."]


def make_samples(count: int, seed: int = 0) -> list[Sample]:
    """Half of the rollouts right, half wrong."""
    draw = torch.Generator().manual_seed(seed)
    ids = torch.randint(VOCABULARY, (count, PROMPT + TOKENS), generator=draw).tolist()
    return [
        Sample(Row(row[:PROMPT], row[PROMPT:], MASK), str(i // 8), 1.0 if i % 2 else -1.0, [-7.6] * TOKENS)
        for i, row in enumerate(ids)
    ]


def check_learner(folder: Path) -> list[Figure]:
    """A bf16 step by FSDP2 on one GPU, and how far its log-probabilities are from float32 on the CPU."""
    samples = make_samples(ROWS)
    rows = [sample.row for sample in samples]
    expected = torch.cat(compute_logprobs(load_model(folder), rows, 1.0))
    with tempfile.NamedTemporaryFile() as meeting:
        dist.init_process_group("nccl", init_method=f"file://{meeting.name}.store", rank=0, world_size=1)
        try:
            model = shard_model(load_model(folder), GPU)
            drift = (torch.cat(compute_logprobs(model, rows, 1.0)) - expected).abs()
            optimizer = make_optimizer(model)
            seconds = []
            for seed in range(3):
                started = time.perf_counter()
                report = learn(model, optimizer, samples, stage=STAGE, rate=1e-4, seed=seed)
                torch.cuda.synchronize()
                seconds.append(time.perf_counter() - started)
        finally:
            dist.destroy_process_group()
    is_near = float(drift.mean()) <= DRIFT_MEAN and float(drift.max()) <= DRIFT_MAX
    return [
        Figure("learner: bf16 from fp32, mean and max", f"{drift.mean():.1e}, {drift.max():.1e} nats", is_near),
        Figure("learner: a step", f"{ROWS * TOKENS / min(seconds):,.0f} tokens/s"),
        Figure("learner: gradient norm", f"{report.grad_norm:.3g}", 0 < report.grad_norm < float("inf")),
        Figure("learner: peak memory", f"{torch.cuda.max_memory_allocated() / 1e6:,.0f} MB"),
    ]


def has_two_gpus() -> bool:
    return torch.cuda.device_count() > 1


def share_one_gpu() -> None:
    """Let learner and engine have the same GPU. NCCL admits no two members of a group on one device of a host, so each
    process is told that it is a host of its own; what it then measures are sockets, not links between GPUs."""
    for environment, host in ((RANK, "learner"), (ANY_ENGINE, "engine")):
        environment |= {"NCCL_HOSTID": host, "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}
    import ray

    torch.cuda.init()  # before this process sees the one as two
    os.environ["HIP_VISIBLE_DEVICES" if torch.version.hip else "CUDA_VISIBLE_DEVICES"] = "0,0"
    ray.init(num_gpus=2, include_dashboard=False, object_store_memory=100_000_000)


async def check_transfer(folder: Path) -> list[Figure]:
    """One rank and one vLLM engine, to which two versions of the weights go over nccl; its guards raise where they
    differ."""
    if not has_two_gpus():
        share_one_gpu()
    share = MEMORY_SHARE if has_two_gpus() else SHARED_MEMORY_SHARE
    engines = EngineHost(1, EngineSettings(str(folder), CONTEXT, is_on_gpu=True, memory_share=share))
    ranks = LearnerHost(1, folder, ON_GPU, is_on_gpu=True)
    offers = Offers(ranks, [exchange_file(folder, f"offer-{number}") for number in range(2)])
    weights = NcclWeights(offers.publish, ranks.sender, workers=1, vocabulary=VOCABULARY)
    pool = EnginePool(engines, 1, weights, max_context=CONTEXT, vocab_size=VOCABULARY, tell=print)
    learner = RemoteLearner(ranks, offers)
    found = [Figure("transfer: layout", "a GPU each" if has_two_gpus() else "ONE GPU SHARED, sockets in between")]
    try:
        for version in (1, 2):
            learner.offer()
            started = time.perf_counter()
            await pool.publish(version)
            found += await _generate(pool, learner, version)
            found.append(Figure(f"engine: sync and turns, version {version}", f"{time.perf_counter() - started:.1f} s"))
            learner.learn(make_samples(ROWS), stage=STAGE, rate=1e-3, seed=version)
    finally:
        await pool.close()
        learner.close()
    return found


async def _generate(pool: EnginePool, learner: RemoteLearner, version: int) -> list[Figure]:
    prompts = [list(sample.row.prompt_ids) for sample in make_samples(ROWS, seed=version)]
    specs = [SamplingSpec(TOKENS, 1.0, seed, ()) for seed in range(ROWS)]
    started = time.perf_counter()
    turns = await asyncio.gather(*(pool.generate(ids, spec) for ids, spec in zip(prompts, specs, strict=True)))
    seconds = time.perf_counter() - started
    rows = [Row(ids, turn.ids, MASK) for ids, turn in zip(prompts, turns, strict=True)]
    expected = torch.cat([scores.logprobs for scores in learner.score(rows, 1.0)])
    drift = (torch.tensor([p for turn in turns for p in turn.logprobs]) - expected).abs()
    is_near = float(drift.mean()) <= DRIFT_MEAN and float(drift.max()) <= DRIFT_MAX
    versions = {turn.policy_version for turn in turns}
    return [
        Figure("engine: from the learner, mean and max", f"{drift.mean():.1e}, {drift.max():.1e} nats", is_near),
        Figure("engine: generation", f"{ROWS * TOKENS / seconds:,.0f} tokens/s, 64 requests"),
        Figure("engine: version of its tokens", f"{sorted(versions)}", versions == {version}),
    ]


def check_run(folder: Path) -> list[Figure]:
    """Three RL steps of a run laid out for two GPUs, a rank and an engine; tool and grades are made up."""
    make_tokenizer().save_pretrained(folder)
    stages = [STAGES[0], STAGES[1], RL | {"evaluate_every": 0, "learning_rate": 1e-5}]
    with pytest.MonkeyPatch.context() as patch:
        run = TinyRun(folder / "run", patch, model=folder, stages=stages, gpus=2, ranks=1, engines=1)
        outcome = run.start()
    gaps = [p.values["policy/logprob_gap_max"] for p in run.payloads("metrics") if "policy/logprob_gap_max" in p.values]
    ended = run.payloads("run_ended")[0]
    return [
        Figure("run: on two GPUs", f"{outcome} {ended.reason}", outcome is Outcome.FINISHED),
        Figure("run: largest gap in a step", f"{max(gaps, default=0):.1e} nats", bool(gaps) and max(gaps) <= DRIFT_MAX),
    ]


def with_model(check: Callable[[Path], list[Figure]], vocabulary: int = VOCABULARY) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        make_qwen3(vocabulary, **THREE_MILLION).save_pretrained(folder)
        return check(Path(folder))


def main() -> int:
    if not torch.cuda.is_available():
        print("There is no accelerator here that torch can use; nothing was checked.")
        return NO_ACCELERATOR
    missing = find_missing()
    figures = with_model(check_learner)
    if not missing:
        if has_two_gpus():
            figures += with_model(check_run, TINY_VOCABULARY)
        figures += with_model(lambda folder: asyncio.run(check_transfer(folder)))
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        print(f"{'ok  ' if figure.is_right else 'FAIL'}  {figure.name:{width}}  {figure.value}")
    for sentence in missing:
        print(f"FAIL  {sentence}")
    return int(bool(missing) or not all(figure.is_right for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
