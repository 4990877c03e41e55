import asyncio

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3ForCausalLM

from benchmarks.models import make_qwen3
from trainer.rollout.decode import KEY_BLOCK, VECTOR, Decode, find_key_counts
from trainer.rollout.engine import EngineError, EngineLoad, FinishReason, Generation, SamplingSpec
from trainer.rollout.torch_engine import TorchEngine, sample

VOCAB, CONTEXT = 61, 96


@pytest.fixture
def model() -> Qwen3ForCausalLM:
    model = make_qwen3(
        VOCAB,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=128,
    )
    with torch.no_grad():  # far from uniform, so that parity means something
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.15)
    return model


def prompt(length: int, seed: int) -> list[int]:
    return torch.randint(VOCAB, (length,), generator=torch.Generator().manual_seed(seed)).tolist()


def spec(max_tokens: int = 20, temperature: float = 1.0, seed: int = 1, stop: tuple[int, ...] = ()) -> SamplingSpec:
    return SamplingSpec(max_tokens, temperature, seed, stop)


def reference(model: Qwen3ForCausalLM, ids: list[int], found: Generation, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities and entropies of the generated ids by transformers' own forward."""
    with torch.no_grad():
        logits = model(torch.tensor([ids + found.ids])).logits[0, len(ids) - 1 : -1]
    logprobs = torch.log_softmax(logits / temperature, -1)
    chosen = logprobs.gather(1, torch.tensor(found.ids)[:, None])[:, 0]
    return chosen, -(logprobs.exp() * logprobs).sum(-1)


def check(model: Qwen3ForCausalLM, ids: list[int], found: Generation, temperature: float = 1.0) -> None:
    logprobs, entropies = reference(model, ids, found, temperature)
    assert (torch.tensor(found.logprobs) - logprobs).abs().max() < 1e-5
    assert (torch.tensor(found.entropies) - entropies).abs().max() < 1e-5


@pytest.mark.parametrize("temperature", [1.0, 0.6, 1.7])
async def test_parity_with_transformers_in_a_mixed_batch(model, temperature):
    engine = TorchEngine(model, max_batch=8, max_context=CONTEXT)
    prompts = [prompt(length, length) for length in (1, 7, 16, 33, 50)]
    specs = [spec(10 + 3 * i, temperature, seed=i) for i in range(5)]
    found = await asyncio.gather(*(engine.generate(p, s) for p, s in zip(prompts, specs, strict=True)))
    for ids, generation, asked in zip(prompts, found, specs, strict=True):
        assert len(generation.ids) == asked.max_tokens
        assert generation.finish is FinishReason.LENGTH
        check(model, ids, generation, temperature)


@pytest.mark.parametrize(("bias", "tied"), [(False, True), (True, False)])
async def test_parity_with_transformers_llama(bias, tied):
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=6,
        num_key_value_heads=2,
        max_position_embeddings=128,
        rope_theta=100_000.0,
        attention_bias=bias,
        mlp_bias=bias,
        tie_word_embeddings=tied,
    )
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    engine = TorchEngine(model, max_batch=8, max_context=CONTEXT)
    prompts = [prompt(length, length) for length in (1, 16, 50)]
    found = await asyncio.gather(*(engine.generate(p, spec(20, seed=i)) for i, p in enumerate(prompts)))
    for ids, generation in zip(prompts, found, strict=True):
        check(model, ids, generation)
    alone = await TorchEngine(model, max_batch=1, max_context=CONTEXT).generate(prompts[1], spec(20, seed=1))
    assert alone == found[1]


async def test_parity_over_turns_of_one_trajectory(model):
    engine = TorchEngine(model, max_batch=4, max_context=CONTEXT)
    ids = prompt(12, 0)
    for turn in range(3):
        found = await engine.generate(ids, spec(12, seed=turn))
        check(model, ids, found)
        ids = [*ids, *found.ids, *prompt(7, turn)]


async def test_a_returning_trajectory_feeds_only_what_is_new(model, monkeypatch):
    engine = TorchEngine(model, max_batch=4, max_context=CONTEXT)
    ids = prompt(30, 0)
    others = [engine.generate(prompt(20, i), spec(15, seed=i)) for i in range(1, 4)]
    first, *_ = await asyncio.gather(engine.generate(ids, spec(10)), *others)
    fed: list[int] = []
    forward = engine._decode.forward

    def counted(cache, new, starts, counts, first):
        fed.append(int(counts.sum()))
        return forward(cache, new, starts, counts, first)

    monkeypatch.setattr(engine._decode, "forward", counted)
    await engine.generate([*ids, *first.ids, 5, 6], spec(2))
    assert fed == [3, 1]  # the last sampled token and the two new ones; then one a step


async def test_twins_of_a_prompt_are_computed_once_and_differ(model, monkeypatch):
    engine = TorchEngine(model, max_batch=8, max_context=CONTEXT)
    fed: list[int] = []
    forward = engine._decode.forward

    def counted(cache, new, starts, counts, first):
        fed.append(int(counts.sum()))
        return forward(cache, new, starts, counts, first)

    monkeypatch.setattr(engine._decode, "forward", counted)
    ids = prompt(40, 0)
    found = await asyncio.gather(*(engine.generate(ids, spec(6, seed=i)) for i in range(6)))
    assert sum(fed) == 40 + 5 + 6 * 5  # the prompt, its last token for each twin, then five steps of six
    for generation in found:
        check(model, ids, generation)
    assert len({tuple(g.ids) for g in found}) == 6


async def test_more_requests_than_rows(model):
    engine = TorchEngine(model, max_batch=3, max_context=CONTEXT)
    prompts = [prompt(5 + i, i) for i in range(11)]
    found = await asyncio.gather(*(engine.generate(p, spec(4 + i, seed=i)) for i, p in enumerate(prompts)))
    for i, (ids, generation) in enumerate(zip(prompts, found, strict=True)):
        assert len(generation.ids) == 4 + i
        check(model, ids, generation)


async def test_same_seed_same_bits_whoever_else_is_there(model):
    ids = prompt(9, 3)
    alone = await TorchEngine(model, max_batch=16, max_context=CONTEXT).generate(ids, spec(25, seed=42))
    engine = TorchEngine(model, max_batch=16, max_context=CONTEXT)
    others = [engine.generate(prompt(3 + i, i), spec(5 + i, seed=i)) for i in range(12)]
    *_, crowded = await asyncio.gather(*others, engine.generate(ids, spec(25, seed=42)))
    assert crowded == alone


async def test_same_bits_whether_keys_were_kept_copied_or_computed_again(model):
    """Three turns of a trajectory: in its own row, after its row was given away, and beside a twin of its prompt."""

    async def turns(engine: TorchEngine, pause: int = 0) -> list[Generation]:
        ids, found = prompt(12, 0), []
        for turn in range(3):
            for _ in range(pause * turn):
                await asyncio.sleep(0)
            found.append(await engine.generate(ids, spec(12, seed=turn)))
            ids = [*ids, *found[-1].ids, *prompt(7, turn)]
        return found

    alone = await turns(TorchEngine(model, max_batch=4, max_context=CONTEXT))
    small = TorchEngine(model, max_batch=2, max_context=CONTEXT)
    others = [small.generate(prompt(3 + i, i), spec(9 + i, seed=i)) for i in range(12)]
    evicted, *_ = await asyncio.gather(turns(small, pause=5), *others)
    shared = TorchEngine(model, max_batch=8, max_context=CONTEXT)
    twins = await asyncio.gather(turns(shared), turns(shared, pause=3))
    assert evicted == alone
    assert twins == [alone, alone]


@pytest.mark.parametrize(("head_dim", "kv_heads"), [(8, 2), (32, 2), (32, 4), (64, 1)])
def test_a_position_is_computed_alike_however_it_is_fed(head_dim, kv_heads):
    """Logits after 700 tokens: fed at once, token by token, in parts, and beside other rows."""
    sizes = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4}
    model = make_qwen3(VOCAB, seed=1, **sizes, num_key_value_heads=kv_heads, head_dim=head_dim)
    decode = Decode(model, 800)
    ids = torch.tensor([prompt(700, 0)])
    lengths = [5, 100, 101, 190, 193, 207, 230, 300, 383, 384, 500, 512, 513, 699, 700]

    def feed(parts: list[int], others: int = 0) -> list[Tensor]:
        cache = decode.new_cache(1 + others)
        found, start = [], 0
        for end in parts:
            new = torch.zeros(1 + others, max(end - start, 3 if others else 1), dtype=torch.long)
            new[0, : end - start] = ids[0, start:end]
            starts = torch.tensor([start, *([750] * others)])
            found.append(decode.forward(cache, new, starts, torch.tensor([end - start, *([3] * others)]))[0])
            start = end
        return found

    in_parts = feed(lengths)
    for at, logits in zip(lengths, in_parts, strict=True):
        assert torch.equal(feed([at])[0], logits)
    assert all(map(torch.equal, feed(lengths, others=5), in_parts))
    one_by_one = feed(list(range(1, 701)))
    assert all(torch.equal(one_by_one[at - 1], logits) for at, logits in zip(lengths, in_parts, strict=True))


def test_key_counts_always_hold_the_whole_block():
    counts = find_key_counts(32)
    assert counts[-1] == KEY_BLOCK
    assert all(count % VECTOR == 0 for count in counts)


async def test_stop_id_ends_the_turn_and_is_its_last_token(model):
    engine = TorchEngine(model, max_batch=2, max_context=CONTEXT)
    free = await engine.generate(prompt(4, 0), spec(30, seed=5))
    stop = free.ids[9]
    first = free.ids.index(stop)
    found = await engine.generate(prompt(4, 0), spec(30, seed=5, stop=(stop,)))
    assert found.ids == free.ids[: first + 1]
    assert found.finish is FinishReason.STOP


async def test_an_update_of_the_weights_is_seen_when_its_version_is_set(model):
    engine = TorchEngine(model, max_batch=4, max_context=CONTEXT)
    ids = prompt(10, 0)
    before = await engine.generate(ids, spec(10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    model(torch.tensor([ids])).logits.logsumexp(-1).sum().backward()
    optimizer.step()
    assert await engine.generate(ids, spec(10)) == before
    engine.set_version(1)
    after = await engine.generate([*ids, *before.ids], spec(10))
    assert (before.policy_version, after.policy_version) == (0, 1)
    check(model, [*ids, *before.ids], after)


async def test_an_update_in_mid_turn_leaves_no_stale_row(model):
    engine = TorchEngine(model, max_batch=4, max_context=CONTEXT)
    ids = prompt(10, 0)
    turn = asyncio.create_task(engine.generate(ids, spec(10)))
    await asyncio.sleep(0.005)
    with torch.no_grad():
        model.model.norm.weight.mul_(1.5)
        model.model.layers[0].mlp.up_proj.weight.mul_(0.5)
    engine.set_version(1)
    before = await turn
    after = await engine.generate([*ids, *before.ids], spec(10))
    check(model, [*ids, *before.ids], after)


async def test_a_turn_that_new_weights_reach_says_which_sampled_what(model):
    """It keeps its keys and values, and nothing of them is copied for a turn that begins with the new weights."""
    engine = TorchEngine(model, max_batch=4, max_context=CONTEXT)
    ids = prompt(20, 0)
    alone = await engine.generate(ids, spec(30, seed=3))
    engine._rows.forget(0)
    running = asyncio.create_task(engine.generate(ids, spec(30, seed=3)))
    while not any(12 <= engine._turns.count(request.row) < 30 for request in engine._active):
        await asyncio.sleep(0)
    with torch.no_grad():
        model.model.norm.weight.mul_(1.5)
        model.model.layers[0].mlp.up_proj.weight.mul_(0.5)
    engine.set_version(4)
    begun = asyncio.create_task(engine.generate(ids, spec(10, seed=4)))
    await asyncio.sleep(0)
    found, later = await asyncio.gather(running, begun)
    assert [(s.version, s.start, s.end) for s in found.spans] == [(0, 0, 12), (4, 12, 30)]
    assert found.ids[:12] == alone.ids[:12] and found.logprobs[:12] == alone.logprobs[:12]
    assert found.logprobs[12:] != alone.logprobs[12:]
    assert (later.policy_version, later.spans) == (4, ())
    check(model, ids, later)


@pytest.mark.parametrize(
    ("ids", "asked", "word"),
    [
        ([], spec(), "needs ids"),
        ([1], spec(0), "max_tokens"),
        ([1], spec(temperature=0.0), "temperature"),
        ([VOCAB], spec(), "vocabulary"),
        ([-1], spec(), "vocabulary"),
        ([1] * 90, spec(7), "context"),
    ],
)
async def test_refuses_what_can_never_be_generated(model, ids, asked, word):
    with pytest.raises(EngineError, match=word):
        await TorchEngine(model, max_batch=2, max_context=CONTEXT).generate(ids, asked)


async def test_fills_the_context_to_its_last_token(model):
    ids = prompt(CONTEXT - 6, 0)
    engine = TorchEngine(model, max_batch=2, max_context=CONTEXT)
    other = engine.generate(prompt(3, 1), spec(30))
    found, _ = await asyncio.gather(engine.generate(ids, spec(6)), other)
    check(model, ids, found)


async def test_a_cancelled_caller_gives_its_row_back(model):
    engine = TorchEngine(model, max_batch=1, max_context=CONTEXT)
    task = asyncio.create_task(engine.generate(prompt(4, 0), spec(90)))
    await asyncio.sleep(0.005)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    found = await engine.generate(prompt(5, 1), spec(5))
    assert len(found.ids) == 5


async def test_close_fails_the_waiting_and_leaves_no_task(model):
    engine = TorchEngine(model, max_batch=1, max_context=CONTEXT)
    tasks = [asyncio.create_task(engine.generate(prompt(4, i), spec(80))) for i in range(3)]
    await asyncio.sleep(0.005)
    await engine.close()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    assert [type(f) for f in found] == [EngineError] * 3
    assert len(asyncio.all_tasks()) == 1


async def test_a_failing_step_fails_its_requests_and_not_the_engine(model, monkeypatch):
    engine = TorchEngine(model, max_batch=2, max_context=CONTEXT)

    def broken(*_: object) -> Tensor:
        raise RuntimeError("out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(engine._decode, "forward", broken)
        with pytest.raises(EngineError, match="out of memory"):
            await engine.generate([1, 2], spec())
    assert len((await engine.generate([1, 2], spec(3))).ids) == 3


async def test_live_tokens_are_the_generation(model):
    engine = TorchEngine(model, max_batch=2, max_context=CONTEXT)
    seen: list[tuple[list[int], list[float]]] = []
    found = await engine.generate(prompt(4, 0), spec(21), lambda ids, e: seen.append((list(ids), list(e))))
    assert [i for ids, _ in seen for i in ids] == found.ids
    assert [e for _, entropies in seen for e in entropies] == found.entropies
    assert len(seen) == 3  # 8 + 8 + 5


def test_long_prompts_are_fed_in_chunks(model, monkeypatch):
    monkeypatch.setattr("trainer.rollout.decode.CHUNK", 16)

    async def both() -> tuple[Generation, Generation]:
        engine = TorchEngine(model, max_batch=2, max_context=CONTEXT)
        return await asyncio.gather(
            engine.generate(prompt(70, 0), spec(5)), engine.generate(prompt(32, 1), spec(5, seed=2))
        )

    long, short = asyncio.run(both())
    check(model, prompt(70, 0), long)
    check(model, prompt(32, 1), short)


def test_sampling_by_inversion_with_hand_worked_numbers():
    logits = torch.log(torch.tensor([[0.5, 0.0, 0.25, 0.25]] * 4))
    uniforms = torch.tensor([0.0, 0.499, 0.5, 0.76], dtype=torch.float64)
    tokens, logprobs, _ = sample(logits.clamp_min(-1e9), torch.ones(4), uniforms)
    assert tokens.tolist() == [0, 0, 2, 3]
    assert torch.allclose(logprobs.exp(), torch.tensor([0.5, 0.5, 0.25, 0.25]))


def test_entropy_of_a_known_distribution_and_temperature():
    logits = torch.tensor([[2.0, 0.0], [2.0, 0.0]])
    _, logprobs, entropies = sample(logits, torch.tensor([1.0, 2.0]), torch.zeros(2, dtype=torch.float64))
    # p = sigmoid(2) = 0.880797, sigmoid(1) = 0.731059; entropy = log(1 + e^x) - x p
    assert logprobs.exp().tolist() == pytest.approx([0.880797, 0.731059], abs=1e-6)
    assert entropies.tolist() == pytest.approx([0.365334, 0.582203], abs=1e-6)


async def test_load_counts_what_decodes_and_what_waits(model):
    engine = TorchEngine(model, max_batch=2, max_context=CONTEXT)
    seen: list[EngineLoad] = []
    idle = engine.load()
    tasks = [
        asyncio.create_task(engine.generate(prompt(4 + i, i), spec(8), lambda *_: seen.append(engine.load())))
        for i in range(3)
    ]
    await asyncio.gather(*tasks)
    assert idle == EngineLoad(kv_capacity=2 * CONTEXT, kv_used=0, running=0, waiting=0, max_running=2)
    # The first token comes from the prefill of 4 and 5 ids, each later one feeds the one before it.
    assert seen[0] == EngineLoad(kv_capacity=2 * CONTEXT, kv_used=4 + 5 + 7 * 2, running=2, waiting=1, max_running=2)
