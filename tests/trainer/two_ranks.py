"""What one of two gloo ranks does in test_sharded: `python -m tests.trainer.two_ranks FOLDER RANK RANKS`."""

import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor

from contracts.recipe import RlStage
from trainer.algorithm.packing import Row
from trainer.policy.checkpoint import CheckpointStore, Counters
from trainer.policy.learner import LearnReport, Sample, accumulate_gradients, fix_logprobs
from trainer.policy.learners import OwnLearner
from trainer.policy.parallel import CPU, Layout, gather_weights

ROOT = Path(__file__).parents[2]
RECOMPUTED = Layout("cpu", torch.float32, recompute=True)
# Seven rollouts in mini-batches of 3, 3 and 1: in the last one a rank has nothing to do but to take part.
STAGE = RlStage(name="rl", mini_batch=3, loss_terms={"kl_k3": 0.1, "entropy": 0.01, "tis": 1.1})
SINGLE = RlStage(name="rl")
RATE = 1e-2


def make_samples() -> list[Sample]:
    generator = torch.Generator().manual_seed(1)
    made = []
    for i in range(7):
        ids = torch.randint(3, 260, (8 + 5 * i,), generator=generator).tolist()
        mask = [int(t % 5 != 3) for t in range(len(ids) - 3)]
        sampling = (-6 + torch.rand(sum(mask), generator=generator)).tolist()
        made.append(Sample(Row(ids[:3], ids[3:], mask), f"g{i // 4}", (-1.0) ** i * (1 + i / 3), sampling))
    return made


def counters(step: int) -> Counters:
    return Counters(1, "rl", step, step, step, 0, False, {})


def whole(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def gradients(learner: OwnLearner, token_budget: int) -> dict[str, torch.Tensor]:
    """Of one update on all samples, in micro-batches of at most so many tokens."""
    fixed = fix_logprobs(learner.model, make_samples(), stage=SINGLE)
    accumulate_gradients(learner.model, make_samples(), fixed, update=range(7), stage=SINGLE, token_budget=token_budget)
    found = {name: whole(p.grad) for name, p in learner.model.named_parameters() if p.grad is not None}
    learner.optimizer.zero_grad()
    return found


def state(learner: OwnLearner) -> dict[str, torch.Tensor]:
    """Weights, and moments and steps of the optimizer, whole."""
    found = {name: tensor.clone() for name, tensor in gather_weights(learner.model)}
    for name, parameter in learner.model.named_parameters():
        found |= {f"{name}.{key}": whole(value).clone() for key, value in learner.optimizer.state[parameter].items()}
    return found


def learn_twice(learner: OwnLearner, source: Path) -> list[LearnReport]:
    """A step with a reference policy and mini-batches, then one of a single update."""
    learner.hold_reference(source)
    first = learner.learn(make_samples(), stage=STAGE, rate=RATE, seed=5)
    learner.hold_reference(None)
    return [first, learner.learn(make_samples(), stage=SINGLE, rate=RATE, seed=6)]


def describe(report: LearnReport) -> dict[str, Any]:
    """Numbers only, entropies in one list."""
    return asdict(report) | {"entropies": torch.cat(report.entropies).tolist()}


def start_ranks(folder: Path, ranks: int) -> None:
    """Run `main` in so many processes; RuntimeError with what the first one that failed has written."""
    command = [sys.executable, "-W", "error", "-m", "tests.trainer.two_ranks", str(folder)]
    started = [
        subprocess.Popen([*command, str(rank), str(ranks)], cwd=ROOT, stderr=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    written = [process.communicate(timeout=300)[1] for process in started]
    for process, text in zip(started, written, strict=True):
        if process.returncode:
            raise RuntimeError(text[-3000:])


def main(folder: Path, rank: int, ranks: int) -> None:
    """Resume `folder`/one on these ranks, learn on, and write `folder`/two and what the ranks saw."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meeting", rank=rank, world_size=ranks)
    source = folder / "source"
    learner = OwnLearner.shard(source, CPU)
    [checkpoint] = CheckpointStore(folder / "one").find_all()
    learner.restore(checkpoint.path)
    seen = {"restored": state(learner), "gradients": [gradients(learner, budget) for budget in (1000, 60)]}
    seen["recomputed"] = gradients(OwnLearner.shard(checkpoint.path, RECOMPUTED), 60)
    seen["scores"] = [[s.logprobs, s.entropies] for s in learner.score([s.row for s in make_samples()], 0.7)]
    seen["reports"] = [describe(report) for report in learn_twice(learner, source)]
    only = OwnLearner.shard(checkpoint.path, CPU).learn(make_samples()[:1], stage=SINGLE, rate=RATE, seed=7)
    seen["only"] = describe(only)  # of one rollout, with which the other rank has nothing to do
    learner.save(CheckpointStore(folder / "two"), counters(2))
    seen["learned"] = state(learner)
    torch.save(seen, folder / f"seen-{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
