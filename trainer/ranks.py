"""The ranks of a run's learner as Ray actors, and on GPUs the process that sends what they publish to the engines."""

import os
import socket
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch.cuda import nccl

from trainer.cluster import PROJECT, RayUse, first_line, node_address, reserve, show_own_gpus
from trainer.devices import visible_devices
from trainer.policy.parallel import CPU, GPU, Layout
from trainer.policy.rank_host import LearnerLost
from trainer.rollout.engine import EngineDead, EngineError
from trainer.rollout.nccl_weights import Group, NcclGroup
from trainer.rollout.offer import read_offer

RANK = {"PYTHONPATH": str(PROJECT), "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
DEATH_S = 10.0  # until Ray knows of a death that other ranks have seen
SENDER_SHARE = 0.1  # of the first rank's GPU, for Ray: it puts both processes on one


@dataclass(frozen=True, slots=True)
class Device:
    """What ranks compute on and are joined by, and how a sender beside them joins engines."""

    layout: Layout
    backend: str
    make_group: Callable[[bytes, int], Group] = NcclGroup
    make_identity: Callable[[], bytes] = nccl.unique_id


ON_CPU = Device(CPU, "gloo")
ON_GPU = Device(GPU, "nccl")


@dataclass(frozen=True, slots=True)
class Place:
    """Where a rank is: its process and the GPUs that it sees."""

    pid: int
    gpus: str


class LearnerHost:
    """A place in the cluster for each rank of the learner, and the ranks in them: a `RankHost` of the learners.

    Ray restarts no rank (`max_restarts=0`): its part of the weights is gone, so all begin anew at a checkpoint.
    """

    def __init__(self, ranks: int, source: Path, device: Device = ON_CPU, *, is_on_gpu: bool = False) -> None:
        """`source`: the model folder that each rank reads first. `is_on_gpu`: each rank has one of Ray's GPUs."""
        self._use = RayUse(ranks)
        self._ray = self._use.ray
        self._source = source
        self._count = ranks
        self._device = device
        self._is_on_gpu = is_on_gpu
        try:
            self._group = reserve(self._ray, ranks, "ranks", 1, is_on_gpu=is_on_gpu)
        except BaseException:
            self._use.end()
            raise
        self._ranks: list[Any] = []
        self.sender = RaySender(self._ray, self._start_sender)

    def start(self) -> None:
        """End what ranks there are and start all, joined in one process group; LearnerLost when one dies of it.

        The sender stays: what was published last can be sent while the ranks begin anew.
        """
        self._end()
        self._ranks = [self._start(RankActor, rank, 1 - SENDER_SHARE * (rank == 0)) for rank in range(self._count)]
        [meeting] = self._wait_for([self._ranks[0].find_meeting.remote()])
        where = (meeting, self._count, self._source)
        self._wait_for([actor.join.remote(rank, *where) for rank, actor in enumerate(self._ranks)])

    def _start_sender(self) -> Any:
        return self._start(SenderActor, 0, SENDER_SHARE)

    def _start(self, kind: type, rank: int, share: float) -> Any:
        """An actor in the rank's place, with that share of its GPU."""
        scheduling = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy
        return (
            self._ray.remote(kind)
            .options(
                num_cpus=0 if self._is_on_gpu else 1,
                num_gpus=share if self._is_on_gpu else 0,
                scheduling_strategy=scheduling(self._group, placement_group_bundle_index=rank),
                max_restarts=0,
                runtime_env={"py_executable": sys.executable, "env_vars": RANK},
            )
            .remote(self._device, is_on_gpu=self._is_on_gpu)
        )

    def call(self, method: str, *arguments: Any, **named: Any) -> list[Any]:
        """What each rank returns; LearnerLost when one died meanwhile."""
        given = [self._ray.put(argument) for argument in arguments]
        return self._wait_for([actor.call.remote(method, *given, **named) for actor in self._ranks])

    def close(self) -> None:
        self._end()
        self.sender.end()
        self._ray.util.remove_placement_group(self._group)
        self._use.end()

    def places(self) -> list[Place]:
        """Of each rank."""
        return self._wait_for([actor.place.remote() for actor in self._ranks])

    def _end(self) -> None:
        for actor in self._ranks:
            self._ray.kill(actor)
        self._ranks = []

    def _wait_for(self, answers: Sequence[Any]) -> list[Any]:
        """All answers. Where one is an error the others get a moment: a rank that died is often seen by them first."""
        left = list(answers)
        while left:
            done, left = self._ray.wait(left, num_returns=1)
            error = self._error_of(done[0])
            if error is None:
                continue
            more, _ = self._ray.wait(left, num_returns=len(left), timeout=DEATH_S) if left else ([], [])
            errors = [error, *filter(None, map(self._error_of, more))]
            if lost := [e for e in errors if isinstance(e, self._ray.exceptions.RayActorError)]:
                raise LearnerLost(f"a rank of the learner is gone: {first_line(lost[0])}") from None
            raise getattr(error, "cause", None) or error
        found: list[Any] = self._ray.get(list(answers))
        return found

    def _error_of(self, answer: Any) -> Exception | None:
        try:
            self._ray.get(answer)
        except self._ray.exceptions.RayError as error:
            return error
        return None


class RankActor:
    """What runs in a rank's process."""

    def __init__(self, device: Device, *, is_on_gpu: bool) -> None:
        self._device = device
        if is_on_gpu:
            show_own_gpus()

    def find_meeting(self) -> str:
        """Where the ranks meet: a free port here, asked of the first one."""
        address = node_address()
        with socket.socket() as probe:
            probe.bind((address, 0))
            return f"tcp://{address}:{probe.getsockname()[1]}"

    def join(self, rank: int, meeting: str, ranks: int, source: Path) -> None:
        from trainer.pipeline import prepare_libraries
        from trainer.policy.learners import OwnLearner

        device = self._device
        is_cuda = device.layout.device == "cuda"
        prepare_libraries(1, is_deterministic=not is_cuda)
        if is_cuda:
            torch.cuda.set_device(0)  # the only one it sees
        torch.distributed.init_process_group(device.backend, init_method=meeting, rank=rank, world_size=ranks)
        self._learner = OwnLearner.shard(source, device.layout)

    def call(self, method: str, *arguments: Any, **named: Any) -> Any:
        return getattr(self._learner, method)(*arguments, **named)

    def place(self) -> Place:
        return Place(os.getpid(), visible_devices(os.environ) or "")


class SenderActor:
    """What runs beside the first rank, on its GPU, in a process of its own: a broadcast that lost a receiver never ends
    but with its process, and the rank has to go on learning meanwhile."""

    def __init__(self, device: Device, *, is_on_gpu: bool) -> None:
        self._device = device
        self._group: Group | None = None
        if is_on_gpu:
            show_own_gpus()
        if device.layout.device == "cuda":
            torch.cuda.set_device(0)

    def make_identity(self) -> bytes:
        return self._device.make_identity()

    def join(self, identity: bytes, size: int) -> None:
        self._group = None
        self._group = self._device.make_group(identity, size)

    def send(self, path: Path, shapes: Sequence[Sequence[int]]) -> None:
        if self._group is None:
            raise EngineError("the sender of weights has joined no engines")
        for tensor in read_offer(path, shapes):
            self._group.broadcast(tensor)


class RaySender:
    """`trainer.rollout.nccl_weights.Sender` by an actor's handle; the actor is started when it is first needed."""

    def __init__(self, ray: Any, start: Callable[[], Any]) -> None:
        self._ray = ray
        self._start = start
        self._actor: Any = None

    async def make_identity(self) -> bytes:
        identity: bytes = await self._call("make_identity")
        return identity

    async def join(self, identity: bytes, size: int) -> None:
        await self._call("join", identity, size)

    async def send(self, path: Path, shapes: Sequence[Sequence[int]]) -> None:
        await self._call("send", path, shapes)

    def restart(self) -> None:
        self.end()

    def end(self) -> None:
        if self._actor is not None:
            self._ray.kill(self._actor)
        self._actor = None

    async def _call(self, method: str, *arguments: Any) -> Any:
        if self._actor is None:
            self._actor = self._start()
        errors = self._ray.exceptions
        try:
            return await getattr(self._actor, method).remote(*arguments)
        except errors.RayTaskError as error:
            raise EngineError(f"the sender of weights failed: {first_line(error)}") from None
        except (errors.RayActorError, errors.RuntimeEnvSetupError) as error:
            raise EngineDead(f"the sender of weights is gone: {first_line(error)}") from None
