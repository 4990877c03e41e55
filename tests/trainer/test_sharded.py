"""The same learner alone, on one rank and on two: equal gradients, scores and reports, and one checkpoint for all."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from tests.trainer.tiny import save_tiny
from tests.trainer.two_ranks import (
    RATE,
    SINGLE,
    counters,
    describe,
    gradients,
    learn_twice,
    make_samples,
    start_ranks,
    state,
)
from trainer.policy.checkpoint import CheckpointStore, verify_checkpoint
from trainer.policy.learners import OwnLearner
from trainer.policy.model import compute_scores, load_model
from trainer.policy.parallel import CPU, Layout

Tensors = dict[str, torch.Tensor]
MIXED = Layout("cpu", torch.bfloat16, recompute=True)  # what a GPU does, as far as a CPU can


def alone_on(source: Path) -> OwnLearner:
    """The embedded trainer's learner: a plain model, no process group."""
    return OwnLearner(load_model(source), source)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Checkpoint `one` written alone after a step, and all that two ranks made of it."""
    made = tmp_path_factory.mktemp("ranks")
    learner = alone_on(save_tiny(made / "source"))
    learner.learn(make_samples(), stage=SINGLE, rate=RATE, seed=4)
    learner.save(CheckpointStore(made / "one"), counters(1))
    start_ranks(made, 2)
    return made


@pytest.fixture(scope="module")
def seen(folder: Path) -> list[dict[str, Any]]:
    return [torch.load(folder / f"seen-{rank}.pt") for rank in range(2)]


@pytest.fixture(scope="module")
def alone(folder: Path) -> OwnLearner:
    learner = alone_on(folder / "source")
    learner.restore(newest(folder / "one"))
    return learner


@pytest.fixture
def one_rank(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def newest(root: Path) -> Path:
    checkpoint = CheckpointStore(root).latest()
    assert checkpoint is not None
    return checkpoint.path


def difference(found: Tensors, expected: Tensors) -> float:
    """Norm of the difference over the norm of what is expected, of all tensors together."""
    assert found.keys() == expected.keys()
    apart = sum(float((found[name].double() - tensor.double()).square().sum()) for name, tensor in expected.items())
    return float((apart / sum(float(tensor.double().square().sum()) for tensor in expected.values())) ** 0.5)


def assert_equal(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    assert [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)] == []


def test_two_ranks_resume_what_one_process_wrote(seen: list[dict[str, Any]], alone: OwnLearner) -> None:
    for of_rank in seen:
        assert_equal(of_rank["restored"], state(alone))


def test_the_gradient_is_the_same_on_any_number_of_ranks(seen: list[dict[str, Any]], alone: OwnLearner) -> None:
    expected = gradients(alone, 1000)
    for of_rank in seen:
        for found in (*of_rank["gradients"], of_rank["recomputed"]):
            assert difference(found, expected) < 1e-6
    assert difference(gradients(alone, 60), expected) < 1e-6


def test_scores_are_shared_out_and_gathered(seen: list[dict[str, Any]], alone: OwnLearner) -> None:
    expected = compute_scores(alone.model, [s.row for s in make_samples()], 0.7)
    for of_rank in seen:
        for (logprobs, entropies), scores in zip(of_rank["scores"], expected, strict=True):
            torch.testing.assert_close(logprobs, scores.logprobs, atol=1e-6, rtol=1e-6)
            torch.testing.assert_close(entropies, scores.entropies, atol=1e-6, rtol=1e-6)


def test_two_steps_leave_the_same_policy_and_report(seen: list[dict[str, Any]], folder: Path) -> None:
    learner = alone_on(folder / "source")
    learner.restore(newest(folder / "one"))
    reports = [describe(report) for report in learn_twice(learner, folder / "source")]
    assert seen[0]["reports"] == seen[1]["reports"]
    for found, expected in zip(seen[0]["reports"], reports, strict=True):
        torch.testing.assert_close(*(torch.tensor(r.pop("entropies")) for r in (found, expected)), atol=1e-4, rtol=1e-4)
        for parts in (found, expected):
            parts |= {"kl_reference": parts["kl_reference"] or 0.0} | parts.pop("mismatch")
        assert found == pytest.approx(expected, rel=1e-4, abs=1e-7)
    # AdamW divides a moment by its root: where a gradient is next to nothing, its rounding errors count in full.
    assert difference(seen[0]["learned"], state(learner)) < 1e-4
    assert_equal(seen[0]["learned"], seen[1]["learned"])


def test_a_rank_without_rollouts_takes_part(seen: list[dict[str, Any]], folder: Path) -> None:
    learner = alone_on(newest(folder / "one"))
    expected = describe(learner.learn(make_samples()[:1], stage=SINGLE, rate=RATE, seed=7))
    for of_rank in seen:
        assert of_rank["only"]["mismatch"] == pytest.approx(expected["mismatch"], rel=1e-4)
        assert of_rank["only"]["grad_norm"] == pytest.approx(expected["grad_norm"], rel=1e-4)


def test_one_process_resumes_what_two_ranks_wrote(seen: list[dict[str, Any]], folder: Path) -> None:
    path = newest(folder / "two")
    verify_checkpoint(path)
    learner = alone_on(folder / "source")
    learner.restore(path)
    assert_equal(state(learner), seen[0]["learned"])


@pytest.mark.usefixtures("one_rank")
def test_one_rank_is_the_same_code_and_the_same_bits_as_a_plain_model(
    seen: list[dict[str, Any]], folder: Path, tmp_path: Path
) -> None:
    plain, sharded = alone_on(folder / "source"), OwnLearner.shard(folder / "source", CPU)
    for learner in (plain, sharded):
        learner.restore(newest(folder / "two"))
        assert_equal(state(learner), seen[0]["learned"])
    assert learn_twice(plain, folder / "source") == learn_twice(sharded, folder / "source")
    assert_equal(state(sharded), state(plain))
    written = sharded.save(CheckpointStore(tmp_path / "three"), counters(3)).checkpoint.path
    again = alone_on(folder / "source")
    again.restore(written)
    assert_equal(state(again), state(plain))
    assert (written / "config.json").read_text() == (newest(folder / "one") / "config.json").read_text()


@pytest.mark.usefixtures("one_rank")
def test_bf16_computes_near_float32_on_float32_weights(folder: Path) -> None:
    exact, mixed = OwnLearner.shard(folder / "source", CPU), OwnLearner.shard(folder / "source", MIXED)
    assert difference(gradients(mixed, 60), gradients(exact, 60)) < 0.03
    rows = [s.row for s in make_samples()]
    for a, b in zip(mixed.score(rows, 1.0), exact.score(rows, 1.0), strict=True):
        torch.testing.assert_close(a.logprobs, b.logprobs, atol=0.02, rtol=0.0)
    assert mixed.learn(make_samples(), stage=SINGLE, rate=RATE, seed=5).ratio_max == 1.0
    assert {tensor.dtype for tensor in state(mixed).values()} == {torch.float32}
