"""Rollout scheduling in virtual time: a static split, least requests and ours over simulated engines.

`python -m trainer simulate-scheduler` prints the grid; `benchmarks/scheduler.py` draws it and holds the bars.
"""

import heapq
import math
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol, cast

import numpy as np

from trainer.rollout.engine import EngineLoad
from trainer.rollout.scheduler import Admission, Scheduler, Settings, Turn
from trainer.rollout.simulated_engine import EngineModel, SimulatedEngine
from trainer.rollout.waiting import Key

REPORT_S = 0.5  # how often engines say what they carry, as in `engine_pool`
PROMPT_TOKENS = 300


@dataclass(frozen=True, slots=True)
class Workload:
    """Rollouts of one step. A prompt's difficulty, log-normal, scales turns and their lengths of its whole group."""

    groups: int
    group_size: int = 32
    difficulty_sigma: float = 0.6
    mean_turns: float = 2.5
    max_turns: int = 10
    turn_median: int = 400
    turn_sigma: float = 0.8
    max_turn_tokens: int = 4000
    max_response_tokens: int = 12_000
    tool_tokens: int = 80

    def draw(self, seed: int) -> list[list[int]]:
        """New tokens of each turn of each trajectory, group after group."""
        rng = np.random.default_rng(seed)
        found = []
        for difficulty in rng.lognormal(0.0, self.difficulty_sigma, self.groups):
            for _ in range(self.group_size):
                turns = min(self.max_turns, 1 + int(rng.exponential(self.mean_turns * difficulty)))
                lengths = rng.lognormal(math.log(self.turn_median), self.turn_sigma, turns) * difficulty
                found.append(self._cut([int(min(max(20, n), self.max_turn_tokens)) for n in lengths]))
        return found

    def _cut(self, lengths: list[int]) -> list[int]:
        """What of the turns fits the response limit; the last one ends where the limit is reached."""
        kept: list[int] = []
        used = 0
        for length in lengths:
            room = self.max_response_tokens - used
            if room <= self.tool_tokens:
                break
            kept.append(min(length, room))
            used += kept[-1] + self.tool_tokens
        return kept


class Policy(StrEnum):
    """How turns come to engines."""

    BARRIER = "static, barriers"  # the paper's baseline: groups dealt out once, each turn waits for the longest
    STATIC = "static split"  # groups dealt out once, turns go on at once
    LEAST = "least requests"  # the engine with the fewest requests, a trajectory stays where it is (verl)
    OURS = "ours"


class Router(Protocol):
    """Where the simulator asks; `Scheduler` is one."""

    def submit(self, turn: Turn) -> None: ...

    def admit(self) -> list[Admission]: ...

    def turn_ended(self, trajectory: int, new_tokens: int) -> None: ...

    def forget(self, trajectory: int) -> None: ...

    def report(self, engine: int, load: EngineLoad) -> None: ...


class StaticSplit:
    """Trajectory i of n belongs to engine i * engines // n for good."""

    def __init__(self, engines: int, trajectories: int, *, barrier: bool) -> None:
        self._engine = [i * engines // trajectories for i in range(trajectories)]
        self._barrier = barrier
        self._alive = [self._engine.count(e) for e in range(engines)]
        self._waiting: list[list[int]] = [[] for _ in range(engines)]

    def submit(self, turn: Turn) -> None:
        self._waiting[self._engine[_number(turn.trajectory)]].append(_number(turn.trajectory))

    def admit(self) -> list[Admission]:
        found = []
        for engine, waiting in enumerate(self._waiting):
            if waiting and (not self._barrier or len(waiting) == self._alive[engine]):
                found += [Admission(i, engine) for i in waiting]
                waiting.clear()
        return found

    def turn_ended(self, trajectory: int, new_tokens: int) -> None: ...

    def forget(self, trajectory: int) -> None:
        self._alive[self._engine[trajectory]] -= 1

    def report(self, engine: int, load: EngineLoad) -> None: ...


class LeastRequests:
    """A new trajectory goes to the engine with the fewest requests in flight and stays there."""

    def __init__(self, engines: int) -> None:
        self._in_flight = [0] * engines
        self._home: dict[int, int] = {}
        self._submitted: list[int] = []

    def submit(self, turn: Turn) -> None:
        self._submitted.append(_number(turn.trajectory))

    def admit(self) -> list[Admission]:
        found = []
        for trajectory in self._submitted:
            engine = self._home.setdefault(trajectory, self._in_flight.index(min(self._in_flight)))
            self._in_flight[engine] += 1
            found.append(Admission(trajectory, engine))
        self._submitted.clear()
        return found

    def turn_ended(self, trajectory: int, new_tokens: int) -> None:
        self._in_flight[self._home[trajectory]] -= 1

    def forget(self, trajectory: int) -> None: ...

    def report(self, engine: int, load: EngineLoad) -> None: ...


@dataclass(frozen=True, slots=True)
class Cluster:
    engines: int
    kv_tokens: int  # of each
    tool_s: float  # mean latency of a tool call; log-normal
    model: EngineModel = field(default_factory=EngineModel)


@dataclass(frozen=True, slots=True)
class Sample:
    """An engine at one moment."""

    time_s: float
    engine: int
    kv_use: float
    running: int
    waiting: int
    queued: int  # in the central queue, the same for all engines


@dataclass(slots=True)
class Result:
    makespan_s: float = 0.0
    generated: float = 0.0
    preemptions: int = 0
    recomputed: float = 0.0
    prefilled: float = 0.0
    busy: float = 0.0  # share of the makespan in which an engine works, mean over engines
    samples: list[Sample] = field(default_factory=list)

    def tokens_per_s(self, engines: int) -> float:
        """Policy tokens a second and engine."""
        return self.generated / self.makespan_s / engines


def make_router(policy: Policy, cluster: Cluster, trajectories: int, settings: Settings | None = None) -> Router:
    match policy:
        case Policy.BARRIER | Policy.STATIC:
            return StaticSplit(cluster.engines, trajectories, barrier=policy is Policy.BARRIER)
        case Policy.LEAST:
            return LeastRequests(cluster.engines)
        case Policy.OURS:
            scheduler = Scheduler(settings)
            for _ in range(cluster.engines):
                scheduler.add_engine(SimulatedEngine(cluster.kv_tokens, cluster.model).load())
            return scheduler


def simulate(
    router: Router, cluster: Cluster, workload: Workload, seed: int, *, sample_every_s: float | None = None
) -> Result:
    """One step's rollouts from the first prompt to the last answer."""
    return _Simulation(router, cluster, workload, seed, sample_every_s).run()


class _Simulation:
    """Events of all engines, tools and reports in one heap."""

    def __init__(
        self, router: Router, cluster: Cluster, workload: Workload, seed: int, sample_every_s: float | None
    ) -> None:
        self.router = router
        self.workload = workload
        self.trajectories = workload.draw(seed)
        self.engines = [SimulatedEngine(cluster.kv_tokens, cluster.model) for _ in range(cluster.engines)]
        rng = np.random.default_rng([seed, 1])
        calls = sum(len(turns) for turns in self.trajectories)
        self.latencies = iter((rng.lognormal(-0.125, 0.5, calls) * cluster.tool_s).tolist())
        self.turn = [0] * len(self.trajectories)
        self.length = [PROMPT_TOKENS] * len(self.trajectories)
        self.left = len(self.trajectories)
        self.now_s = 0.0
        self.heap: list[tuple[float, int, str, int]] = []
        self.number = 0
        self.due = [math.inf] * cluster.engines  # when each engine's next event is; older entries are stale
        self.sample_every_s = sample_every_s
        self.has_changed = True  # since the router was last asked
        self.result = Result()

    def run(self) -> Result:
        for trajectory in range(len(self.trajectories)):
            self._submit(trajectory)
        self._push(0.0, "report", 0)
        self._admit()
        while self.left:
            self.now_s, _, kind, number = heapq.heappop(self.heap)
            if kind == "engine" and self.due[number] == self.now_s:
                self._touch(number)
            elif kind == "tool":
                self._submit(number)
            elif kind == "report":
                self._report()
            if self.has_changed:
                self._admit()
        return self._sum_up()

    def _push(self, time_s: float, kind: str, number: int) -> None:
        self.number += 1
        heapq.heappush(self.heap, (time_s, self.number, kind, number))

    def _submit(self, trajectory: int) -> None:
        room = self.workload.max_response_tokens - (self.length[trajectory] - PROMPT_TOKENS)
        self.router.submit(Turn(trajectory, self.length[trajectory], room))
        self.has_changed = True

    def _admit(self) -> None:
        self.has_changed = False
        for admission in self.router.admit():
            trajectory = _number(admission.trajectory)
            self._advance(admission.engine)
            new_tokens = self.trajectories[trajectory][self.turn[trajectory]]
            self.engines[admission.engine].add(trajectory, self.length[trajectory], new_tokens)
            self._plan(admission.engine)

    def _touch(self, engine: int) -> None:
        self._advance(engine)
        self._plan(engine)

    def _plan(self, engine: int) -> None:
        self.due[engine] = self.engines[engine].next_event_s()
        if self.due[engine] < math.inf:
            self._push(self.due[engine], "engine", engine)

    def _advance(self, engine: int) -> None:
        self.engines[engine].advance(self.now_s)
        ended, self.engines[engine].ended = self.engines[engine].ended, []
        for key in ended:
            self._end_turn(_number(key))

    def _end_turn(self, trajectory: int) -> None:
        new_tokens = self.trajectories[trajectory][self.turn[trajectory]]
        self.router.turn_ended(trajectory, new_tokens)
        self.has_changed = True
        self.turn[trajectory] += 1
        self.length[trajectory] += new_tokens
        if self.turn[trajectory] < len(self.trajectories[trajectory]):
            self.length[trajectory] += self.workload.tool_tokens
            self._push(self.now_s + next(self.latencies), "tool", trajectory)
        else:
            self.router.forget(trajectory)
            self.left -= 1

    def _report(self) -> None:
        queued = self.router.queued() if isinstance(self.router, Scheduler) else 0
        is_due = self.sample_every_s is not None and self.now_s % self.sample_every_s < REPORT_S
        for number, engine in enumerate(self.engines):
            self._touch(number)
            load = engine.load()
            self.router.report(number, load)
            if is_due:
                use = load.kv_used / load.kv_capacity
                self.result.samples.append(Sample(self.now_s, number, use, load.running, load.waiting, queued))
        self.has_changed = True
        self._push(self.now_s + REPORT_S, "report", 0)

    def _sum_up(self) -> Result:
        result, engines = self.result, self.engines
        result.makespan_s = self.now_s
        result.generated = sum(engine.generated for engine in engines)
        result.preemptions = sum(engine.preemptions for engine in engines)
        result.recomputed = sum(engine.recomputed for engine in engines)
        result.prefilled = sum(engine.prefilled for engine in engines)
        result.busy = sum(engine.busy_s for engine in engines) / (len(engines) * self.now_s)
        return result


def _number(key: Key) -> int:
    """Of a trajectory: the simulator's keys are numbers."""
    return cast(int, key)
