"""vLLM's own receiving half takes what our sending half says and sends, in its order; gloo is in NCCL's place."""

import asyncio
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from tests.trainer.tiny import make_model
from trainer.cluster import ENGINE_PYTHON
from trainer.policy.learners import OwnLearner
from trainer.rollout.nccl_weights import NcclWeights
from trainer.rollout.offer import read_offer
from trainer.rollout.remote import UpdateReport

ROOT = Path(__file__).parents[2]
START_S = 240.0


class Receiver:
    """The engine: each message becomes a line for the process that holds vLLM's half."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def init_transfer(self, info: dict[str, Any]) -> None:
        command = [str(ENGINE_PYTHON), "-m", "tests.vllm.nccl_receiver", str(self.folder)]
        self.process = await asyncio.create_subprocess_exec(
            *command, cwd=ROOT, stdin=-1, env=os.environ | {"VLLM_LOGGING_LEVEL": "ERROR"}
        )
        await self._say(info)

    async def update(self, info: dict[str, Any], version: int, names: Sequence[str]) -> UpdateReport:
        await self._say(info)
        assert await asyncio.wait_for(self.process.wait(), START_S) == 0
        return UpdateReport(version, {}, 0.0)

    async def _say(self, info: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(info).encode() + b"\n")
        await self.process.stdin.drain()


class Driverless:
    """`Sender` in this process."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    async def make_identity(self) -> bytes:
        return bytes(128)

    async def join(self, identity: bytes, size: int) -> None:
        meeting = f"file://{self.folder}/meeting"
        await asyncio.to_thread(dist.init_process_group, "gloo", init_method=meeting, rank=0, world_size=size)

    async def send(self, path: Path, shapes: Sequence[Sequence[int]]) -> None:
        for tensor in read_offer(path, shapes):
            await asyncio.to_thread(dist.broadcast, tensor.view(torch.uint8), 0)

    def restart(self) -> None:
        raise AssertionError("nothing is lost here")


def test_the_receiver_of_vllm_loads_every_weight(tmp_path: Path) -> None:
    model = make_model()
    offer = OwnLearner(model, tmp_path).lay_out(tmp_path / "offer")
    assert offer is not None
    weights = NcclWeights(lambda: offer, Driverless(tmp_path), workers=1, vocabulary=int(model.config.vocab_size))
    engine: Any = Receiver(tmp_path)
    try:
        (report,) = asyncio.run(weights.deliver(weights.snapshot(4), [engine]))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()
    assert isinstance(report, UpdateReport) and report.version == 4
    held = torch.load(tmp_path / "held.pt")
    expected = {name: p.detach().bfloat16() for name, p in model.named_parameters()}
    assert held.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(held[name], tensor)] == []
