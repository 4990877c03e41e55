"""What the driver says to the sender and to engines, in which order, and what becomes of those that are lost on the
way. The group here is a list, not NCCL."""

import asyncio
import base64
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.trainer.tiny import make_model, save_tiny
from trainer.policy.handover import Offers
from trainer.policy.learners import OwnLearner
from trainer.policy.model import load_model
from trainer.rollout import nccl_weights
from trainer.rollout.engine import EngineDead, EngineError
from trainer.rollout.nccl_weights import NcclWeights
from trainer.rollout.offer import Offer, read_offer
from trainer.rollout.remote import UpdateReport
from trainer.rollout.weights import ROUNDED_PROBE_LIMIT, digest


class FakeGroup:
    """Its members' calls return when all have joined, and a tensor is there when it was sent."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.joined = 0
        self.sent: list[Tensor] = []
        self.changed = asyncio.Event()

    def tell(self) -> None:
        self.changed.set()
        self.changed = asyncio.Event()

    async def join(self) -> None:
        self.joined += 1
        self.tell()
        while self.joined < self.size:
            await self.changed.wait()


class Wire:
    """The groups there have been, by identity, and who is deaf: a sender with a deaf member never gets on."""

    def __init__(self) -> None:
        self.groups: dict[bytes, FakeGroup] = {}
        self.restarts = 0
        self.made = 0
        self.is_stuck = False
        self.is_gone = False

    async def make_identity(self) -> bytes:
        if self.is_gone:
            raise EngineDead("the sender of weights is gone")
        self.made += 1
        return bytes([self.made]) * 128

    async def join(self, identity: bytes, size: int) -> None:
        self.group = self.groups.setdefault(identity, FakeGroup(size))
        await self.group.join()

    async def send(self, path: Path, shapes: Sequence[Sequence[int]]) -> None:
        if self.is_stuck:
            await asyncio.Event().wait()
        for tensor in read_offer(path, shapes):
            self.group.sent.append(tensor.clone())
            self.group.tell()

    def restart(self) -> None:
        self.restarts += 1
        self.is_gone = self.is_stuck = False


class Worker:
    """An engine that takes what the group has, by the names and types it was told. `dies_at`: before that tensor."""

    def __init__(self, wire: Wire, *, dies_at: int | None = None, dies_at_start: bool = False) -> None:
        self.wire = wire
        self.inits: list[dict[str, Any]] = []
        self.held: dict[str, Tensor] = {}
        self.dies_at, self.dies_at_start = dies_at, dies_at_start
        self.error: Exception | None = None

    async def init_transfer(self, info: dict[str, Any]) -> None:
        if self.dies_at_start:
            self.wire.is_stuck = True
            raise EngineDead("gone")
        self.inits.append(info)
        identity = base64.b64decode(info["nccl_unique_id_b64"])
        self.group = self.wire.groups.setdefault(identity, FakeGroup(info["world_size"]))
        self.taken = 0
        await self.group.join()

    async def update(self, info: dict[str, Any], version: int, names: Sequence[str]) -> UpdateReport:
        if self.error is not None:
            raise self.error
        places = zip(info["names"], info["dtype_names"], info["shapes"], strict=True)
        for number, (name, dtype, shape) in enumerate(places):
            if number == self.dies_at:
                raise EngineDead("gone")
            while len(self.group.sent) <= self.taken:
                await self.group.changed.wait()
            tensor = self.group.sent[self.taken]
            self.taken += 1
            assert (tensor.dtype, list(tensor.shape)) == (getattr(torch, dtype), shape)
            self.held[name] = tensor
        return UpdateReport(version, {name: digest(self.held[name]) for name in names}, 0.0)


class Parts:
    """A learner that lays out, what it is, and the driver's half."""

    def __init__(self, folder: Path, workers: int = 1) -> None:
        self.learner = OwnLearner(load_model(save_tiny(folder)), folder)
        self.wire = Wire()
        self.offers = Offers(self, [folder / "offer-0", folder / "offer-1"])
        self.offers.offer(None)
        vocabulary = int(self.learner.model.config.vocab_size)
        self.weights = NcclWeights(self.offers.publish, self.wire, workers=workers, vocabulary=vocabulary)

    def call(self, method: str, *arguments: Any, **named: Any) -> list[Any]:
        """As a `RankHost` of one rank."""
        return [getattr(self.learner, method)(*arguments, **named)]

    def start(self) -> None: ...

    def close(self) -> None: ...

    def train(self) -> None:
        with torch.no_grad():
            for parameter in self.learner.model.parameters():
                parameter.add_(0.1)
        self.offers.offer(None)

    def expect(self) -> dict[str, Tensor]:
        return {name: p.detach().bfloat16() for name, p in self.learner.model.named_parameters()}

    def engines(self, count: int) -> list[Any]:
        return [Worker(self.wire) for _ in range(count)]


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_weights, "GRACE_S", 0.05)


def assert_holds(engine: Worker, expected: dict[str, Tensor]) -> None:
    assert engine.held.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(engine.held[name], tensor)] == []


async def test_each_worker_has_its_place_and_holds_the_rounded_weights(tmp_path: Path) -> None:
    parts = Parts(tmp_path, workers=2)
    engines = parts.engines(2)
    parts.wire.groups[bytes([1]) * 128] = FakeGroup(3)  # one call to each engine stands for its two workers here
    snapshot = parts.weights.snapshot(3)
    reports = await parts.weights.deliver(snapshot, engines)
    assert [(e.inits[0]["rank_offset"], e.inits[0]["world_size"]) for e in engines] == [(1, 5), (3, 5)]
    assert base64.b64decode(engines[0].inits[0]["nccl_unique_id_b64"]) == bytes([1]) * 128
    assert engines[1].inits[0]["packed"] is False
    for engine, report in zip(engines, reports, strict=True):
        assert isinstance(report, UpdateReport)
        snapshot.check_update("engine", report)
        assert_holds(engine, parts.expect())
    assert snapshot.probe_limit == ROUNDED_PROBE_LIMIT
    assert all(name.endswith("norm.weight") for name in snapshot.checksums)  # the others are in two parts


async def test_the_probe_is_scored_by_the_learner(parts: Parts) -> None:
    snapshot = parts.weights.snapshot(1)
    with torch.no_grad():
        logits = parts.learner.model(torch.tensor([snapshot.probe_ids])).logits[0, :-1]
    exact = torch.log_softmax(logits, -1).gather(1, torch.tensor(snapshot.probe_ids[1:])[:, None])[:, 0]
    snapshot.check_probe("engine", exact.tolist())
    assert snapshot.probe_logprobs == pytest.approx(exact.tolist(), abs=1e-5)


async def test_a_group_lasts_while_its_engines_do_and_an_update_follows_the_weights(parts: Parts) -> None:
    engines = parts.engines(2)
    await parts.weights.deliver(parts.weights.snapshot(1), engines)
    parts.train()
    await parts.weights.deliver(parts.weights.snapshot(2), engines)
    assert parts.wire.made == 1 and len(engines[0].inits) == 1
    for engine in engines:
        assert_holds(engine, parts.expect())
    rebuilt = [engines[0], *parts.engines(1)]
    await parts.weights.deliver(parts.weights.snapshot(3), rebuilt)
    assert parts.wire.made == 2 and len(engines[0].inits) == 2 and parts.wire.restarts == 0


async def test_an_engine_that_is_rebuilt_while_the_ranks_lay_out_gets_what_was_published(parts: Parts) -> None:
    before = parts.expect()
    snapshot = parts.weights.snapshot(1)
    parts.train()
    parts.train()
    (engine,) = parts.engines(1)
    (report,) = await parts.weights.deliver(snapshot, [engine])
    snapshot.check_update("engine", report)  # type: ignore[arg-type]
    assert_holds(engine, before)
    await parts.weights.deliver(parts.weights.snapshot(2), [engine])
    assert_holds(engine, parts.expect())


async def test_an_engine_that_dies_in_a_broadcast_takes_those_with_it_that_wait_for_it(parts: Parts) -> None:
    engines = [Worker(parts.wire, dies_at=0), *parts.engines(1)]
    parts.wire.is_stuck = True  # as NCCL is then
    found = await parts.weights.deliver(parts.weights.snapshot(1), engines)
    assert all(isinstance(answer, EngineDead) for answer in found)
    assert "the transfer of weights, in which engines wait for one another, broke off" in str(found[1])
    assert parts.wire.restarts == 1
    again = parts.engines(2)
    reports = await parts.weights.deliver(parts.weights.snapshot(1), again)
    assert all(isinstance(report, UpdateReport) for report in reports) and parts.wire.made == 2


async def test_one_that_dies_when_all_have_their_weights_costs_the_others_nothing(parts: Parts) -> None:
    engines = [Worker(parts.wire, dies_at=0), *parts.engines(1)]
    found = await parts.weights.deliver(parts.weights.snapshot(1), engines)
    assert isinstance(found[0], EngineDead) and isinstance(found[1], UpdateReport)
    assert parts.wire.restarts == 0
    await parts.weights.deliver(parts.weights.snapshot(2), engines[1:])
    assert parts.wire.made == 2  # without the dead one the group is another


async def test_one_that_dies_before_it_has_joined_leaves_nobody_waiting(parts: Parts) -> None:
    engines = [*parts.engines(1), Worker(parts.wire, dies_at_start=True)]
    found = await parts.weights.deliver(parts.weights.snapshot(1), engines)
    assert all(isinstance(answer, EngineDead) for answer in found) and parts.wire.restarts == 1


async def test_a_sender_that_died_is_replaced(parts: Parts) -> None:
    (engine,) = parts.engines(1)
    parts.wire.is_gone = True
    (report,) = await parts.weights.deliver(parts.weights.snapshot(1), [engine])
    assert isinstance(report, UpdateReport) and parts.wire.restarts == 1


async def test_a_transfer_that_hangs_ends(parts: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_weights, "TRANSFER_S", 0.05)
    parts.wire.is_stuck = True
    (found,) = await parts.weights.deliver(parts.weights.snapshot(1), parts.engines(1))
    assert isinstance(found, EngineDead) and parts.wire.restarts == 1


async def test_what_an_engine_refuses_is_not_taken_for_a_death(parts: Parts) -> None:
    (engine,) = parts.engines(1)
    engine.error = EngineError("it refuses")
    (found,) = await parts.weights.deliver(parts.weights.snapshot(1), [engine])
    assert str(found) == "it refuses" and not isinstance(found, EngineDead)


def test_an_offer_is_two_bytes_a_parameter_and_goes_with_its_learner(parts: Parts, tmp_path: Path) -> None:
    offer: Offer = parts.offers.publish()
    assert offer.path.stat().st_size == 2 * sum(p.numel() for p in make_model().parameters())
    parts.train()
    assert parts.offers.publish().path != offer.path
    parts.offers.close()
    assert not list(tmp_path.glob("offer-*"))


def test_nothing_offered_is_said(tmp_path: Path) -> None:
    with pytest.raises(EngineError, match="the learner has offered none"):
        Offers(Parts(tmp_path), [tmp_path / "a", tmp_path / "b"]).publish()


def test_a_checkpoint_is_offered_too(parts: Parts, tmp_path: Path) -> None:
    first = parts.offers.publish()
    parts.train()
    parts.offers.offer(tmp_path)
    assert parts.offers.publish().checksums == first.checksums
