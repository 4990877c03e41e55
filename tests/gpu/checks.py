"""What only an accelerator can show, as functions that return figures: `check.sh` prints them, `test_gpu.py` asserts.

Nothing of this has run on one yet. torch calls NVIDIA's and AMD's devices "cuda", and RCCL "nccl".
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch
import torch.distributed as dist
from transformers import Qwen3ForCausalLM

from benchmarks.models import THREE_MILLION, make_qwen3
from contracts.recipe import RlStage
from trainer.algorithm.packing import Row
from trainer.cluster import ENGINE_PYTHON, EngineHost
from trainer.policy.learner import Sample, learn
from trainer.policy.model import compute_logprobs, load_model
from trainer.policy.optimizer import make_optimizer
from trainer.policy.parallel import GPU, shard_model
from trainer.rollout.engine import SamplingSpec
from trainer.rollout.engine_pool import EnginePool
from trainer.rollout.remote import EngineSettings

NO_ACCELERATOR = 3  # exit status
VOCABULARY, CONTEXT, ROWS, PROMPT, TOKENS = 2048, 512, 64, 32, 128
MASK = [1] * TOKENS
DRIFT_MEAN, DRIFT_MAX = 0.02, 0.5  # nats, bfloat16 against float32: a guess until it has been measured


@dataclass(frozen=True)
class Figure:
    name: str
    value: str
    is_right: bool = True


def find_missing() -> list[str]:
    """A sentence for each thing without which the checks cannot run."""
    found = []
    if torch.cuda.device_count() < 2:
        found.append("One GPU only: the transfer of weights needs one for the trainer and one for the engine.")
    if not ENGINE_PYTHON.exists():
        found.append(f"vLLM is missing: there is no {ENGINE_PYTHON}.")
    if find_spec("trainer.rollout.nccl_weights") is None:
        found.append("The trainer's half of the nccl transfer is missing: there is no trainer/rollout/nccl_weights.py.")
    return found


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
            stage = RlStage.model_validate({"kind": "rl", "name": "rl", "prompts_per_step": 8, "steps": 1})
            optimizer = make_optimizer(model)
            seconds = []
            for seed in range(3):
                started = time.perf_counter()
                report = learn(model, optimizer, samples, stage=stage, rate=1e-4, seed=seed)
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


async def check_engine(folder: Path) -> list[Figure]:
    """A vLLM engine that takes two versions of the weights over nccl; its guards raise where they differ."""
    from trainer.rollout.nccl_weights import NcclWeights

    torch.cuda.set_device(torch.cuda.device_count() - 1)  # the engine has the first one
    model = load_model(folder)
    host = EngineHost(1, EngineSettings(str(folder), CONTEXT, is_on_gpu=True, memory_share=0.3))
    told: list[str] = []
    pool = EnginePool(host, 1, NcclWeights(model, 1), max_context=CONTEXT, vocab_size=VOCABULARY, tell=told.append)
    found: list[Figure] = []
    try:
        for version in (1, 2):
            started = time.perf_counter()
            await pool.publish(version)
            found.append(Figure(f"engine: weights of version {version}", f"{time.perf_counter() - started:.2f} s"))
            found += await _generate(pool, model, version)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.mul_(1.02)
    finally:
        await pool.close()
        host.close()
    return found


async def _generate(pool: EnginePool, model: Qwen3ForCausalLM, version: int) -> list[Figure]:
    prompts = [list(sample.row.prompt_ids) for sample in make_samples(ROWS, seed=version)]
    specs = [SamplingSpec(TOKENS, 1.0, seed, ()) for seed in range(ROWS)]
    started = time.perf_counter()
    turns = await asyncio.gather(*(pool.generate(ids, spec) for ids, spec in zip(prompts, specs, strict=True)))
    seconds = time.perf_counter() - started
    rows = [Row(ids, turn.ids, MASK) for ids, turn in zip(prompts, turns, strict=True)]
    expected = torch.cat(compute_logprobs(model, rows, 1.0))
    drift = (torch.tensor([p for turn in turns for p in turn.logprobs]) - expected).abs()
    is_near = float(drift.mean()) <= DRIFT_MEAN and float(drift.max()) <= DRIFT_MAX
    versions = {turn.policy_version for turn in turns}
    return [
        Figure("engine: bf16 from fp32, mean and max", f"{drift.mean():.1e}, {drift.max():.1e} nats", is_near),
        Figure("engine: generation", f"{ROWS * TOKENS / seconds:,.0f} tokens/s, 64 requests"),
        Figure("engine: version of its tokens", f"{sorted(versions)}", versions == {version}),
    ]


def with_model(check: Callable[[Path], list[Figure]]) -> list[Figure]:
    with tempfile.TemporaryDirectory() as folder:
        make_qwen3(VOCABULARY, **THREE_MILLION).save_pretrained(folder)
        return check(Path(folder))


def main() -> int:
    if not torch.cuda.is_available():
        print("There is no accelerator here that torch can use; nothing was checked.")
        return NO_ACCELERATOR
    missing = find_missing()
    figures = with_model(check_learner)
    if not missing:
        figures += with_model(lambda folder: asyncio.run(check_engine(folder)))
    width = max(len(figure.name) for figure in figures)
    for figure in figures:
        print(f"{'ok  ' if figure.is_right else 'FAIL'}  {figure.name:{width}}  {figure.value}")
    for sentence in missing:
        print(f"FAIL  {sentence}")
    return int(bool(missing) or not all(figure.is_right for figure in figures))


if __name__ == "__main__":
    sys.exit(main())
