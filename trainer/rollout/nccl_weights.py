"""The sending half of vLLM's weight transfer `nccl` (of the version in `remote`), for engines on GPUs.

The learner's first rank lays the weights out (`offer`), a process beside it sends them, and the driver says to it and
to the engines when. It has never run on a GPU: tests put gloo, or lists, in NCCL's place. vLLM must not be imported
here, so the sender joins by torch's own bindings of NCCL (RCCL on ROCm), as vLLM provides for trainers that share the
group's id with its workers themselves.
"""

import asyncio
import base64
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor
from torch.cuda import nccl

from trainer.rollout.engine import EngineDead, EngineError
from trainer.rollout.offer import ENGINE_DTYPE, Offer
from trainer.rollout.remote import RemoteEngine, UpdateReport
from trainer.rollout.weights import ROUNDED_PROBE_LIMIT, Snapshot, choose_checked, draw_probe, update_all

TRANSFER_S = 300.0
GRACE_S = 30.0  # for the others, when one of those that wait for one another is lost
BROKEN = "the transfer of weights, in which engines wait for one another, broke off"
_T = TypeVar("_T")


class Group(Protocol):
    """This process as rank 0 among the workers of engines."""

    def broadcast(self, tensor: Tensor) -> None:
        """To all workers, which wait for a tensor of this shape and type."""
        ...


class NcclGroup:
    """Over the current GPU. torch has no way to end a broadcast whose receivers died (NCCL's `ncclCommAbort`): whoever
    is in one has to be ended with its process."""

    def __init__(self, identity: bytes, size: int) -> None:
        """Returns when all `size` members have joined."""
        self._communicator = nccl.init_rank(size, identity, 0)
        one = torch.zeros(1, device="cuda")
        nccl.all_reduce([one], comms=[self._communicator])  # the workers do the same before anything else
        torch.cuda.synchronize()

    def broadcast(self, tensor: Tensor) -> None:
        nccl.broadcast([tensor.to("cuda").contiguous()], root=0, comms=[self._communicator])
        torch.cuda.synchronize()  # the copy is freed afterwards


class Sender(Protocol):
    """The process that holds the group's rank 0, beside the weights. Whatever its calls raise ends the transfer."""

    async def make_identity(self) -> bytes:
        """The name of a new group; its members find each other at this process."""
        ...

    async def join(self, identity: bytes, size: int) -> None:
        """The group, in place of an older one; when all others have joined too."""
        ...

    async def send(self, path: Path, shapes: Sequence[Sequence[int]]) -> None:
        """What lies there, tensor by tensor."""
        ...

    def restart(self) -> None:
        """End the process, also in the middle of a broadcast, and its group with it; start another one."""
        ...


class NcclWeights:
    """What the learner has offered, in bfloat16. `workers`: GPUs of each engine. One group lasts while its engines do.

    `publish`: takes what was offered last.
    """

    def __init__(self, publish: Callable[[], Offer], sender: Sender, *, workers: int, vocabulary: int) -> None:
        self._publish = publish
        self._sender = sender
        self._workers = workers
        self._probe_ids = draw_probe(vocabulary)
        self._offer: Offer | None = None
        self._members: list[RemoteEngine] = []

    def snapshot(self, version: int) -> Snapshot:
        offer = self._offer = self._publish()
        checked = choose_checked(version, list(offer.checksums), is_whole=self._workers == 1)
        info = {
            "names": offer.names,
            "dtype_names": [str(ENGINE_DTYPE).removeprefix("torch.")] * len(offer.names),
            "shapes": offer.shapes,
        }
        checksums = {name: offer.checksums[name] for name in checked}
        return Snapshot(version, info, checksums, self._probe_ids, offer.probe_logprobs, ROUNDED_PROBE_LIMIT)

    async def deliver(self, snapshot: Snapshot, engines: Sequence[RemoteEngine]) -> list[UpdateReport | BaseException]:
        """Tensor by tensor, in the order of the snapshot's names, which is the order in which the workers wait."""
        if self._offer is None:
            raise EngineError("there is no snapshot to deliver")
        if not engines:
            return []
        if self._members != list(engines):
            met = await self._meet(engines)
            if any(met):  # without those that are lost
                joined = [engine for engine, error in zip(engines, met, strict=True) if error is None]
                reports = iter(await self.deliver(snapshot, joined))
                return [error or next(reports) for error in met]
            self._members = list(engines)
        sending = self._sender.send(self._offer.path, self._offer.shapes)
        return await self._together(update_all(snapshot, engines), sending)

    def close(self) -> None:
        self._members = []

    async def _meet(self, engines: Sequence[RemoteEngine]) -> list[None | BaseException]:
        """A group of the sender and all workers of these engines: everybody waits for everybody."""
        self._members = []
        identity = await self._make_identity()
        size = 1 + self._workers * len(engines)
        told: dict[str, Any] = {
            "nccl_unique_id_b64": base64.b64encode(identity).decode(),
            "world_size": size,
            "packed": False,
        }
        places = [told | {"rank_offset": 1 + self._workers * i} for i in range(len(engines))]
        inits = [engine.init_transfer(place) for engine, place in zip(engines, places, strict=True)]
        return await self._together(inits, self._sender.join(identity, size))

    async def _make_identity(self) -> bytes:
        """By another sender where the last one has died, which nobody noticed."""
        try:
            return await self._sender.make_identity()
        except EngineDead:
            self._sender.restart()
            return await self._sender.make_identity()

    async def _together(
        self, asked: Sequence[Coroutine[Any, Any, _T]], sending: Coroutine[Any, Any, None]
    ) -> list[_T | BaseException]:
        """What each engine answers, or why not. They wait for one another and for the sender: once one is lost, who has
        not answered within GRACE_S never will. Such an engine counts as dead, such a sender is replaced."""
        answers = [asyncio.ensure_future(one) for one in asked]
        sent = asyncio.ensure_future(sending)
        everybody: list[asyncio.Future[Any]] = [*answers, sent]
        try:
            _, left = await asyncio.wait(everybody, timeout=TRANSFER_S, return_when=asyncio.FIRST_EXCEPTION)
            if left:
                await asyncio.wait(left, timeout=GRACE_S)
            found: list[_T | BaseException] = [_take(answer) for answer in answers]
            failed: BaseException | None = _take(sent)
        finally:
            for one in everybody:
                one.cancel()
            await asyncio.gather(*everybody, return_exceptions=True)
        if failed is not None:
            self._sender.restart()
        if failed is not None or any(isinstance(answer, BaseException) for answer in found):
            self._members = []
        lost = [failed] if failed is not None else [answer for answer in found if isinstance(answer, EngineDead)]
        return [_call_dead(answer, lost[0]) for answer in found] if lost else found


def _take(answer: "asyncio.Future[Any]") -> Any:
    """What it came to, an exception among it."""
    if not answer.done():
        return TimeoutError("no answer")
    return answer.exception() or answer.result()


def _call_dead(answer: _T, why: BaseException) -> _T | EngineDead:
    """An error beside a death is a consequence of it."""
    if isinstance(answer, BaseException) and not isinstance(answer, EngineDead):
        return EngineDead(f"{BROKEN} ({why}): {answer}")
    return answer
