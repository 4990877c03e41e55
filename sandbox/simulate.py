"""How many cores for how many calls: a discrete-event model of nodes, boxes and the client that spreads over them.

A call goes through two stations of a node: the front (one thread) and a box of its tier, which it holds until it is
answered and a while longer, until the box is clean and has its next child. Work at any station shares the node's
cores evenly (processor sharing: with more work than cores everything slows down alike), a sleeping program holds its
box and no core. The client draws two nodes and takes the less loaded by what it knows: the last heartbeat and what it
sent since.

Not in the model: replaced boxes, memory, the network, cores that slow each other down by sharing caches.
"""

import heapq
import json
import math
import random
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

from sandbox.tiers import DEFAULT_TIERS

MEASURED = Path(__file__).parent / "measured_costs.json"
HEARTBEAT_S = 0.5
TARGET_MEAN_S = 0.3
STEP_CALLS = 45_000
SPREADS_S = (0, 10, 30, 60, 120, 300)
CORES = (64, 256, 1024, 4096)
PRECISION = 0.04  # of the fewest cores
_FRONT = "front"
_TIERS = tuple(tier.value for tier in DEFAULT_TIERS)


@dataclass(frozen=True)
class KindCost:
    """One kind of call: its share, the tier it needs, and quantiles of its execution time in milliseconds."""

    share: float
    tier: str
    is_sleep: bool
    exec_ms: tuple[float, ...]


@dataclass(frozen=True)
class Costs:
    """What a call costs, as measured by `python -m benchmarks.sandbox --json FILE`."""

    kinds: dict[str, KindCost]
    after_ms: float
    front_ms: float
    machine: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, raw: dict[str, Any]) -> "Costs":
        """From the `costs` of a benchmark's file, or from such a file as a whole."""
        raw = raw.get("costs", raw)
        kinds = {
            name: KindCost(kind["share"], kind["tier"], kind["is_sleep"], tuple(kind["exec_ms"]))
            for name, kind in raw["kinds"].items()
        }
        return cls(kinds, raw["after_ms"], raw["front_ms"], raw.get("machine", {}))

    @property
    def cpu_ms(self) -> float:
        """Mean CPU of a call."""
        kinds = self.kinds.values()
        total = sum(kind.share for kind in kinds)
        work = sum(kind.share * sum(kind.exec_ms) / len(kind.exec_ms) for kind in kinds if not kind.is_sleep)
        return work / total + self.after_ms + self.front_ms


@dataclass(frozen=True)
class Layout:
    """The nodes: how many, their cores, their boxes of each tier (0: one more than the cores)."""

    nodes: int
    cores: int
    boxes: int = 0

    def slots(self) -> dict[str, int]:
        """How many calls each station of a node takes at a time."""
        return {_FRONT: 1, **{tier.value: self.boxes or self.cores + 1 for tier in DEFAULT_TIERS}}


@dataclass(frozen=True)
class Outcome:
    """Latencies in seconds, sorted, and when the last call was answered."""

    latencies: tuple[float, ...]
    span_s: float

    @property
    def mean_s(self) -> float:
        return sum(self.latencies) / len(self.latencies)

    @property
    def calls_per_s(self) -> float:
        return len(self.latencies) / self.span_s

    def quantile_s(self, q: float) -> float:
        """The smallest latency that at least the share `q` does not exceed."""
        return self.latencies[max(0, math.ceil(q * len(self.latencies)) - 1)]


@dataclass(eq=False, slots=True)
class _Job:
    arrived: float
    tier: str
    exec_s: float
    is_sleep: bool
    station: str = _FRONT  # where it works, or whose box it has
    is_answered: bool = False


class _Node:
    """Stations that share cores. Time is the caller's; service is counted per active job in `served`."""

    def __init__(self, layout: Layout) -> None:
        self.cores = layout.cores
        self.boxes = sum(layout.slots().values()) - 1
        self.free = layout.slots()
        self.waiting: dict[str, deque[_Job]] = {station: deque() for station in self.free}
        self.active: list[tuple[float, int, _Job]] = []  # (value of `served` at which it is done, tie-break, job)
        self.served = 0.0
        self.at = 0.0
        self.version = 0  # a completion foreseen before the last change is void
        self.load = 0
        self.reported = 0
        self.sent_since = 0

    def free_box(self, tier: str) -> str | None:
        """The tier of a box for a job: its own, or while a core is idle a richer one, as the pool does."""
        if self.free[tier]:
            return tier
        is_idle = self.boxes - sum(self.free[name] for name in _TIERS) < self.cores
        richer = _TIERS[_TIERS.index(tier) + 1 :] if is_idle else ()
        return next((name for name in richer if self.free[name]), None)

    def advance(self, now: float) -> None:
        if self.active:
            self.served += (now - self.at) * min(1.0, self.cores / len(self.active))
        self.at = now

    def next_done(self) -> float:
        slowness = max(1.0, len(self.active) / self.cores)
        return self.at + max(0.0, self.active[0][0] - self.served) * slowness


class Simulation:
    """One run. Events: an arrival, a finished sleep, the next job of a node that is done, a heartbeat."""

    def __init__(self, costs: Costs, layout: Layout, *, heartbeat_s: float = HEARTBEAT_S, seed: int = 1) -> None:
        self._costs = costs
        self._nodes = [_Node(layout) for _ in range(layout.nodes)]
        self._heartbeat_s = heartbeat_s
        self._rng = random.Random(seed)  # noqa: S311 - a model, not a secret
        self._numbers = count()
        self._events: list[tuple[float, int, Callable[[float], None]]] = []
        self._latencies: list[float] = []
        self._last_answer = 0.0

    def run(self, arrivals: Sequence[float], kinds: Sequence[str] = ()) -> Outcome:
        """Serve calls that arrive at these seconds; their kinds are drawn by their shares unless they are given."""
        known = self._costs.kinds
        names = kinds or self._rng.choices(list(known), [kind.share for kind in known.values()], k=len(arrivals))
        for arrived, name in zip(arrivals, names, strict=True):
            kind = known[name]
            job = _Job(arrived, kind.tier, self._rng.choice(kind.exec_ms) / 1000, kind.is_sleep)
            self._at(arrived, lambda now, job=job: self._arrive(now, job))  # type: ignore[misc]
        self._at(min(arrivals), self._beat)
        while len(self._latencies) < len(arrivals):
            now, _, act = heapq.heappop(self._events)
            act(now)
        return Outcome(tuple(sorted(self._latencies)), self._last_answer - min(arrivals))

    def _at(self, time_s: float, act: Callable[[float], None]) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), act))

    def _beat(self, now: float) -> None:
        for node in self._nodes:
            node.reported, node.sent_since = node.load, 0
        self._at(now + self._heartbeat_s, self._beat)

    def _arrive(self, now: float, job: _Job) -> None:
        drawn = self._nodes if len(self._nodes) < 2 else self._rng.sample(self._nodes, 2)
        node = min(drawn, key=lambda node: node.reported + node.sent_since)
        node.sent_since += 1
        node.load += 1
        node.waiting[_FRONT].append(job)
        self._start_front(now, node)

    def _start_front(self, now: float, node: _Node) -> None:
        if node.free[_FRONT] and node.waiting[_FRONT]:
            node.free[_FRONT] -= 1
            self._work(now, node, node.waiting[_FRONT].popleft(), self._costs.front_ms / 1000)

    def _start_boxes(self, now: float, node: _Node) -> None:
        """Hand waiting jobs to free boxes, those of the richest tier first."""
        for tier in reversed(_TIERS):
            while node.waiting[tier] and (box := node.free_box(tier)):
                node.free[box] -= 1
                job = node.waiting[tier].popleft()
                job.station = box
                if job.is_sleep:
                    self._at(now + job.exec_s, lambda later, job=job: self._answer(later, node, job))  # type: ignore[misc]
                else:
                    self._work(now, node, job, job.exec_s)

    def _work(self, now: float, node: _Node, job: _Job, cpu_s: float) -> None:
        node.advance(now)
        heapq.heappush(node.active, (node.served + cpu_s, next(self._numbers), job))
        self._foresee(node)

    def _foresee(self, node: _Node) -> None:
        node.version += 1
        if node.active:
            version = node.version
            self._at(node.next_done(), lambda now: self._done(now, node, version))

    def _done(self, now: float, node: _Node, version: int) -> None:
        if version != node.version:
            return
        node.advance(now)
        _, _, job = heapq.heappop(node.active)
        self._foresee(node)
        is_front = job.station == _FRONT
        if not is_front and not job.is_answered:
            self._answer(now, node, job)
            return
        node.free[job.station] += 1
        if is_front:
            node.waiting[job.tier].append(job)
            self._start_front(now, node)
        self._start_boxes(now, node)

    def _answer(self, now: float, node: _Node, job: _Job) -> None:
        self._latencies.append(now - job.arrived)
        self._last_answer = now
        node.load -= 1
        job.is_answered = True
        self._work(now, node, job, self._costs.after_ms / 1000)


def read_costs(path: Path | None = None) -> Costs:
    """The costs in a benchmark's file, or those committed here."""
    return Costs.of(json.loads((path or MEASURED).read_text()))


def step_arrivals(calls: int, spread_s: float, seed: int) -> list[float]:
    """Arrival times of the calls of one step: all at once, or at random over `spread_s` seconds."""
    rng = random.Random(seed)  # noqa: S311 - a model, not a secret
    return sorted(rng.uniform(0, spread_s) for _ in range(calls)) if spread_s else [0.0] * calls


def poisson_arrivals(calls_per_s: float, seconds: float, seed: int) -> list[float]:
    """Random arrival times at a rate."""
    rng = random.Random(seed)  # noqa: S311 - a model, not a secret
    arrivals, now = [], rng.expovariate(calls_per_s)
    while now < seconds:
        arrivals.append(now)
        now += rng.expovariate(calls_per_s)
    return arrivals


def run_step(costs: Costs, *, cores: int, cores_per_node: int, spread_s: float, calls: int, seed: int = 1) -> Outcome:
    """One step on nodes of `cores_per_node`, the number of cores rounded up to whole nodes."""
    layout = Layout(nodes=max(1, math.ceil(cores / cores_per_node)), cores=min(cores, cores_per_node))
    return Simulation(costs, layout, seed=seed).run(step_arrivals(calls, spread_s, seed))


def fewest_cores(run: Callable[[int], float], *, target: float, start: int, step: int) -> int:
    """About the smallest multiple of `step` cores for which `run` gives at most `target`; it must fall with them."""
    high = max(step, start // step * step)
    while run(high) > target:
        high *= 2
    low = 0  # too few
    while high - low > max(step, PRECISION * high):
        middle = (low + high) // 2 // step * step
        if run(middle) <= target:
            high = middle
        else:
            low = middle
    return high


def report(costs: Costs, *, calls: int, cores_per_node: int, cores: Sequence[int], spreads_s: Sequence[float]) -> str:
    """Two markdown tables: the mean at numbers of cores, and the fewest cores for a mean of 0.3 s."""
    lines = [
        f"Calls of {costs.cpu_ms:.0f} ms of CPU ({costs.front_ms:.1f} front, {costs.after_ms:.0f} after the answer), "
        f"{calls} calls a step, nodes of {cores_per_node} cores. Mean (p99) seconds of a call, from sent to answered:",
        "",
        "| spread over | " + " | ".join(f"{number} cores" for number in cores) + " |",
        "|---" * (len(cores) + 1) + "|",
    ]
    for spread_s in spreads_s:
        cells = []
        for number in cores:
            outcome = run_step(costs, cores=number, cores_per_node=cores_per_node, spread_s=spread_s, calls=calls)
            cells.append(f"{_seconds(outcome.mean_s)} ({_seconds(outcome.quantile_s(0.99))})")
        lines.append(f"| {_spread(spread_s)} | " + " | ".join(cells) + " |")
    lines += ["", "| spread over | calls/s | fewest cores | nodes | mean s | p50 s | p99 s | last answer s |"]
    lines.append("|---" * 8 + "|")
    for spread_s in spreads_s:
        lines.append(_fewest_row(costs, calls=calls, cores_per_node=cores_per_node, spread_s=spread_s))
    return "\n".join(lines)


def _fewest_row(costs: Costs, *, calls: int, cores_per_node: int, spread_s: float) -> str:
    def run(cores: int) -> Outcome:
        return run_step(costs, cores=cores, cores_per_node=cores_per_node, spread_s=spread_s, calls=calls)

    # No fewer than keep up with the arrivals; half of them in TARGET_MEAN_S where all come at once.
    least = int(calls * costs.cpu_ms / 1000 / max(spread_s, 2 * TARGET_MEAN_S))
    cores = fewest_cores(lambda n: run(n).mean_s, target=TARGET_MEAN_S, start=least, step=cores_per_node)
    found = run(cores)
    rate = f"{calls / spread_s:.0f}" if spread_s else "-"
    cells = [rate, str(cores), str(cores // cores_per_node), _seconds(found.mean_s)]
    cells += [_seconds(found.quantile_s(0.5)), _seconds(found.quantile_s(0.99)), _seconds(found.span_s)]
    return f"| {_spread(spread_s)} | " + " | ".join(cells) + " |"


def _spread(spread_s: float) -> str:
    return f"{spread_s:g} s" if spread_s else "nothing: a burst"


def _seconds(value: float) -> str:
    return f"{value:.0f}" if value >= 100 else f"{value:.2g}" if value >= 10 else f"{value:.2f}"


def write_between_marks(path: Path, name: str, text: str) -> None:
    """Put `text` between the comments `name: begin` and `name: end` of a document."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    before, rest = path.read_text().split(begin, 1)
    _, after = rest.split(end, 1)
    path.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}")
