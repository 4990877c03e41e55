"""What the sending half of the nccl transfer says and sends, and in which order. The group here is a list, not NCCL."""

import asyncio
import base64
import hashlib
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.tiny import make_model
from trainer.rollout import nccl_weights
from trainer.rollout.engine import EngineDead, EngineError
from trainer.rollout.nccl_weights import NcclWeights
from trainer.rollout.remote import UpdateReport
from trainer.rollout.weights import ROUNDED_PROBE_LIMIT


class FakeGroup:
    """Holds what was sent; `size` members have to be told of it before anybody has joined."""

    def __init__(self, identity: bytes, size: int) -> None:
        self.identity, self.size = identity, size
        self.sent: list[Tensor] = []

    def broadcast(self, tensor: Tensor) -> None:
        self.sent.append(tensor.clone())


class Worker:
    """An engine that takes what the group has, by the names and types it was told."""

    def __init__(self, groups: list[FakeGroup]) -> None:
        self.groups = groups
        self.inits: list[dict[str, Any]] = []
        self.held: dict[str, Tensor] = {}
        self.taken: dict[bytes, int] = {}
        self.is_dead = False

    async def init_transfer(self, info: dict[str, Any]) -> None:
        self.inits.append(info)

    async def update(self, info: dict[str, Any], version: int, names: Sequence[str]) -> UpdateReport:
        if self.is_dead:
            raise EngineDead("gone")
        group, count = self.groups[-1], len(info["names"])
        start = self.taken.get(group.identity, 0)
        while len(group.sent) < start + count:
            await asyncio.sleep(0)
        self.taken[group.identity] = start + count
        sent = group.sent[start : start + count]
        for name, dtype, shape, tensor in zip(info["names"], info["dtype_names"], info["shapes"], sent, strict=True):
            assert (tensor.dtype, list(tensor.shape)) == (getattr(torch, dtype), shape)
            self.held[name] = tensor
        sums = {n: hashlib.sha256(self.held[n].float().numpy().tobytes()).hexdigest() for n in names}
        return UpdateReport(version, sums, 0.0)


def make(workers: int = 1) -> tuple[NcclWeights, Any, list[FakeGroup]]:
    groups: list[FakeGroup] = []

    def join(identity: bytes, size: int) -> FakeGroup:
        groups.append(FakeGroup(identity, size))
        return groups[-1]

    model = make_model()
    identities = iter(bytes([i]) * 128 for i in range(1, 9))
    return NcclWeights(model, workers, join=join, make_identity=lambda: next(identities)), model, groups


async def test_each_worker_has_its_place_and_holds_the_rounded_weights() -> None:
    weights, model, groups = make(workers=2)
    engines: list[Any] = [Worker(groups), Worker(groups)]
    snapshot = weights.snapshot(3)
    reports = await weights.deliver(snapshot, engines)
    assert [(e.inits[0]["rank_offset"], e.inits[0]["world_size"]) for e in engines] == [(1, 5), (3, 5)]
    assert base64.b64decode(engines[0].inits[0]["nccl_unique_id_b64"]) == groups[0].identity
    assert groups[0].size == 5 and engines[1].inits[0]["packed"] is False
    for engine, report in zip(engines, reports, strict=True):
        assert isinstance(report, UpdateReport)
        snapshot.check_update("engine", report)
        assert engine.held.keys() == dict(model.named_parameters()).keys()
        for name, parameter in model.named_parameters():
            assert torch.equal(engine.held[name], parameter.detach().bfloat16())
    assert snapshot.probe_limit == ROUNDED_PROBE_LIMIT
    assert all(name.endswith("norm.weight") for name in snapshot.checksums)  # the others are in two parts


async def test_a_group_lasts_while_its_engines_do_and_an_update_follows_the_weights() -> None:
    weights, model, groups = make()
    engines: list[Any] = [Worker(groups), Worker(groups)]
    await weights.deliver(weights.snapshot(1), engines)
    with torch.no_grad():
        model.model.norm.weight.add_(1)
    await weights.deliver(weights.snapshot(2), engines)
    assert len(groups) == 1 and len(engines[0].inits) == 1
    assert torch.equal(engines[0].held["model.norm.weight"], model.model.norm.weight.detach().bfloat16())
    rebuilt: list[Any] = [engines[0], Worker(groups)]
    await weights.deliver(weights.snapshot(3), rebuilt)
    assert [g.identity[0] for g in groups] == [1, 2] and len(engines[0].inits) == 2


async def test_an_engine_that_dies_is_said_and_a_transfer_that_hangs_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    weights, _, groups = make()
    engines: list[Any] = [Worker(groups), Worker(groups)]
    engines[1].is_dead = True
    found = await weights.deliver(weights.snapshot(1), engines)
    assert isinstance(found[0], UpdateReport) and isinstance(found[1], EngineDead)

    async def hang(*_: Any) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(nccl_weights, "TRANSFER_S", 0.01)
    monkeypatch.setattr("asyncio.to_thread", hang)
    with pytest.raises(EngineError, match="were not taken by all engines"):
        await weights.deliver(weights.snapshot(2), engines)
