"""Which turn goes to which engine, and when: events in, decisions out. No I/O, no clock, no torch.

The paper admits what fits the free KV cache and lets the next one in the moment room frees (rStar2-Agent 3.2). Here
a turn waits in one central queue until an engine has room for its ids and a quantile of what a turn adds; the real
rollout (`engine_pool`) and the simulator (`simulate`) drive the same class. `docs/decisions/scheduler.md` says why
each number is what it is.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import count
from math import inf

from trainer.rollout.engine import EngineError, EngineLoad
from trainer.rollout.waiting import Key, Lengths, Tokens, Turn, WaitingTurns


class NeverFits(EngineError):
    """No engine could ever hold the turn; the message names the numbers."""


@dataclass(frozen=True, slots=True)
class Settings:
    """Shares are of an engine's KV capacity."""

    quantile: float = 0.5  # of a turn's new tokens, reserved beside its ids
    pressed: float = 0.8  # below that everywhere, turns go to the engine with the fewest requests
    grow_below: float = 0.9
    cut_above: float = 0.97
    grow: float = 0.02
    cut: float = 0.9
    least_limit: float = 0.5
    most_limit: float = 1.1
    settle: int = 4  # reports after a cut before the next change: its effect must show first
    most_idle: float = 0.1  # kept free at most for the prefixes of trajectories whose tool runs
    quantum: int = 3000  # tokens that a trajectory may add before it goes to the end of the queue
    max_waiting: int = 2  # in an engine's own queue: more says that the reservations are wrong
    move_ratio: float = 2.0  # a trajectory leaves its engine for one with so many times fewer requests
    move_slack: int = 4


@dataclass(frozen=True, slots=True)
class Admission:
    trajectory: Key
    engine: int


@dataclass(slots=True)
class Counts:
    """admitted = ended + requeued + dropped + running, always."""

    admitted: int = 0
    ended: int = 0
    requeued: int = 0
    dropped: int = 0
    moved: int = 0  # admitted to another engine than the one with the prefix
    refused: int = 0


@dataclass(frozen=True, slots=True)
class _Place:
    """In the queue: a number that grows, and the tokens that the trajectory had when it got it."""

    number: int
    tokens: int


@dataclass(slots=True)
class _EngineState:
    capacity: int
    max_running: int
    version: int
    alive: bool = True
    limit: float = 1.0  # share of the capacity that may be reserved
    reserved: Tokens = field(default_factory=Tokens)
    in_tool: Tokens = field(default_factory=Tokens)  # prefixes of trajectories whose tool runs
    held: Tokens = field(default_factory=Tokens)  # prefixes of those that wait, here or for another engine
    overrun: int = 0  # used beyond the reservations, by the newest report
    waiting: int = 0
    preemptions: int = 0
    settling: int = 0
    returning: WaitingTurns = field(default_factory=WaitingTurns)  # wait for room here: their prefix is here

    @property
    def taken(self) -> int:
        """Tokens of what runs: reserved, or outgrown by the newest report."""
        return self.reserved.sum + self.overrun

    @property
    def kept(self) -> int:
        """And of the cached prefixes whose trajectories will come back."""
        return self.taken + self.in_tool.sum + self.held.sum

    def idle(self, most: float) -> float:
        """Tokens of the prefixes whose tool runs, up to a share of the capacity."""
        return min(self.in_tool.sum, most * self.capacity)


class Scheduler:
    """Engines are numbered in the order they are added; a trajectory has at most one turn at a time."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or Settings()
        self.counts = Counts()
        self.version = 0
        self.generated: list[int] = []  # tokens of ended turns by engine, over all lives of it
        self._engines: list[_EngineState] = []
        self._turns = Lengths(self.settings.quantile)
        self._lost = WaitingTurns()  # of dead engines
        self._new = WaitingTurns()
        self._queue_of: dict[Key, WaitingTurns] = {}
        self._places: dict[Key, _Place] = {}
        self._place_numbers = count()
        self._running: dict[Key, tuple[int, Turn]] = {}
        self._homes: dict[Key, int] = {}  # where a trajectory's turn runs, or its prefix is
        self._widest: dict[bool, float] = {}  # room of the engine that has most, for new turns and for those that move

    # Engines

    def add_engine(self, load: EngineLoad | None, version: int = 0) -> int:
        """None: it is not up yet; `engine_ready` says when it is."""
        self.generated.append(0)
        if load is None:
            self._engines.append(_EngineState(0, 0, version, alive=False))
            return len(self._engines) - 1
        self._engines.append(_EngineState(load.kv_capacity, load.max_running, version))
        return len(self._engines) - 1

    def set_version(self, version: int) -> None:
        """New weights: an engine gets no turn until `engine_ready` says that it has them."""
        self.version = version

    def engine_ready(self, engine: int, version: int, load: EngineLoad) -> None:
        """The engine has weights of `version`; one that was dead begins empty."""
        state = self._engines[engine]
        if not state.alive:
            self._engines[engine] = _EngineState(load.kv_capacity, load.max_running, version)
        else:
            state.version = version

    def engine_died(self, engine: int) -> list[Key]:
        """Its turns go to the front of the queue, to begin again from their last completed turn; their keys."""
        state = self._engines[engine]
        lost = {key: self._release(key)[1] for key in list(state.reserved.of)}
        self.counts.requeued += len(lost)
        for turn in [*lost.values(), *state.returning.turns()]:
            self._enqueue(turn, self._lost)
        for key in [key for key, home in self._homes.items() if home == engine]:
            del self._homes[key]
        self._engines[engine] = _EngineState(state.capacity, state.max_running, state.version, alive=False)
        return list(lost)

    def report(self, engine: int, load: EngineLoad) -> None:
        """What an engine says of itself now and then: the guard on use and preemptions (AIMD)."""
        s, state = self.settings, self._engines[engine]
        if not state.alive:
            return
        state.overrun = max(0, load.kv_used - state.reserved.sum)
        state.waiting = load.waiting
        preempted = load.preemptions > state.preemptions
        state.preemptions = load.preemptions
        use = load.kv_used / state.capacity
        if state.settling:
            state.settling -= 1
        elif preempted or use > s.cut_above:
            state.limit = max(s.least_limit, state.limit * s.cut)
            state.settling = s.settle
        elif use + state.idle(s.most_idle) / state.capacity < s.grow_below:
            state.limit = min(s.most_limit, state.limit + s.grow)

    # Turns

    def submit(self, turn: Turn) -> None:
        """Into the queue. Raises NeverFits for a turn whose worst case exceeds every engine."""
        if turn.trajectory in self._running or turn.trajectory in self._queue_of:
            raise ValueError(f"trajectory {turn.trajectory} has a turn already")
        largest = max((state.capacity for state in self._engines), default=0)
        if turn.tokens + turn.max_new > largest:
            self.counts.refused += 1
            raise NeverFits(
                f"a turn of {turn.tokens} tokens and up to {turn.max_new} new ones needs {turn.tokens + turn.max_new} "
                f"tokens of KV cache; the largest of {len(self._engines)} engines has {largest}"
            )
        place = self._places.get(turn.trajectory)
        if place is None or turn.tokens - place.tokens >= self.settings.quantum:
            self._places[turn.trajectory] = _Place(next(self._place_numbers), turn.tokens)
        home = self._homes.get(turn.trajectory)
        if home is None:
            self._enqueue(turn, self._new)
            return
        state = self._engines[home]
        state.held.add(turn.trajectory, state.in_tool.remove(turn.trajectory))
        self._enqueue(turn, state.returning)

    def admit(self) -> list[Admission]:
        """Every turn that has an engine now: those of dead engines first, then by their places.

        Each queue is strictly in order: a turn that has to wait is never passed by smaller ones.
        """
        self._widest.clear()
        admitted = self._admit_from(self._lost)
        queues = [queue for queue in (self._new, *(state.returning for state in self._engines)) if queue]
        for queue in sorted(queues, key=lambda queue: queue.first()[0]):
            admitted += self._admit_from(queue)
        return admitted

    def _admit_from(self, queue: WaitingTurns) -> list[Admission]:
        admitted = []
        while queue:
            turn = queue.first()[1]
            engine = self._choose(turn)
            if engine is None:
                break
            self._dequeue(turn.trajectory)
            self._start(turn, engine)
            self._widest.clear()
            admitted.append(Admission(turn.trajectory, engine))
        return admitted

    def turn_ended(self, trajectory: Key, new_tokens: int) -> None:
        """The reservation is released; the prefix keeps some room for the trajectory's next turn."""
        engine, turn = self._release(trajectory)
        self.counts.ended += 1
        self.generated[engine] += new_tokens
        self._turns.add(new_tokens)
        self._homes[trajectory] = engine
        self._engines[engine].in_tool.add(trajectory, turn.tokens + new_tokens)

    def forget(self, trajectory: Key) -> None:
        """The trajectory is over, however it ended; nothing of it is left. Harmless when it is unknown."""
        if trajectory in self._running:
            self._release(trajectory)
            self.counts.dropped += 1
        self._dequeue(trajectory)
        self._leave_home(trajectory)
        self._places.pop(trajectory, None)

    # What is asked of it

    def queued(self) -> int:
        return len(self._queue_of)

    def engine_of(self, trajectory: Key) -> int | None:
        """Where its turn runs now."""
        found = self._running.get(trajectory)
        return None if found is None else found[0]

    def running(self, engine: int) -> int:
        return len(self._engines[engine].reserved)

    def reserved(self, engine: int) -> int:
        """Tokens reserved for the turns that run on it."""
        return self._engines[engine].reserved.sum

    def held(self, engine: int) -> int:
        """Tokens of cached prefixes whose trajectories are to come back."""
        return self._engines[engine].in_tool.sum + self._engines[engine].held.sum

    def limit(self, engine: int) -> float:
        return self._engines[engine].limit

    def is_open(self, engine: int) -> bool:
        """Alive and with the newest weights."""
        state = self._engines[engine]
        return state.alive and state.version == self.version

    # Inside

    def _enqueue(self, turn: Turn, queue: WaitingTurns) -> None:
        queue.add(self._places[turn.trajectory].number, turn)
        self._queue_of[turn.trajectory] = queue

    def _dequeue(self, key: Key) -> None:
        queue = self._queue_of.pop(key, None)
        if queue is not None:
            queue.remove(self._places[key].number)

    def _need(self, turn: Turn) -> int:
        return turn.tokens + min(turn.max_new, self._turns.value)

    def _choose(self, turn: Turn) -> int | None:
        """The engine for a turn; None: wait. Its own, with its prefix, if that has room and is not far busier."""
        home = self._homes.get(turn.trajectory)
        own = home if home is not None and self._fits(home, turn, moves=False) else None
        if own is not None and not self._is_far_busier(own):
            return own
        moves = home is not None
        if moves not in self._widest:
            self._widest[moves] = self._measure_widest(moves=moves)
        if self._need(turn) > self._widest[moves]:
            return own
        fitting = [e for e in range(len(self._engines)) if self._fits(e, turn, moves=moves and e != home)]
        return min(fitting, key=self._busyness(), default=None)

    def _is_far_busier(self, engine: int) -> bool:
        least = min(len(state.reserved) for e, state in enumerate(self._engines) if self.is_open(e))
        return self.running(engine) > self.settings.move_ratio * least + self.settings.move_slack

    def _busyness(self) -> Callable[[int], tuple[float, float]]:
        """What is least where a turn should go: requests, or where the KV cache is what is short, its use."""
        s = self.settings
        shares = [state.kept / max(1, state.capacity) for state in self._engines]  # 0: not up yet
        counts = [len(state.reserved) for state in self._engines]
        is_pressed = any(share > s.pressed for share, x in zip(shares, self._engines, strict=True) if x.alive)
        return lambda e: (shares[e], counts[e]) if is_pressed else (counts[e], shares[e])

    def _fits(self, engine: int, turn: Turn, *, moves: bool) -> bool:
        """Room for the ids and the expected turn."""
        state = self._engines[engine]
        if not self.is_open(engine) or turn.tokens + turn.max_new > state.capacity:
            return False
        return self._need(turn) <= self._room(engine, moves=moves)

    def _room(self, engine: int, *, moves: bool) -> float:
        """For the turn that is next: the prefixes of those behind it give way, unless it leaves its own one for it."""
        s, state = self.settings, self._engines[engine]
        if not state.reserved:
            return inf  # an idle engine takes any turn it can hold, or a turn could wait for ever
        if state.waiting > s.max_waiting or len(state.reserved) >= state.max_running:
            return 0.0
        return state.limit * state.capacity - (state.kept if moves else state.taken + state.idle(s.most_idle))

    def _measure_widest(self, *, moves: bool) -> float:
        open_ = filter(self.is_open, range(len(self._engines)))
        return max((self._room(e, moves=moves) for e in open_), default=0.0)

    def _start(self, turn: Turn, engine: int) -> None:
        key = turn.trajectory
        home = self._homes.get(key)
        self.counts.moved += home is not None and home != engine
        self._leave_home(key)
        self._homes[key] = engine
        state, need = self._engines[engine], self._need(turn)
        state.reserved.add(key, need)
        self._running[key] = (engine, turn)
        self.counts.admitted += 1

    def _release(self, key: Key) -> tuple[int, Turn]:
        engine, turn = self._running.pop(key)
        self._engines[engine].reserved.remove(key)
        return engine, turn

    def _leave_home(self, key: Key) -> None:
        home = self._homes.pop(key, None)
        if home is not None:
            self._engines[home].in_tool.remove(key)
            self._engines[home].held.remove(key)
