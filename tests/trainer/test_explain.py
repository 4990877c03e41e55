"""The arithmetic of `explain`, worked by hand; the paper's run against the numbers the paper gives."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from contracts.recipe import Recipe
from tests.trainer.fakes import TINY_BASE
from tests.trainer.test_store import make_row
from trainer.__main__ import load_recipe, main
from trainer.explain import (
    KNOWN_SHAPES,
    QWEN3_14B,
    SMOLLM2_135M,
    AssumptionError,
    Assumptions,
    Shape,
    explain,
    find_loads,
    read_assumptions,
    read_shape,
)
from trainer.explain_text import format_explanation
from trainer.store import write_shard

PROJECT = TINY_BASE.parents[1]
PAPER = PROJECT / "recipes" / "rstar2_14b.yaml"
# 2 layers, width 8, 2 heads of 4, 1 key-value head, MLP of 16, 32 tokens
SMALL = Shape("small", 2, 8, 16, 2, 1, 4, 32, tied=True)
ROUND = Assumptions(
    response_share=0.5,
    mean_turns=3,
    tool_share=0.25,
    prompt_tokens=100,
    bytes_per_token=10,
    benchmark_problems=7,
    micro_batch_tokens=1000,
    gpu_memory_gb=1,
    engine_memory_share=0.5,
)


def recipe(*stages, **changes) -> Recipe:
    curate = {"kind": "curate", "name": "c", "count": 110, "held_out": 10}
    return Recipe.model_validate({"name": "r", "stages": [curate, *stages], **changes})


def rl(**changes):
    sampling = {"max_response_tokens": 200, "max_turns": 5}
    return {"kind": "rl", "name": "rl", "prompts_per_step": 4, "oversample": 8, "group_size": 4, "steps": 6} | {
        "sampling": sampling,
        **changes,
    }


def test_parameters_of_a_small_shape():
    # q and o 8x8 each, k and v 8x4 each, norms of q and k 4 each; MLP 3 x 8x16; norms 8 each
    assert SMALL.layer_parameters == 64 + 64 + 32 + 32 + 8 + 384 + 16
    assert SMALL.outer_parameters == 32 * 8 + 8
    assert SMALL.parameters == 2 * 600 + 264
    assert replace(SMALL, tied=False).parameters == SMALL.parameters + 256
    assert SMALL.kv_values == 2 * 2 * 1 * 4
    assert SMALL.layer_activations == 4 * 8 + (4 + 2) * 4 + 4 * 16


def test_the_14b_model_has_the_parameters_its_card_names():
    assert QWEN3_14B.parameters == 14_768_307_200  # 14.8 B
    assert QWEN3_14B.parameters - 2 * 151_936 * 5120 == pytest.approx(13.2e9, rel=0.01)  # without embeddings
    assert QWEN3_14B.kv_values * 2 == 163_840  # bytes of a token in bf16
    assert SMOLLM2_135M.parameters == pytest.approx(134.5e6, rel=0.001)


def test_the_shape_of_the_model_that_ships_is_that_of_its_weights():
    from safetensors import safe_open

    with safe_open(TINY_BASE / "model.safetensors", "pt") as file:
        count = sum(file.get_tensor(name).numel() for name in file.keys())  # noqa: SIM118
    assert read_shape("models/tiny-base", PROJECT, None).parameters == count


def test_a_step_an_evaluation_and_a_screening():
    loads = list(find_loads(recipe(rl(evaluate_every=2, evaluate_problems=64, hard_subset=3)), ROUND))
    screening, step, evaluation = loads
    # 6 steps of 4 prompts can use 24 problems; at most 48 of the 100 are screened, 3 rollouts each
    assert (screening.times, screening.rollouts, screening.stored_bytes) == (1, 144, 144_000)
    # 4 prompts x 8 rollouts, 100 tokens each, 2 calls each
    assert (step.times, step.rollouts, step.tokens, step.policy_tokens, step.calls) == (6, 32, 3200, 2400, 64)
    assert step.stored_bytes == 32_000
    # 10 held-out problems, 2 samples each, after steps 2, 4, 6
    assert (evaluation.times, evaluation.rollouts) == (3, 20)


def test_a_curation_that_asks_the_model():
    curate = {"kind": "curate", "name": "other", "count": 50, "checks": ["integer answer", "agreement 2 of 16"]}
    (load,) = find_loads(recipe(curate), ROUND)
    assert (load.stage, load.rollouts, load.stored_bytes) == ("other", 800, 0)


def test_turns_are_at_most_the_recipe_s():
    (step,) = find_loads(recipe(rl(sampling={"max_response_tokens": 200, "max_turns": 2})), ROUND)
    assert step.calls == 32


@pytest.mark.parametrize(
    ("evaluate", "rollouts"),
    [
        ({"k": 4}, 40),
        ({"k": 4, "problems": 3}, 12),
        ({"k": 2, "benchmark": "artifacts:b.jsonl"}, 14),
        ({"k": 2, "benchmark": "artifacts:b.jsonl", "problems": 50}, 14),
    ],
)
def test_an_evaluate_stage(evaluate, rollouts):
    (load,) = find_loads(
        recipe({"kind": "evaluate", "name": "e", "checkpoints": ["base", "latest"], **evaluate}), ROUND
    )
    assert (load.times, load.rollouts) == (2, rollouts)


def test_memory_of_a_gpu():
    e = explain(recipe(rl(), gpus=8, ranks=4, engines=4), SMALL, ROUND)
    m = e.memory
    assert (m.weights, m.gradients, m.optimizer) == (1464, 1464, 2928)  # 4, 4 and 8 bytes x 1464 over 4 ranks
    assert m.whole_gradients == 4 * 1464
    assert m.gathered == 2 * (2 * 600 + 264)
    # 1000 tokens: the input of 2 layers, one layer at work; and three chunks of 2^22 logits
    assert m.activations == 2 * 1000 * (2 * 8 + 120) + 3 * 4 * 2**22
    assert (m.engine_weights, m.kv_cache) == (2928, 0.5e9 - 2928)
    # 32 bytes a token; a row is 100 + 200 tokens
    assert e.layout.kv_tokens == int((0.5e9 - 2928) / 32)
    assert (e.layout.engines, e.layout.tensor_parallel, e.layout.longest) == (4, 1, 300)
    assert e.layout.full_rollouts == e.layout.kv_tokens // 300
    printed = format_explanation(e)
    assert "Memory of each of the learner's GPUs, 4 of 1 GB" in printed
    assert "Memory of each of the engines' GPUs, 4 of 1 GB" in printed
    assert "Engines: 4 of 1 GPU each (tensor parallel 1), beside the learner's" in printed
    assert "Learner: 4 ranks, each a Ray actor on its own GPU with 1/4 of weights" in printed


@pytest.mark.parametrize(
    ("layout", "shape", "assumptions", "sentence"),
    [
        # an engine has half of 4000 bytes: too few for 2928 bytes of weights, enough for half of them on each of two
        ({"gpus": 2, "engines": 1}, SMALL, replace(ROUND, gpu_memory_gb=4e-6), "do not fit the 0.5 of 4e-06 GB"),
        ({"gpus": 3, "engines": 1}, SMALL, replace(ROUND, gpu_memory_gb=4e-6), "a rank of the learner needs"),
        # 8000 bytes less 2928 of weights, at 32 a token
        (
            {"gpus": 2, "engines": 1},
            SMALL,
            replace(ROUND, gpu_memory_gb=0.1, engine_memory_share=8e-5),
            "holds 158 tokens and a rollout has up to 300",
        ),
    ],
)
def test_what_does_not_fit_is_refused_with_numbers(layout, shape, assumptions, sentence):
    with pytest.raises(AssumptionError, match=sentence):
        explain(recipe(rl(), **layout), shape, assumptions)


def test_an_engine_of_two_gpus_has_half_of_the_weights_on_each():
    e = explain(recipe(rl(), gpus=5, engines=2), SMALL, ROUND)
    assert (e.layout.engines, e.layout.tensor_parallel) == (2, 2)
    assert (e.memory.engine_weights, e.memory.weights) == (1464, 4 * 1464)
    assert e.layout.kv_tokens == int(2 * (0.5e9 - 1464) / 32)


def test_memory_without_gpus_is_that_of_the_process():
    e = explain(recipe(rl()), SMALL, ROUND)
    assert (e.memory.weights, e.memory.optimizer) == (4 * 1464, 8 * 1464)
    assert e.memory.engine_weights == 4 * (1464 + 32 * 8)  # its head is a copy of its own
    assert e.memory.kv_cache == 4 * 16 * 256 * (200 + 512)
    assert "inside the trainer's process" in format_explanation(e)


@pytest.mark.parametrize(
    ("staleness", "mode"),
    [(0, "; synchronous"), (2, "; asynchronous: rollouts begin up to 2 steps early, weighed by TIS up to 2")],
)
def test_the_mode_of_a_stage_is_said(staleness, mode):
    assert f"{mode}\n" in format_explanation(explain(recipe(rl(staleness=staleness)), SMALL, ROUND))


def test_ranks_of_the_learner_are_said():
    assert "Learner: 2 ranks" in format_explanation(explain(recipe(rl(), ranks=2), SMALL, ROUND))
    assert "Learner:" not in format_explanation(explain(recipe(rl()), SMALL, ROUND))


def test_the_paper_s_run():
    paper = load_recipe(PAPER)
    stages = [s for s in paper.stages if s.kind == "rl"]
    assert [(s.steps, s.sampling.max_response_tokens, s.sampling.max_turns) for s in stages] == [
        (300, 8192, 10),
        (85, 12288, 10),
        (125, 12288, 15),
    ]
    assert paper.total_rl_steps == 510 and paper.gpus == 64 and stages[0].warmup_steps == 20
    assert all((s.prompts_per_step, s.oversample, s.group_size) == (512, 32, 16) for s in stages)
    assert all((s.learning_rate, s.clip_low, s.clip_high) == (1e-6, 0.2, 0.28) for s in stages)
    assert all((s.resample, s.advantage_scale, s.loss_aggregation) == ("paper", "std", "group_token") for s in stages)
    assert [s.reset_optimizer for s in stages] == [True, False, True]
    assert [s.hard_subset for s in stages] == [0, 0, 8]


def test_the_paper_s_run_explained():
    e = explain(load_recipe(PAPER), QWEN3_14B, Assumptions())
    steps = [load for load in e.loads if load.occasion == "a step"]
    assert sum(load.times for load in steps) == 510
    assert all(load.rollouts == 16_384 for load in steps)
    assert all(load.calls == 45_056 for load in steps)  # the paper: up to 45K a step
    assert steps[0].tokens == pytest.approx(16_384 * 0.41 * 8192)
    screening = next(load for load in e.loads if load.occasion.startswith("screening"))
    assert screening.rollouts == 8 * 41_936  # all problems, as the paper does
    # 16 bytes a parameter over 24 GPUs: 2.46 + 2.46 + 4.92 GB, and 59.1 GB of a whole gradient
    assert e.memory.weights + e.memory.gradients + e.memory.optimizer == pytest.approx(16 * 14_768_307_200 / 24)
    assert e.memory.learner < 87e9  # of 192
    assert (e.layout.engines, e.layout.tensor_parallel) == (40, 1)
    # (172.8 GB - 29.5 GB) / 163,840 bytes a token
    assert e.layout.kv_tokens == 874_410
    assert e.layout.full_rollouts == 874_410 // (12_288 + 400)
    with pytest.raises(AssumptionError, match="needs 86.0 GB of its GPU's 80, 59.1 GB of them for a whole gradient"):
        explain(load_recipe(PAPER), QWEN3_14B, Assumptions(gpu_memory_gb=80))


def test_the_command_prints_every_number_with_its_assumptions(capsys):
    assert main(["explain", str(PAPER), "--assume", "mean_turns=3"]) == 0
    printed = capsys.readouterr().out
    for words in (
        "16,384",
        "32,768",
        "510",
        "24 of 192 GB",
        "40 of 192 GB",
        "tensor parallel 1",
        "mean_turns = 3 ",
        "KV cache",
    ):
        assert words in printed
    for name in Assumptions.__dataclass_fields__:
        assert f"{name} = " in printed


@pytest.mark.parametrize("path", sorted((PROJECT / "recipes").glob("*.yaml")), ids=lambda p: p.name)
def test_every_recipe_can_be_explained(path, capsys):
    known = [m for m in ("models/tiny-base", *KNOWN_SHAPES) if m in load_recipe(path).model.lower()]
    config = [] if known else ["--config", str(TINY_BASE / "config.json")]
    assert main(["explain", str(path), *config]) == 0
    assert capsys.readouterr().out.startswith(load_recipe(path).name)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--assume", "mean_turn=3"], "no assumption 'mean_turn', only response_share, mean_turns"),
        (["--assume", "mean_turns=many"], "expected a number above 0"),
        (["--assume", "mean_turns=nan"], "expected a number above 0"),
        (["--set", "model=artifacts:models/other"], "is not here, so its shape is not known"),
        (["--config", "nowhere.json"], "nowhere.json: no model's config.json"),
        (["--shard", "nowhere.parquet"], "nowhere.parquet: No such file"),
    ],
)
def test_what_cannot_be_used_is_a_sentence(arguments, sentence, capsys):
    assert main(["explain", str(PAPER), *arguments]) == 2
    assert sentence in capsys.readouterr().err


def test_a_config_file_gives_the_shape(tmp_path: Path):
    assert read_shape("artifacts:models/x", PROJECT, TINY_BASE / "config.json").layers == 4
    other = tmp_path / "config.json"
    other.write_text(json.dumps({"num_hidden_layers": 2}))
    with pytest.raises(AssumptionError, match="has no 'hidden_size'"):
        read_shape("x", PROJECT, other)


def test_bytes_a_token_are_measured_on_a_shard(tmp_path: Path):
    path = tmp_path / "s.parquet"
    write_shard(path, [make_row(number) for number in range(4)])  # three response tokens each
    assert read_assumptions([], path).bytes_per_token == path.stat().st_size / 12
    assert read_assumptions(["bytes_per_token=5"], path).bytes_per_token == 5


def test_given_assumptions_replace_the_defaults():
    found = read_assumptions(["prompt_tokens=1000", "mean_turns=2.5"], None)
    assert (found.prompt_tokens, found.mean_turns, found.tool_share) == (1000, 2.5, Assumptions().tool_share)
