"""vLLM against the learner's own forward, the torch engine and the protocol, on models/tiny-base in float32."""

import asyncio
import os
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.vllm.conftest import CONTEXT, Engines
from trainer.rollout.engine import EngineError, FinishReason, Generation, SamplingSpec
from trainer.rollout.torch_engine import TorchEngine
from trainer.rollout.weights import WeightsDiffer

LIMIT = 1e-4  # nats
STOP = 2


def prompt(seed: int, length: int = 12) -> list[int]:
    return torch.randint(3, 800, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def spec(max_tokens: int = 40, temperature: float = 1.0, seed: int = 1, stop: tuple[int, ...] = ()) -> SamplingSpec:
    return SamplingSpec(max_tokens, temperature, seed, stop)


def generate(engines: Engines, asked: list[tuple[list[int], SamplingSpec]]) -> list[Generation]:
    async def all_of_them() -> list[Generation]:
        return await asyncio.gather(*(engines.pool.generate(ids, how) for ids, how in asked))

    return engines.run(all_of_them())


def score(engines: Engines, ids: list[int], sampled: list[int], temperature: float = 1.0) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of the sampled ids by the learner's model as it is now."""
    with torch.no_grad():
        logits = engines.model(torch.tensor([ids + sampled])).logits[0, len(ids) - 1 : -1]
    logprobs = torch.log_softmax(logits / temperature, -1)
    return logprobs.gather(1, torch.tensor(sampled)[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)


def worst(engines: Engines, ids: list[int], found: Generation, temperature: float = 1.0) -> float:
    return float((torch.tensor(found.logprobs) - score(engines, ids, found.ids, temperature)[0]).abs().max())


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_logprobs_are_the_learner_s_and_entropies_a_bound(engines: Engines, temperature: float) -> None:
    asked = [(prompt(i, 3 + 5 * i), spec(10 + 3 * i, temperature, seed=i)) for i in range(16)]
    for (ids, how), found in zip(asked, generate(engines, asked), strict=True):
        assert len(found.ids) == how.max_tokens and found.finish is FinishReason.LENGTH
        assert (found.policy_version, found.spans) == (engines.version, ())
        assert worst(engines, ids, found, temperature) < LIMIT
        full = score(engines, ids, found.ids, temperature)[1]
        bound = torch.tensor(found.entropies)
        assert bool((bound <= full + LIMIT).all()) and float((full - bound).mean()) < 0.5


def test_the_torch_engine_s_turns_have_the_same_logprobs_here(engines: Engines) -> None:
    async def sample_and_probe() -> list[tuple[Generation, list[float]]]:
        torch_engine = TorchEngine(engines.model, max_batch=8, max_context=CONTEXT)
        made = await asyncio.gather(*(torch_engine.generate(prompt(i), spec(64, seed=i)) for i in range(8)))
        await torch_engine.close()
        await engines.pool.generate(prompt(0), spec(1))
        engine = engines.pool._slots[0].engine
        return [(g, await engine.probe(f"p{i}", prompt(i) + g.ids)) for i, g in enumerate(made)]

    for generation, logprobs in engines.run(sample_and_probe()):
        here = torch.tensor(logprobs[-len(generation.ids) :])
        assert float((here - torch.tensor(generation.logprobs)).abs().max()) < LIMIT


def test_a_turn_depends_on_its_seed_and_on_nothing_else(engines: Engines) -> None:
    asked = [(prompt(0), spec(seed=i)) for i in range(12)]
    together = generate(engines, asked)
    alone = [generate(engines, [one])[0] for one in asked[:3]]
    assert [g.ids for g in together[:3]] == [g.ids for g in alone]
    assert len({tuple(g.ids) for g in together}) == 12


def test_a_stop_id_ends_the_turn_and_is_its_last_token(engines: Engines) -> None:
    free = generate(engines, [(prompt(3), spec(60, seed=5))])[0]
    stop = free.ids[20]
    first = free.ids.index(stop)
    (found,) = generate(engines, [(prompt(3), spec(60, seed=5, stop=(stop,)))])
    assert found.ids == free.ids[: first + 1] and found.finish is FinishReason.STOP
    assert len(found.logprobs) == len(found.entropies) == first + 1


def test_only_the_ids_asked_for_stop_a_turn(engines: Engines) -> None:
    """The model's folder names an id that ends texts; where the request does not, it is a token like all others."""
    found = generate(engines, [(prompt(i), spec(300, seed=i)) for i in range(4)])
    assert [len(g.ids) for g in found] == [300] * 4
    assert any(STOP in g.ids for g in found)


@pytest.mark.parametrize(
    ("ids", "how", "word"),
    [
        ([896], spec(), "outside the vocabulary of 896"),
        ([-1], spec(), "outside"),
        ([], spec(), "needs ids"),
        ([1] * CONTEXT, spec(1), "exceed the context of 700"),
    ],
)
def test_what_can_never_be_generated_is_refused_and_the_engines_live_on(
    engines: Engines, ids: list[int], how: SamplingSpec, word: str
) -> None:
    async def ask_the_engine_itself() -> None:
        await engines.pool.generate([5], spec(1))
        await engines.pool._slots[0].engine.generate(f"bad-{len(ids)}-{word}", ids, how)

    with pytest.raises(EngineError, match=word):
        generate(engines, [(ids, how)])
    with pytest.raises(EngineError, match=word):
        engines.run(ask_the_engine_itself())
    assert len(generate(engines, [([5], spec(3))])[0].ids) == 3 and not engines.told


def test_live_tokens_are_the_turn(engines: Engines) -> None:
    shown: list[tuple[int, float]] = []
    how = spec(37, seed=3)
    (quiet,) = generate(engines, [(prompt(1), how)])
    found = engines.run(engines.pool.generate(prompt(1), how, lambda ids, es: shown.extend(zip(ids, es, strict=True))))
    assert found.ids == quiet.ids == [i for i, _ in shown]
    assert found.entropies == [e for _, e in shown]


def test_a_cancelled_turn_leaves_the_engine(engines: Engines) -> None:
    async def cancel() -> list[Any]:
        turns = [asyncio.ensure_future(engines.pool.generate(prompt(i), spec(600, seed=i))) for i in range(4)]
        await asyncio.sleep(0.3)
        for turn in turns:
            turn.cancel()
        await asyncio.gather(*turns, return_exceptions=True)
        await engines.pool.generate(prompt(9), spec(4))
        loads = [await slot.engine.load() for slot in engines.pool._slots]
        for _ in range(100):
            if not any(load.running for load in loads):
                break
            await engines.pool.generate(prompt(9), spec(2))
            loads = [await slot.engine.load() for slot in engines.pool._slots]
        return loads

    assert [load.running for load in engines.run(cancel())] == [0, 0]


def test_after_an_update_the_weights_are_the_learner_s(engines: Engines) -> None:
    asked = [(prompt(i), spec(seed=i)) for i in range(8)]
    before = generate(engines, asked)
    version = engines.run(engines.train(1))
    after = generate(engines, asked)
    assert [g.policy_version for g in after] == [version] * 8
    assert all(worst(engines, ids, g) < LIMIT for (ids, _), g in zip(asked, after, strict=True))
    assert all(worst(engines, ids, g) > 0.01 for (ids, _), g in zip(asked, before, strict=True))
    engines.run(engines.restore())
    assert [g.ids for g in generate(engines, asked)] == [g.ids for g in before]


def test_an_update_in_flight_names_the_version_of_each_token(engines: Engines) -> None:
    old = engines.version

    async def update_meanwhile() -> list[Generation]:
        turns = [asyncio.ensure_future(engines.pool.generate(prompt(i), spec(600, seed=i))) for i in range(8)]
        await asyncio.sleep(0.5)
        await engines.train(2)
        return await asyncio.gather(*turns)

    with torch.no_grad():
        first = {name: tensor.clone() for name, tensor in engines.model.state_dict().items()}
    found = engines.run(update_meanwhile())
    new = engines.version
    assert {g.policy_version for g in found} == {old}
    assert [tuple(s.version for s in g.spans) for g in found] == [(old, new)] * 8
    for i, g in enumerate(found):
        a, b = g.spans
        assert (a.start, a.end, b.end) == (0, b.start, 600)
        exact = score(engines, prompt(i), g.ids)[0]
        assert float((torch.tensor(g.logprobs) - exact)[b.start :].abs().max()) < LIMIT
    engines.model.load_state_dict(first)
    for i, g in enumerate(found):
        exact = score(engines, prompt(i), g.ids)[0]
        assert float((torch.tensor(g.logprobs) - exact)[: g.spans[0].end].abs().max()) < LIMIT


def test_the_guard_finds_a_head_that_was_not_updated(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without `lm_head.weight` vLLM's CPU head keeps its packed copy of the old tied embeddings, and says nothing."""
    monkeypatch.setattr(engines.model.config, "tie_word_embeddings", False)
    real = type(engines.model).state_dict

    def without_head(self: Any, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
        return {name: tensor for name, tensor in real(self, *args, **kwargs).items() if name != "lm_head.weight"}

    monkeypatch.setattr(type(engines.model), "state_dict", without_head)
    with pytest.raises(WeightsDiffer, match="nats off the trainer's version"):
        engines.run(engines.train(3))
    monkeypatch.undo()
    engines.run(engines.publish())
    assert worst(engines, prompt(0), generate(engines, [(prompt(0), spec())])[0]) < LIMIT


def test_the_guard_finds_a_tensor_that_is_another(engines: Engines, monkeypatch: pytest.MonkeyPatch) -> None:
    real = engines.weights.snapshot

    def other_tensor(version: int) -> Any:
        made = real(version)
        return replace(made, checksums=made.checksums | {"model.norm.weight": "0" * 64})

    monkeypatch.setattr(engines.weights, "snapshot", other_tensor)
    with pytest.raises(WeightsDiffer, match=r"another model\.norm\.weight"):
        engines.run(engines.publish())
    monkeypatch.undo()
    engines.run(engines.publish())
    assert len(generate(engines, [(prompt(0), spec(2))])[0].ids) == 2


def test_turns_of_an_engine_that_is_killed_are_the_same_on_another(engines: Engines) -> None:
    asked = [(prompt(i), spec(600, seed=i)) for i in range(8)]
    undisturbed = generate(engines, asked)

    async def kill_meanwhile() -> list[Generation]:
        pid = (await engines.pool._slots[0].engine.facts()).pid
        turns = [asyncio.ensure_future(engines.pool.generate(ids, how)) for ids, how in asked]
        await asyncio.sleep(0.3)
        os.kill(pid, 9)
        return await asyncio.gather(*turns)

    found = engines.run(kill_meanwhile())
    assert "engine 0 is gone with 4 turns" in engines.told[0]
    assert [g.ids for g in found] == [g.ids for g in undisturbed]
