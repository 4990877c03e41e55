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
from trainer.rollout.nccl_weights import NcclWeights
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


def test_the_receiver_of_vllm_loads_every_weight(tmp_path: Path) -> None:
    class Gloo:
        def __init__(self, identity: bytes, size: int) -> None:
            dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=size)

        def broadcast(self, tensor: torch.Tensor) -> None:
            dist.broadcast(tensor.contiguous().view(torch.uint8), 0)

    model = make_model()
    weights = NcclWeights(model, 1, join=Gloo, make_identity=lambda: bytes(128))
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
