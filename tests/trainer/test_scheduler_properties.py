"""Whatever fails, and whenever: nothing stays reserved, and every trajectory ends exactly once."""

import random
from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from trainer.rollout.engine import EngineLoad
from trainer.rollout.scheduler import NeverFits, Scheduler, Settings, Turn

CAPACITY, RESPONSE = 400, 200


class World:
    """Trajectories of 1 to 4 turns over engines that die, are rebuilt late, and get new weights."""

    def __init__(self, engines: int, trajectories: int, rng: random.Random) -> None:
        self.rng = rng
        self.scheduler = Scheduler(Settings(settle=1))
        for _ in range(engines):
            self.scheduler.add_engine(EngineLoad(CAPACITY, 0, 0, 0, max_running=5))
        self.turns_left = {i: rng.randint(1, 4) for i in range(trajectories)}
        self.tokens = {i: rng.randint(1, 150) for i in range(trajectories)}
        self.on_engine: dict[int, int] = {}
        self.in_tool: set[int] = set()
        self.ended: Counter[int] = Counter()
        self.stale: set[int] = set()
        self.submitted = 0
        for trajectory in self.turns_left:
            self.submit(trajectory)

    def submit(self, trajectory: int) -> None:
        try:
            self.scheduler.submit(Turn(trajectory, self.tokens[trajectory], RESPONSE))
            self.submitted += 1
        except NeverFits:
            self.end(trajectory)

    def end(self, trajectory: int) -> None:
        self.ended[trajectory] += 1
        self.scheduler.forget(trajectory)

    def admit(self) -> None:
        for admission in self.scheduler.admit():
            assert admission.trajectory not in self.on_engine
            assert self.scheduler.is_open(admission.engine)
            self.on_engine[admission.trajectory] = admission.engine
        self.check_nobody_waits_beside_an_idle_engine()

    def check_nobody_waits_beside_an_idle_engine(self) -> None:
        s = self.scheduler
        if any(s.is_open(e) and not s.running(e) for e in range(len(s._engines))):
            assert s.queued() == 0  # all engines are of one size: what was not refused fits an empty one

    def act(self, action: str) -> None:
        running = sorted(self.on_engine)
        match action:
            case "turn ends" if running:
                self.end_turn(self.rng.choice(running))
            case "turn fails" | "cancelled while running" if running:
                trajectory = self.rng.choice(running)
                del self.on_engine[trajectory]
                self.end(trajectory)
            case "cancelled anywhere":
                trajectory = self.rng.choice(sorted(self.turns_left))
                if not self.ended[trajectory]:
                    self.on_engine.pop(trajectory, None)
                    self.in_tool.discard(trajectory)
                    self.end(trajectory)
            case "tool answers" if self.in_tool:
                trajectory = self.rng.choice(sorted(self.in_tool))
                self.in_tool.remove(trajectory)
                self.submit(trajectory)
            case _:
                self.act_on_engine(action, self.rng.randrange(len(self.scheduler._engines)))

    def act_on_engine(self, action: str, engine: int) -> None:
        match action:
            case "engine dies":
                lost = self.scheduler.engine_died(engine)
                assert set(lost) == {t for t, e in self.on_engine.items() if e == engine}
                for trajectory in lost:
                    del self.on_engine[trajectory]
                self.stale.add(engine)
            case "weights":
                self.scheduler.set_version(self.scheduler.version + 1)
                self.stale = set(range(len(self.scheduler._engines)))
            case "engine ready":
                self.ready(engine)
            case "report":
                used = self.rng.randint(0, CAPACITY)
                counts = EngineLoad(CAPACITY, used, 0, self.rng.randint(0, 4), self.rng.randint(0, 9))
                self.scheduler.report(engine, counts)

    def ready(self, engine: int) -> None:
        self.scheduler.engine_ready(engine, self.scheduler.version, EngineLoad(CAPACITY, 0, 0, 0, max_running=5))
        self.stale.discard(engine)

    def end_turn(self, trajectory: int) -> None:
        del self.on_engine[trajectory]
        new_tokens = self.rng.randint(1, RESPONSE)
        self.scheduler.turn_ended(trajectory, new_tokens)
        self.tokens[trajectory] += new_tokens
        self.turns_left[trajectory] -= 1
        if self.turns_left[trajectory]:
            self.in_tool.add(trajectory)
        else:
            self.end(trajectory)

    def check(self) -> None:
        s = self.scheduler
        counts = s.counts
        assert counts.admitted == counts.ended + counts.requeued + counts.dropped + len(self.on_engine)
        assert max(self.ended.values(), default=0) <= 1
        alive = sum(not self.ended[t] for t in self.turns_left)
        assert alive == len(self.on_engine) + len(self.in_tool) + s.queued()
        for number, state in enumerate(s._engines):
            assert s.running(number) == sum(e == number for e in self.on_engine.values()) <= 5
            assert state.reserved.of.keys() == {t for t, e in self.on_engine.items() if e == number}
            assert state.in_tool.of.keys() == {t for t in self.in_tool if s._homes.get(t) == number}
            assert state.held.of.keys() == set(s._queue_of) & {t for t, home in s._homes.items() if home == number}
            for tokens in (state.reserved, state.in_tool, state.held):
                assert tokens.sum == sum(tokens.of.values())
            assert s.held(number) == state.in_tool.sum + state.held.sum

    def drain(self) -> None:
        """No more failures: everything must come to its end, or something was lost."""
        for engine in sorted(self.stale):
            self.ready(engine)
        for _ in range(10 * len(self.turns_left)):
            for engine in range(len(self.scheduler._engines)):
                self.scheduler.report(engine, EngineLoad(CAPACITY, 0, 0, 0))
            self.admit()
            for trajectory in sorted(self.in_tool):
                self.in_tool.remove(trajectory)
                self.submit(trajectory)
            for trajectory in sorted(self.on_engine):
                self.end_turn(trajectory)


ACTIONS = (
    *("turn ends", "turn ends", "tool answers", "tool answers", "report", "turn fails", "cancelled while running"),
    *("cancelled anywhere", "engine dies", "weights", "engine ready", "engine ready"),
)


@settings(max_examples=150, deadline=None)
@given(
    engines=st.integers(1, 4),
    trajectories=st.integers(1, 25),
    actions=st.lists(st.sampled_from(ACTIONS), max_size=80),
    seed=st.integers(0, 2**32 - 1),
)
def test_no_failure_leaks_a_reservation_or_loses_or_doubles_a_trajectory(engines, trajectories, actions, seed):
    world = World(engines, trajectories, random.Random(seed))
    for action in actions:
        world.admit()
        world.check()
        world.act(action)
        world.check()
    world.drain()
    world.check()
    assert all(world.ended[t] == 1 for t in world.turns_left)
    s = world.scheduler
    assert s.queued() == 0
    assert all(s.reserved(e) == s.held(e) == s.running(e) == 0 for e in range(engines))
    assert not s._homes
    assert not s._running
