import pytest

from trainer.rollout.engine import EngineLoad
from trainer.rollout.scheduler import Admission, NeverFits, Scheduler, Settings, Turn
from trainer.rollout.waiting import Lengths


def load(capacity: int = 1000, used: int = 0, **counts: int) -> EngineLoad:
    return EngineLoad(capacity, used, counts.pop("running", 0), counts.pop("waiting", 0), **counts)


def scheduler(*capacities: int, max_running: int = 1024, **settings: float) -> Scheduler:
    """Reserves 512 tokens a turn, or what the turn may at most add."""
    made = Scheduler(Settings(**settings))
    for capacity in capacities:
        made.add_engine(load(capacity, max_running=max_running))
    return made


def admit(made: Scheduler, *turns: Turn) -> dict[object, int]:
    for turn in turns:
        made.submit(turn)
    return {a.trajectory: a.engine for a in made.admit()}


def test_least_requests_while_no_engine_is_pressed():
    made = scheduler(10_000, 10_000)
    assert admit(made, *(Turn(i, 100, 50) for i in range(4))) == {0: 0, 1: 1, 2: 0, 3: 1}
    made.turn_ended(1, 20)
    made.forget(1)
    assert admit(made, Turn(4, 3000, 50)) == {4: 1}  # one request against two, whatever the tokens
    assert (made.running(0), made.running(1)) == (2, 2)


def test_least_use_of_the_cache_where_one_is_pressed():
    made = scheduler(1000, 1000)
    assert admit(made, Turn("long", 800, 50), Turn("a", 100, 50), Turn("b", 100, 50)) == {"long": 0, "a": 1, "b": 1}


def test_what_does_not_fit_waits_in_the_middle_and_is_let_in_when_room_frees():
    made = scheduler(1000)
    assert admit(made, Turn("a", 400, 100), Turn("b", 300, 100), Turn("c", 200, 100)) == {"a": 0, "b": 0}
    assert (made.reserved(0), made.queued()) == (900, 1)
    made.turn_ended("a", 60)
    assert (made.reserved(0), made.held(0)) == (400, 460)
    assert made.admit() == [Admission("c", 0)]  # 400 run, c needs 300, at most 100 are kept for a's return
    made.forget("a")
    assert (made.reserved(0), made.held(0)) == (700, 0)


def test_a_turn_that_waits_is_not_passed_by_a_smaller_one():
    made = scheduler(1000)
    assert admit(made, Turn("a", 700, 100), Turn("big", 500, 100), Turn("small", 10, 10)) == {"a": 0}
    made.turn_ended("a", 1)
    made.forget("a")
    assert [a.trajectory for a in made.admit()] == ["big", "small"]


def test_a_trajectory_comes_back_to_its_prefix_before_new_ones():
    made = scheduler(1000, 1000)
    assert admit(made, Turn("a", 400, 200), Turn("b", 500, 200)) == {"a": 0, "b": 1}
    made.turn_ended("b", 100)
    made.submit(Turn("new", 500, 200))
    made.submit(Turn("b", 640, 200))
    assert made.admit() == [Admission("b", 1)]
    assert made.counts.moved == 0


def test_a_tenth_of_the_cache_is_kept_for_those_whose_tool_runs():
    made = scheduler(1000)
    assert admit(made, Turn("a", 300, 100), Turn("b", 300, 100)) == {"a": 0, "b": 0}
    made.turn_ended("a", 50)
    assert admit(made, Turn("c", 401, 100)) == {}  # 400 run, 100 of a's 350 are kept: 500 are left
    made.submit(Turn("a", 360, 100))  # it waits, in c's way no more, and has the earlier place
    assert made.admit() == [Admission("a", 0)]
    made.turn_ended("a", 50)
    made.forget("a")
    assert made.admit() == [Admission("c", 0)]


def test_the_prefix_of_one_that_waits_keeps_no_room_from_those_before_it():
    made = scheduler(1000, quantum=100)
    assert admit(made, Turn("a", 500, 100), Turn("b", 300, 100), Turn("c", 300, 100)) == {"a": 0, "b": 0}
    made.turn_ended("a", 100)
    made.submit(Turn("a", 610, 50))  # its quantum is used: behind c
    assert made.admit() == [Admission("c", 0)]
    assert (made.reserved(0), made.held(0)) == (800, 600)


def test_one_that_moves_leaves_the_prefixes_of_others_their_room():
    made = scheduler(1000, 1000)
    first = admit(made, *(Turn(key, tokens, 100) for key, tokens in (("a", 400), ("b", 400), ("c", 300), ("d", 50))))
    assert first == {"a": 0, "b": 1, "c": 0, "d": 1}
    made.turn_ended("b", 50)  # engine 1: 150 run, b's prefix of 450
    made.turn_ended("a", 50)
    made.report(0, load(used=950))
    assert admit(made, Turn("a", 460, 50)) == {}  # 510 for one that moves: 400 are left of engine 1
    assert admit(made, Turn("new", 460, 50)) == {"new": 1}
    assert made.counts.moved == 0


def test_it_moves_where_its_own_engine_has_no_room_or_is_far_busier():
    made = scheduler(1000, 1000)
    assert admit(made, Turn("a", 200, 100), Turn("x", 100, 100), Turn("b", 600, 100)) == {"a": 0, "x": 1, "b": 1}
    made.turn_ended("x", 10)
    made.submit(Turn("y", 300, 50))
    made.submit(Turn("x", 350, 100))  # 700 run on its engine: no room for 450
    assert {a.trajectory: a.engine for a in made.admit()}["x"] == 0
    assert made.counts.moved == 1

    made = scheduler(100_000, 100_000, move_ratio=2.0, move_slack=1)
    admit(made, *(Turn(i, 10, 10) for i in range(8)))  # even ones on engine 0, odd ones on 1
    for i in (1, 3, 5, 7, 0):
        made.turn_ended(i, 5)
        if i % 2:
            made.forget(i)
    assert admit(made, Turn(0, 20, 10)) == {0: 1}  # three against none, 2 * 0 + 1 allowed


def test_what_can_never_fit_is_refused_with_the_numbers():
    made = scheduler(1000, 2000)
    with pytest.raises(
        NeverFits, match=r"1500 tokens and up to 501 new ones needs 2001 .* largest of 2 engines has 2000"
    ):
        made.submit(Turn("a", 1500, 501))
    assert (made.counts.refused, made.queued()) == (1, 0)
    assert admit(made, Turn("a", 1500, 500)) == {"a": 1}  # the smaller one could not hold its worst case


def test_an_idle_engine_takes_any_turn_it_can_hold():
    made = scheduler(1000)
    made.report(0, load(used=0, preemptions=3))
    assert made.limit(0) == 0.9
    assert admit(made, Turn("a", 950, 50)) == {"a": 0}


def test_no_more_requests_than_the_engine_runs():
    made = scheduler(1000, max_running=2)
    assert len(admit(made, *(Turn(i, 10, 10) for i in range(3)))) == 2


def test_the_guard_cuts_on_preemptions_and_on_use_and_grows_again():
    made = scheduler(1000, cut=0.8, grow=0.05, settle=1)
    made.report(0, load(used=500, preemptions=1))
    assert made.limit(0) == 0.8
    made.report(0, load(used=990, preemptions=1))
    assert made.limit(0) == 0.8  # settles
    made.report(0, load(used=990, preemptions=1))
    assert made.limit(0) == pytest.approx(0.64)
    made.report(0, load(used=500, preemptions=1))
    made.report(0, load(used=930, preemptions=1))
    assert made.limit(0) == pytest.approx(0.64)  # between the two bounds nothing changes
    for _ in range(20):
        made.report(0, load(used=500, preemptions=1))
    assert made.limit(0) == 1.1


def test_the_guard_leaves_room_for_those_whose_tool_runs():
    made = scheduler(1000)
    admit(made, Turn("a", 300, 100))
    made.report(0, load(used=850))
    assert made.limit(0) == 1.02
    made.turn_ended("a", 50)
    made.report(0, load(used=850))  # and 100 kept: above 90 %
    assert made.limit(0) == 1.02


def test_what_outgrew_its_reservation_counts_from_the_next_report_on():
    made = scheduler(1000)
    admit(made, Turn("a", 100, 100))
    made.report(0, load(used=700, running=1))
    assert admit(made, Turn("b", 250, 100)) == {}
    made.report(0, load(used=150, running=1))
    assert made.admit() == [Admission("b", 0)]


def test_an_engine_with_a_queue_of_its_own_gets_nothing_more():
    made = scheduler(1000)
    admit(made, Turn("a", 100, 100))
    made.report(0, load(used=100, running=1, waiting=3))
    assert admit(made, Turn("b", 100, 100)) == {}
    made.report(0, load(used=100, running=1, waiting=2))
    assert made.admit() == [Admission("b", 0)]


def test_turns_of_a_dead_engine_begin_again_elsewhere_before_all_others():
    made = scheduler(1000, 1000)
    admit(made, Turn("a", 300, 100), Turn("b", 300, 100), Turn("c", 300, 100), Turn("d", 300, 100))
    made.turn_ended("a", 50)  # its tool runs
    made.submit(Turn("new", 300, 100))
    assert made.engine_died(0) == ["c"]
    made.submit(Turn("a", 400, 100))
    assert (made.reserved(0), made.held(0), made.running(0)) == (0, 0, 0)
    assert made.admit() == []  # b and d fill engine 1
    made.turn_ended("b", 100)
    made.forget("b")
    assert made.admit() == [Admission("c", 1)]
    assert made.counts.requeued == 1


def test_a_rebuilt_engine_gets_no_turn_before_it_has_the_newest_weights():
    made = scheduler(1000, 1000)
    made.engine_died(0)
    made.set_version(3)
    assert admit(made, Turn("a", 10, 10)) == {}
    made.engine_ready(0, 2, load())
    assert made.admit() == []
    made.engine_ready(0, 3, load())
    assert made.admit() == [Admission("a", 0)]
    assert not made.is_open(1)


def test_a_trajectory_has_one_turn_at_a_time_and_forgetting_is_harmless():
    made = scheduler(1000)
    made.submit(Turn("a", 10, 10))
    with pytest.raises(ValueError, match="a turn already"):
        made.submit(Turn("a", 10, 10))
    made.forget("a")
    made.forget("a")
    assert (made.queued(), made.admit()) == (0, [])


def test_lengths_are_a_quantile_of_the_newest_once_enough_were_seen():
    lengths = Lengths(0.5, guess=99, enough=3, window=4)
    lengths.add(10)
    lengths.add(30)
    assert lengths.value == 99
    lengths.add(20)
    assert lengths.value == 20
    for length in (100, 200, 300):  # 10 and 30 leave: 20, 100, 200, 300
        lengths.add(length)
    assert lengths.value == 200


def test_a_trajectory_keeps_its_place_until_its_quantum_is_used():
    """Room for one turn at a time: b waits, a comes back and passes it with 300 of 500 tokens, and then no more."""
    scheduler = Scheduler(Settings(quantum=500))
    scheduler.add_engine(load())
    for key in "ab":
        scheduler.submit(Turn(key, 100, 800))
    order = [a.trajectory for a in scheduler.admit()]
    for tokens, new in ((400, 300), (700, 300)):
        scheduler.turn_ended("a", new)
        scheduler.submit(Turn("a", tokens, 300))
        order += [a.trajectory for a in scheduler.admit()]
    assert order == ["a", "a", "b"]


def test_of_equal_room_the_earlier_place_goes_first_whether_new_or_returning():
    scheduler = Scheduler(Settings(quantum=100))
    scheduler.add_engine(load())
    scheduler.submit(Turn("a", 100, 800))
    scheduler.admit()
    scheduler.submit(Turn("b", 100, 800))
    scheduler.turn_ended("a", 200)
    scheduler.submit(Turn("a", 300, 600))  # with a new place, behind b
    assert [a.trajectory for a in scheduler.admit()] == ["b"]
