"""Which node gets the next calls: the one that would answer first, of two drawn at random.

A node reports its load twice a second. Between two reports the client adds what it has sent itself and takes off
what came back, so that a burst does not all go where the last report was best.
"""

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from contracts.execution import NodeHealth

FRESH_S = 2.0  # an older report says nothing about load any more
FLOOR_IN_FLIGHT = 32  # of this client on one node; also before the first report
CALLS_PER_BOX = 4  # in flight: enough that no box waits for the client, few enough that it holds the rest
FIRST_REST_S = 0.1
MAX_REST_S = 2.0


@dataclass(eq=False)
class Node:
    """A node as this client sees it."""

    url: str
    in_flight: int = 0
    report: NodeHealth | None = None
    reported_at: float = 0.0
    since_report: int = 0  # sent less answered
    heard_at: float = 0.0
    rests_until: float = 0.0
    is_lost: bool = False  # until it speaks again
    failures: int = 0  # since it last ran a call

    def is_alive(self) -> bool:
        """True while it speaks."""
        return time.monotonic() - self.heard_at < FRESH_S

    def hear(self) -> None:
        """It said something."""
        self.heard_at = time.monotonic()
        self.is_lost = False

    def send(self, calls: int) -> None:
        """Count calls as under way."""
        self.in_flight += calls
        self.since_report += calls

    def land(self, calls: int = 1) -> None:
        """Count calls as no longer there: answered, or nobody waits for them."""
        self.in_flight -= calls
        self.since_report -= calls

    def take_report(self, report: NodeHealth) -> None:
        """Believe the node and forget what was added to its last report."""
        self.hear()
        self.report, self.reported_at, self.since_report = report, time.monotonic(), 0

    def rest(self, seconds: float) -> None:
        """Leave it alone for a while."""
        self.rests_until = max(self.rests_until, time.monotonic() + seconds)

    def stumble(self) -> None:
        """Something broke there: left alone, longer each time. A burst of it, when a node dies, counts once."""
        if time.monotonic() >= self.rests_until:
            self.rest(min(FIRST_REST_S * 2**self.failures, MAX_REST_S) * random.uniform(0.75, 1.25))  # noqa: S311
            self.failures += 1

    def lose(self) -> None:
        """It is gone: left alone until it speaks."""
        self.stumble()
        self.is_lost = True
        self.heard_at = 0.0

    def room(self, held: int) -> int:
        """How many more calls it may be sent now, of `held`. Refilled by quarters: a request for each call is dear."""
        if self.is_lost or time.monotonic() < self.rests_until:
            return 0
        most = max(FLOOR_IN_FLIGHT, CALLS_PER_BOX * self.report.boxes) if self.report else FLOOR_IN_FLIGHT
        room = most - self.in_flight
        return room if room >= min(held, most // 4) else 0

    def idle_boxes(self) -> int:
        """Boxes that could start a call at once, as far as we know."""
        if self.report is None or time.monotonic() - self.reported_at > FRESH_S:
            return 0
        return max(0, self.report.boxes - self.report.busy - self.report.queued - max(0, self.since_report))

    def wait_s(self, calls_per_s: float) -> float:
        """How long a new call would wait at that rate; a stale report leaves only what is ours."""
        if self.report is None or time.monotonic() - self.reported_at > FRESH_S:
            return self.in_flight / calls_per_s
        ahead = self.report.queued + self.report.busy
        return max(0.0, max(self.report.wait_s, ahead / calls_per_s) + self.since_report / calls_per_s)


def choose_node(nodes: Sequence[Node], held: int, tried: Sequence[Node] = ()) -> Node | None:
    """The better of two drawn nodes with room, rather one not tried yet; None: every one is full or lost."""
    usable = [node for node in nodes if node.room(held)]
    usable = [node for node in usable if node not in tried] or usable
    if len(usable) < 2:
        return usable[0] if usable else None
    drawn = random.sample(usable, 2)
    rates = _rates(drawn)
    return min(zip(drawn, rates, strict=True), key=lambda pair: pair[0].wait_s(pair[1]))[0]


def _rates(nodes: Sequence[Node]) -> list[float]:
    """Calls per second of each, in one unit: as measured where all are, else by their boxes."""
    reports = [node.report for node in nodes]
    measured = [report.calls_per_s if report else 0.0 for report in reports]
    boxes = [float(report.boxes) if report else 0.0 for report in reports]
    return next((rates for rates in (measured, boxes) if all(rates)), [1.0] * len(nodes))
