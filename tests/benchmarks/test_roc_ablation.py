"""What the ablation runs and prints, on hand-made journals."""

from benchmarks.roc_ablation import ARMS, Arm, bucket_means, draw, format_table, read_arm, recipes
from contracts.events import Event, Metrics
from contracts.recipe import Recipe, Resample


def test_the_arms_differ_by_the_rule_alone() -> None:
    made = {name: Recipe.model_validate(values) for name, values in recipes(2, 30, 8, "models/tiny-base").items()}
    grpo, roc = made["GRPO"], made["GRPO-RoC"]
    assert (grpo.stages[1].resample, roc.stages[1].resample) == (Resample.NONE, Resample.PAPER)
    same = {"name": "", "stages": [roc.stages[0], roc.stages[1].model_copy(update={"resample": Resample.NONE})]}
    assert grpo.model_copy(update={"name": ""}) == roc.model_copy(update=same)
    assert made["start"].stages[0] == grpo.stages[0]  # the same problems before and after
    assert (grpo.stages[1].steps, grpo.stages[1].prompts_per_step, grpo.stages[1].mini_batch) == (30, 8, 16)


def test_buckets_are_means_of_five_steps_and_leave_out_nan() -> None:
    values = {1: 0.1, 2: 0.3, 5: 0.2, 6: float("nan"), 7: 0.5, 11: float("nan")}
    assert {end: round(value, 6) for end, value in bucket_means(values).items()} == {5: 0.2, 10: 0.5}


def test_a_journal_is_read_by_metric_and_step() -> None:
    payloads = [
        Metrics(stage=1, step=1, values={"response/tokens_mean": 80, "time/step_s": 3.0}),
        Metrics(stage=1, step=2, values={"response/tokens_mean": 90, "tools/error_ratio_right": 0.25}),
    ]
    events = [
        Event(seq=n, attempt=1, time="2026-01-01T00:00:00Z", run="r", payload=payload)
        for n, payload in enumerate(payloads, 1)
    ]
    arm = read_arm("GRPO", 1, events)
    assert arm.values["response/tokens_mean"] == {1: 80, 2: 90}
    assert arm.values["tools/error_ratio_right"] == {2: 0.25}


def arm(name: str, seed: int, ratio: float) -> Arm:
    values = {"tools/error_ratio_right": {1: ratio}, "response/tokens_mean": {1: 80.0}, "eval/avg": {}}
    return Arm(name, seed, values)


def test_the_table_gives_the_mean_and_each_seed() -> None:
    arms = [arm("GRPO", 1, 0.2), arm("GRPO", 2, 0.4), arm("GRPO-RoC", 1, 0.1), arm("GRPO-RoC", 2, 0.1)]
    row = format_table(arms).splitlines()[-1]
    assert (
        row == "| 1-5 | **0.300** (0.200, 0.400) | **0.100** (0.100, 0.100) | **80** (80, 80) | **80** (80, 80) |  |  |"
    )


def test_the_page_has_a_thick_curve_an_arm_and_metric() -> None:
    figure = draw([arm(name, seed, 0.2) for name in ARMS for seed in (1, 2)])
    assert sum(curve.line.width == 3 for curve in figure.data) == 6
    assert sum(curve.line.width == 1 for curve in figure.data) == 12
