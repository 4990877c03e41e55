"""Which node gets the next calls, from what nodes report and what was sent since."""

import random
import time
from collections import Counter

import pytest

from contracts.execution import NodeHealth
from sandbox.balance import CALLS_PER_BOX, FLOOR_IN_FLIGHT, FRESH_S, Node, choose_node


@pytest.fixture(autouse=True)
def _seed() -> None:
    random.seed(5)


def node(name: str, **load: float) -> Node:
    """A node that has just reported."""
    made = Node(name)
    counts = {"boxes": 4, "ready": 4, "busy": 0, "queued": 0, "served": 0, "replaced": 0, **load}
    made.take_report(NodeHealth(node=name, isolated=True, isolation="gvisor", **counts))
    return made


def chosen(*nodes: Node, times: int = 200) -> Counter[str]:
    found = [choose_node(nodes, held=1) for _ in range(times)]
    return Counter(node.url for node in found if node is not None)


def test_of_two_the_less_loaded_is_taken() -> None:
    assert chosen(node("idle"), node("busy", busy=3)) == {"idle": 200}
    assert chosen(node("busy", busy=4), node("queue", busy=4, queued=1)) == {"busy": 200}
    assert chosen(node("soon", wait_s=0.5), node("late", wait_s=1.0)) == {"soon": 200}


def test_load_counts_by_what_a_node_can_do() -> None:
    assert chosen(node("large", boxes=64, busy=32), node("small", boxes=2, busy=2)) == {"large": 200}
    fast, slow = node("fast", queued=20, calls_per_s=100), node("slow", queued=10, calls_per_s=10)
    assert chosen(fast, slow) == {"fast": 200}


def test_equal_nodes_share() -> None:
    counts = chosen(node("one"), node("two"), node("three"), times=600)
    assert all(150 < count < 250 for count in counts.values())


def test_the_most_loaded_of_three_is_never_taken() -> None:
    assert set(chosen(node("a", busy=1), node("b", busy=2), node("c", busy=3))) == {"a", "b"}


def test_what_was_sent_since_the_report_counts() -> None:
    reported_idle, reported_busy = node("idle"), node("busy", busy=3)
    reported_idle.send(4)
    assert chosen(reported_idle, reported_busy) == {"busy": 200}
    reported_idle.land(3)
    assert chosen(reported_idle, reported_busy) == {"idle": 200}


def test_an_old_report_says_nothing_about_load() -> None:
    once_busy, ours = node("once busy", busy=4, queued=50), node("ours")
    for one in (once_busy, ours):
        one.reported_at = time.monotonic() - FRESH_S - 1
    ours.send(1)
    assert chosen(once_busy, ours) == {"once busy": 200}


def test_a_node_that_was_tried_is_the_second_choice() -> None:
    tried, other = node("tried"), node("other", busy=3)
    assert choose_node([tried, other], held=1, tried=[tried]) is other
    assert choose_node([tried], held=1, tried=[tried]) is tried


def test_room_follows_boxes_and_is_refilled_by_quarters() -> None:
    assert Node("unknown").room(1000) == FLOOR_IN_FLIGHT
    large = node("large", boxes=100)
    most = 100 * CALLS_PER_BOX
    assert large.room(1000) == most
    large.send(most - 1)
    assert large.room(1000) == 0
    assert large.room(1) == 1  # nothing waits for a batch to fill
    large.land(most // 4)
    assert large.room(1000) == most // 4 + 1


def test_a_full_or_lost_node_has_no_room() -> None:
    resting, lost = node("resting"), node("lost")
    resting.rest(60)
    lost.lose()
    assert choose_node([resting, lost], held=1) is None
    lost.rests_until = 0.0
    assert choose_node([resting, lost], held=1) is None
    lost.hear()
    assert choose_node([resting, lost], held=1) is lost


def test_many_requests_that_break_at_once_count_as_one() -> None:
    broken = node("broken")
    for _ in range(20):
        broken.stumble()
    assert broken.failures == 1
