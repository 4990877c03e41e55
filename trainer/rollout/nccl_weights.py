"""The sending half of vLLM's weight transfer `nccl` (of the version in `remote`), for engines on GPUs.

It has never run on a GPU: its order of calls and its messages are tested with a group that is no NCCL. vLLM must not be
imported here, so this process joins by torch's own bindings of NCCL (RCCL on ROCm), as vLLM provides for trainers that
share the group's id with its workers themselves.
"""

import asyncio
import base64
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.cuda import nccl
from transformers import Qwen3ForCausalLM

from trainer.rollout.engine import EngineError
from trainer.rollout.remote import RemoteEngine, UpdateReport
from trainer.rollout.weights import Guards, Snapshot, update_all

ENGINE_DTYPE = torch.bfloat16
TRANSFER_S = 300.0


class Group(Protocol):
    """This process as rank 0 among the workers of engines."""

    def broadcast(self, tensor: Tensor) -> None:
        """To all workers, which wait for a tensor of this shape and type."""
        ...


class NcclGroup:
    """Over the current GPU. There is no watch over it: a worker that dies in a broadcast leaves the others hanging."""

    def __init__(self, identity: bytes, size: int) -> None:
        """Returns when all `size` members have joined."""
        self._communicator = nccl.init_rank(size, identity, 0)
        one = torch.zeros(1, device="cuda")
        nccl.all_reduce([one], comms=[self._communicator])  # the workers do the same before anything else
        torch.cuda.synchronize()

    def broadcast(self, tensor: Tensor) -> None:
        nccl.broadcast([tensor.to("cuda").contiguous()], root=0, comms=[self._communicator])
        torch.cuda.synchronize()  # the copy is freed afterwards


class NcclWeights:
    """Of a model on the CPU, in bfloat16. `workers`: GPUs of each engine. One group lasts while its engines do."""

    def __init__(
        self,
        model: Qwen3ForCausalLM,
        workers: int,
        *,
        join: Callable[[bytes, int], Group] = NcclGroup,
        make_identity: Callable[[], bytes] = nccl.unique_id,
    ) -> None:
        self._model = model
        self._workers = workers
        self._join = join
        self._make_identity = make_identity
        self._guards = Guards(model, is_whole=workers == 1, dtype=ENGINE_DTYPE)
        self._weights: list[Tensor] = []
        self._members: list[RemoteEngine] = []
        self._group: Group | None = None

    def snapshot(self, version: int) -> Snapshot:
        named = [(name, p.detach().to(ENGINE_DTYPE)) for name, p in self._model.named_parameters()]
        self._weights = [tensor for _, tensor in named]
        info = {
            "names": [name for name, _ in named],
            "dtype_names": [str(tensor.dtype).removeprefix("torch.") for _, tensor in named],
            "shapes": [list(tensor.shape) for _, tensor in named],
        }
        return self._guards.describe(version, info)

    async def deliver(self, snapshot: Snapshot, engines: Sequence[RemoteEngine]) -> list[UpdateReport | BaseException]:
        """Tensor by tensor, in the order of the snapshot's names, which is the order in which the workers wait."""
        group = self._group
        if group is None or self._members != list(engines):
            group = await self._meet(engines)
        self._group, self._members = None, list(engines)
        taking = asyncio.gather(*update_all(snapshot, engines), return_exceptions=True)
        sending = asyncio.to_thread(self._send, group)
        try:
            reports, _ = await asyncio.wait_for(asyncio.gather(taking, sending), TRANSFER_S)
        except TimeoutError as error:
            raise EngineError(f"the weights were not taken by all engines within {TRANSFER_S:.0f} s") from error
        self._group = group  # it lasts while nothing was raised
        return reports

    def close(self) -> None:
        self._group = None

    async def _meet(self, engines: Sequence[RemoteEngine]) -> Group:
        """A group of this process and all workers of these engines: everybody waits for everybody."""
        identity = self._make_identity()
        size = 1 + self._workers * len(engines)
        told: dict[str, Any] = {
            "nccl_unique_id_b64": base64.b64encode(identity).decode(),
            "world_size": size,
            "packed": False,
        }
        places = [told | {"rank_offset": 1 + self._workers * i} for i in range(len(engines))]
        joining = asyncio.to_thread(self._join, identity, size)
        inits = [engine.init_transfer(place) for engine, place in zip(engines, places, strict=True)]
        group, _ = await asyncio.gather(joining, asyncio.gather(*inits))
        return group

    def _send(self, group: Group) -> None:
        for tensor in self._weights:
            group.broadcast(tensor)
