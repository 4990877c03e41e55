"""The simulator against cases worked by hand and against the M/D/1 queue."""

import math

import pytest

from sandbox.simulate import (
    PRECISION,
    Costs,
    Layout,
    Simulation,
    fewest_cores,
    poisson_arrivals,
    read_costs,
    report,
    step_arrivals,
    write_between_marks,
)


def costs(exec_ms: float = 100, *, after_ms: float = 0, front_ms: float = 0, sleep_ms: float = 0) -> Costs:
    kinds = {"python": {"share": 1.0, "tier": "light", "is_sleep": False, "exec_ms": [exec_ms]}}
    kinds["sleep"] = {"share": 0.0, "tier": "light", "is_sleep": True, "exec_ms": [sleep_ms]}
    kinds["sympy"] = {"share": 0.0, "tier": "sympy", "is_sleep": False, "exec_ms": [2 * exec_ms]}
    return Costs.of({"kinds": kinds, "after_ms": after_ms, "front_ms": front_ms})


def run(model: Costs, arrivals: list[float], kinds: list[str] | None = None, **layout: int) -> list[float]:
    layout = {"nodes": 1, "cores": 1, "boxes": 1, **layout}
    found = Simulation(model, Layout(**layout)).run(arrivals, kinds or ["python"] * len(arrivals))
    return [round(latency, 6) for latency in found.latencies]


def test_one_box_serves_one_call_after_the_other():
    assert run(costs(), [0, 0, 0]) == [0.1, 0.2, 0.3]


def test_two_boxes_share_one_core():
    assert run(costs(), [0, 0], boxes=2) == [0.2, 0.2]


def test_two_boxes_on_two_cores_do_not_slow_each_other():
    assert run(costs(), [0, 0], boxes=2, cores=2) == [0.1, 0.1]


def test_a_late_comer_slows_the_one_that_runs():
    # Alone until 0.05, then half speed each: the first needs 0.1 s more, then the second has 0.05 of its 0.1 left.
    assert run(costs(), [0, 0.05], boxes=2) == [0.15, 0.15]


def test_a_sleeper_holds_its_box_and_no_core():
    assert run(costs(sleep_ms=2000), [0, 0], ["sleep", "python"], boxes=2) == [0.1, 2.0]
    assert run(costs(sleep_ms=2000), [0, 0], ["sleep", "python"]) == [2.0, 2.1]


def test_a_box_is_busy_after_its_answer():
    assert run(costs(after_ms=50), [0, 0]) == [0.1, 0.25]


def test_tiers_have_boxes_of_their_own():
    # 0.1 and 0.2 s of work on one core: the small one is done at 0.2, the large one at 0.3.
    assert run(costs(), [0, 0], ["python", "sympy"]) == [0.2, 0.3]


def test_a_richer_box_helps_while_a_core_is_idle():
    # Two light calls: the second goes to the numpy box when there is a core for it, and waits when there is not.
    assert run(costs(), [0, 0], cores=2) == [0.1, 0.1]
    assert run(costs(), [0, 0], cores=1) == [0.1, 0.2]


def test_the_front_takes_calls_one_by_one():
    assert run(costs(front_ms=10), [0, 0], boxes=2, cores=2) == [0.11, 0.12]


def test_the_client_sends_to_the_less_loaded_of_two():
    assert run(costs(), [0, 0, 0, 0], nodes=2) == [0.1, 0.1, 0.2, 0.2]


def test_the_mean_is_that_of_the_m_d_1_queue():
    # Load 1/2 of a server of 0.1 s: wait = 0.5 * 0.1 / (2 * (1 - 0.5)).
    found = Simulation(costs(), Layout(1, 1, boxes=1)).run(poisson_arrivals(5, 8000, seed=3))
    assert found.mean_s == pytest.approx(0.15, rel=0.03)


def test_processor_sharing_does_not_depend_on_the_distribution():
    # M/G/1-PS: mean = work / (1 - load), here of two kinds at load 0.6.
    model = Costs.of(
        {
            "kinds": {
                "small": {"share": 0.5, "tier": "light", "is_sleep": False, "exec_ms": [20]},
                "large": {"share": 0.5, "tier": "light", "is_sleep": False, "exec_ms": [220]},
            },
            "after_ms": 0,
            "front_ms": 0,
        }
    )
    found = Simulation(model, Layout(1, 1, boxes=1000)).run(poisson_arrivals(5, 8000, seed=4))
    assert found.mean_s == pytest.approx(0.12 / 0.4, rel=0.05)


def test_one_seed_one_outcome():
    outcomes = [Simulation(read_costs(), Layout(2, 4), seed=5).run(step_arrivals(300, 5, 1)) for _ in range(2)]
    assert outcomes[0] == outcomes[1] and len(outcomes[0].latencies) == 300


def test_the_mean_cost_of_a_call():
    assert costs(100, after_ms=20, front_ms=3).cpu_ms == 123


@pytest.mark.parametrize(("need", "start"), [(700, 64), (700, 4096), (1, 0), (129, 128)])
def test_the_fewest_cores_are_found(need, start):
    found = fewest_cores(lambda cores: 0.3 * need / cores, target=0.3, start=start, step=32)
    exact = math.ceil(need / 32) * 32
    assert found % 32 == 0 and exact <= found <= exact * (1 + PRECISION)


def test_the_report_has_a_line_for_every_spread():
    text = report(costs(10), calls=200, cores_per_node=2, cores=(2, 4), spreads_s=(0, 10))
    assert text.count("nothing: a burst") == 2 and text.count("| 10 s |") == 2


def test_tables_replace_what_was_between_the_marks(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- it: begin -->\nold\n<!-- it: end -->\nafter\n")
    write_between_marks(page, "it", "new")
    assert page.read_text() == "before\n<!-- it: begin -->\n\nnew\n\n<!-- it: end -->\nafter\n"
