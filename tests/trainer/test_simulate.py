import json
import math
from dataclasses import replace

import pytest

from trainer.__main__ import main
from trainer.rollout.engine import EngineLoad
from trainer.rollout.scheduler import Turn
from trainer.rollout.scheduler_grid import Comparison, GridRow, compare
from trainer.rollout.simulate import Cluster, LeastRequests, Policy, StaticSplit, Workload, make_router, simulate
from trainer.rollout.simulated_engine import EngineModel, SimulatedEngine

# A step of 1 s whatever the batch, prompts of 100 tokens a second, 100 of them on a step of their own second.
PLAIN = EngineModel(step_s=1.0, sequence_s=0.0, token_s=0.0, prefill_per_s=100.0, chunk=100, watermark=0.0)


def run(engine: SimulatedEngine) -> list[tuple[float, object]]:
    """(time, key) of every turn that ends."""
    found = []
    while (at := engine.next_event_s()) < math.inf:
        engine.advance(at)
        found += [(round(at, 6), key) for key in engine.ended]
        engine.ended.clear()
    return found


def test_a_turn_takes_its_prefill_and_one_step_a_token():
    engine = SimulatedEngine(1000, PLAIN)
    engine.add("a", 100, 10)
    assert run(engine) == [(12.0, "a")]  # one step of 1 + 1 s with the prompt, ten of 1 s
    assert (engine.generated, engine.prefilled, engine.busy_s) == (10, 100, 12)


def test_the_batch_and_the_cache_slow_a_step_down():
    model = EngineModel(step_s=1.0, sequence_s=0.5, token_s=0.01, prefill_per_s=1e12, chunk=10**9)
    engine = SimulatedEngine(1000, model)
    engine.add("a", 100, 10)
    engine.add("b", 100, 10)
    # Steps with n tokens each so far: 1 + 2 * 0.5 + 0.01 * (200 + 2 n), n from 0 to 10: 10 * 4 + 0.01 * 100.
    assert run(engine) == [(41.0, "a"), (41.0, "b")]


def test_a_turn_that_comes_back_computes_only_what_is_new():
    engine = SimulatedEngine(1000, PLAIN)
    engine.add("a", 100, 10)
    run(engine)
    engine.add("a", 160, 5)
    run(engine)
    assert engine.prefilled == 100 + 50  # 110 of the 160 are in the cache


def test_a_cached_prefix_gives_way_from_its_end():
    engine = SimulatedEngine(300, PLAIN)
    engine.add("a", 100, 10)
    run(engine)
    engine.add("b", 200, 50)  # 250 at its end: of a's 110 tokens 50 are left
    run(engine)
    engine.add("a", 160, 5)
    run(engine)
    assert engine.prefilled == 100 + 200 + 110


def test_the_newest_turn_is_preempted_and_computed_again():
    engine = SimulatedEngine(220, replace(PLAIN, watermark=0.01))
    engine.add("a", 100, 20)
    engine.add("b", 100, 20)
    ended = run(engine)
    # a gains a token while b's prompt is computed; of the 19 left to 220 each gains 9.5.
    assert [key for _, key in ended] == ["a", "b"]
    assert engine.preemptions == 1
    assert engine.recomputed == pytest.approx(109.5)
    assert engine.prefilled == pytest.approx(200 + 109.5)
    assert engine.generated == pytest.approx(40)
    assert engine.load() == EngineLoad(220, 0, 0, 0, preemptions=1, max_running=512)


def test_static_split_by_blocks_with_and_without_barriers():
    router = StaticSplit(2, 4, barrier=False)
    for i in range(4):
        router.submit(Turn(i, 10, 10))
    assert [(a.trajectory, a.engine) for a in router.admit()] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    router = StaticSplit(2, 4, barrier=True)
    router.submit(Turn(0, 10, 10))
    assert router.admit() == []
    router.submit(Turn(1, 10, 10))
    assert len(router.admit()) == 2
    router.forget(0)
    router.submit(Turn(1, 10, 10))
    assert len(router.admit()) == 1  # it waits for nobody any more


def test_least_requests_keeps_a_trajectory_where_it_began():
    router = LeastRequests(2)
    for i in range(3):
        router.submit(Turn(i, 10, 10))
    assert [a.engine for a in router.admit()] == [0, 1, 0]
    router.turn_ended(1, 5)
    router.submit(Turn(3, 10, 10))
    router.submit(Turn(0, 10, 10))
    assert [a.engine for a in router.admit()] == [1, 0]


@pytest.mark.parametrize("policy", Policy)
def test_every_policy_generates_every_token_of_the_workload_once(policy):
    cluster, workload = Cluster(2, 20_000, 0.1), Workload(groups=4, group_size=8)
    trajectories = workload.draw(3)
    result = simulate(make_router(policy, cluster, 32), cluster, workload, 3)
    assert result.generated == pytest.approx(sum(map(sum, trajectories)))
    again = simulate(make_router(policy, cluster, 32), cluster, workload, 3)
    assert (again.makespan_s, again.preemptions) == (result.makespan_s, result.preemptions)


def test_a_workload_keeps_its_limits():
    drawn = Workload(groups=30, max_response_tokens=2000).draw(1)
    assert all(1 <= len(turns) <= 10 for turns in drawn)
    assert all(sum(turns) + 80 * (len(turns) - 1) <= 2000 for turns in drawn)
    assert max(map(sum, drawn)) > 1500


def row(policy: Policy, seconds: float, preemptions: float) -> GridRow:
    return GridRow(8, "scarce", 0.3, policy.value, seconds, preemptions, 0.0, 0.0, 1.0, 1.0)


def test_a_cell_is_compared_with_each_policy():
    [cell] = compare([row(Policy.STATIC, 300, 9), row(Policy.LEAST, 110, 50), row(Policy.OURS, 100, 4)])
    assert isinstance(cell, Comparison)
    assert (cell.speedup(Policy.STATIC), cell.speedup(Policy.LEAST), cell.preemption_share) == (3.0, 1.1, 0.08)


def test_the_command_prints_the_table_and_writes_the_files(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("trainer.rollout.scheduler_grid.GROUPS_PER_ENGINE", 1)
    arguments = ["--engines", "2", "--kv", "ample", "--tool-s", "0.1", "--seeds", "1", "--out", str(tmp_path / "o")]
    assert main(["simulate-scheduler", *arguments]) == 0
    table = capsys.readouterr().out
    assert "| 2 | ample | 0.1 |" in table
    assert (tmp_path / "o" / "grid.csv").read_text().count("\n") == 5
    timeline = json.loads((tmp_path / "o" / "timeline.json").read_text())
    assert set(timeline) == {policy.value for policy in Policy}
    assert {s["engine"] for s in timeline["ours"]} == {0, 1}
