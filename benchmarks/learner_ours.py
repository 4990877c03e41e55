"""Our GRPO step, a line of JSON for each line on stdin; `benchmarks.learner` runs it in a process of its own."""

import asyncio
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import torch

from contracts.recipe import AdvantageScale, RlStage
from trainer.algorithm.advantage import compute_advantages
from trainer.algorithm.packing import Row
from trainer.policy.learner import Sample, learn
from trainer.policy.model import load_model
from trainer.policy.optimizer import make_optimizer
from trainer.rollout.engine import SamplingSpec
from trainer.rollout.torch_engine import TorchEngine

RATE = 1e-5
STAGE = RlStage(name="rl", loss_aggregation="token")  # as TRL's default loss
Rollout = tuple[list[int], list[int], list[float]]  # prompt ids, response ids, sampling log-probabilities


def memory_mb(field: str) -> float:
    """VmRSS (now) or VmHWM (the most since the last reset)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) // 1024 for line in lines if line.startswith(field))


def generate(runner: asyncio.Runner, engine: TorchEngine, task: dict[str, Any], step: int) -> list[Rollout]:
    """The rollouts of each prompt, prompt after prompt, of exactly the lengths asked for."""
    prompts = [[int(word[1:]) for word in prompt.split()] for prompt in task["prompts"]]
    own = [prompt for prompt in prompts for _ in range(task["group_size"])]
    if task["given"]:
        draw = random.Random(0)
        drawn = [[draw.randrange(task["words"]) for _ in range(n)] for n in task["lengths"]]
        return [(prompt, ids, [0.0] * len(ids)) for prompt, ids in zip(own, drawn, strict=True)]

    async def roll() -> list[Rollout]:
        specs = [SamplingSpec(n, 1.0, 1000 * step + i, ()) for i, n in enumerate(task["lengths"])]
        made = await asyncio.gather(*(engine.generate(ids, spec) for ids, spec in zip(own, specs, strict=True)))
        return [(ids, g.ids, g.logprobs) for ids, g in zip(own, made, strict=True)]

    return runner.run(roll())


def give_advantages(rollouts: list[Rollout], group_size: int) -> list[Sample]:
    """Any rewards that differ within a group: the same work for both."""
    rewards = [len(set(ids)) % 7 / 7 for _, ids, _ in rollouts]
    groups = [rewards[i : i + group_size] for i in range(0, len(rewards), group_size)]
    advantages = [a for group in compute_advantages(groups, AdvantageScale.STD) for a in group]
    return [
        Sample(Row(prompt, ids, [1] * len(ids)), f"g{i // group_size}", advantage, logprobs)
        for i, ((prompt, ids, logprobs), advantage) in enumerate(zip(rollouts, advantages, strict=True))
    ]


def main() -> None:
    task = json.loads(sys.argv[1])
    torch.set_num_threads(task["threads"])
    model = load_model(Path(task["folder"]))
    optimizer = make_optimizer(model)
    engine = TorchEngine(model, max_batch=len(task["lengths"]), max_context=512)
    base_mb = memory_mb("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak is counted from here
    with asyncio.Runner() as runner:
        print("ready", flush=True)
        for step, _ in enumerate(sys.stdin):
            started = time.perf_counter()
            rollouts = generate(runner, engine, task, step)
            generated = time.perf_counter()
            samples = give_advantages(rollouts, task["group_size"])
            prepared = time.perf_counter()
            learn(model, optimizer, samples, stage=STAGE, rate=RATE, seed=step)
            engine.set_version(step + 1)
            ended = time.perf_counter()
            answer = {
                "step_s": ended - started,
                "generate_s": generated - started,
                "learn_s": ended - prepared,
                "peak_mb": memory_mb("VmHWM") - base_mb,
            }
            print(json.dumps(answer), flush=True)
            print("ready", flush=True)
        runner.run(engine.close())


main()
