"""Stand-ins for what only GPUs have: gloo in NCCL's place, and our torch engine, receiving by it, in vLLM's."""

import asyncio
import os
from base64 import b64decode
from collections.abc import AsyncGenerator, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.gloo_group import GlooGroup, make_identity
from trainer.cluster import EngineActor, show_own_gpus
from trainer.devices import visible_devices
from trainer.policy.model import load_model
from trainer.policy.parallel import CPU
from trainer.ranks import Device
from trainer.rollout.engine import EngineLoad, Generation, SamplingSpec
from trainer.rollout.remote import EngineFacts, EngineSettings, NewTokens, UpdateReport
from trainer.rollout.torch_engine import TorchEngine
from trainer.rollout.weights import digest

DEATH_NOTE = "die-in-a-broadcast"  # a file in the model's folder: who finds it dies


GLOO = Device(CPU, "gloo", GlooGroup, make_identity)


class ReceivingEngine:
    """Holds what it received, in bfloat16, as a real engine on a GPU would."""

    def __init__(self, settings: EngineSettings) -> None:
        torch.set_num_threads(1)
        self._folder = Path(settings.model)
        self._model = load_model(self._folder)
        self._engine = TorchEngine(self._model, max_batch=64, max_context=settings.max_context)

    async def facts(self) -> EngineFacts:
        return EngineFacts("0", os.getpid(), visible_devices(os.environ) or "")

    async def generate(self, request_id: str, ids: Sequence[int], spec: SamplingSpec) -> Generation:
        return await self._engine.generate(ids, spec)

    async def pause(self) -> None:
        pass

    async def resume(self) -> None:
        pass

    async def init_transfer(self, info: dict[str, Any]) -> None:
        identity = b64decode(info["nccl_unique_id_b64"])
        self._group = await asyncio.to_thread(GlooGroup, identity, info["world_size"], info["rank_offset"])

    async def update(self, info: dict[str, Any], version: int, names: Sequence[str]) -> UpdateReport:
        received = await asyncio.to_thread(lambda: dict(self._receive(info)))
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(received[name])
        self._engine.set_version(version)
        return UpdateReport(version, {name: digest(received[name]) for name in names}, 0.0)

    def _receive(self, info: dict[str, Any]) -> Iterator[tuple[str, Tensor]]:
        places = zip(info["names"], info["dtype_names"], info["shapes"], strict=True)
        for number, (name, dtype, shape) in enumerate(places):
            if number == 3 and (self._folder / DEATH_NOTE).exists():
                (self._folder / DEATH_NOTE).unlink()
                os._exit(1)
            tensor = torch.empty(shape, dtype=getattr(torch, dtype))
            self._group.broadcast(tensor)
            yield name, tensor

    async def probe(self, request_id: str, ids: Sequence[int]) -> list[float]:
        with torch.no_grad():
            logits = self._model(torch.tensor([list(ids)])).logits[0, :-1]
        return torch.log_softmax(logits, -1).gather(1, torch.tensor(ids[1:])[:, None])[:, 0].tolist()

    async def load(self) -> EngineLoad:
        return self._engine.load()

    async def stream(
        self, request_id: str, ids: Sequence[int], spec: SamplingSpec
    ) -> AsyncGenerator[NewTokens | Generation]:
        yield await self.generate(request_id, ids, spec)

    async def digests(self) -> dict[str, str]:
        return {name: digest(parameter.detach()) for name, parameter in self._model.named_parameters()}


class ReceivingActor(EngineActor):
    """In its place."""

    def __init__(self, settings: EngineSettings) -> None:
        show_own_gpus()
        self._engine = ReceivingEngine(settings)
