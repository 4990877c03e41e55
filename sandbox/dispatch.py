"""The calls somebody waits for: held until a node has room, sent in batches, sent again until they are over.

Nothing waits for a batch to fill: all that is held at one turn of the loop goes out, as far as nodes have room.
"""

import asyncio
import itertools
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

import httpx

from contracts.execution import Execution, ExecutionBatch, ExecutionCall, ExecutionStatus
from sandbox.balance import FIRST_REST_S, Node, choose_node
from sandbox.errors import SandboxClientError, SandboxRefused, SandboxUnavailable
from sandbox.wire import Wire

log = logging.getLogger("sandbox.client")

MAX_FAILURES = 3  # of one call: it may be the call that breaks boxes, or nodes

Outcome = Execution | SandboxClientError


@dataclass(eq=False, slots=True)
class Waiting:
    """A call on its way. It is over once `deliver` was called, or when nobody waits any more."""

    call: ExecutionCall
    deliver: Callable[["Waiting", Outcome], None]
    position: int
    id: str = ""  # on the wire: ids of callers may repeat (two trajectories, one "call_0")
    held_at: float = field(default_factory=time.monotonic)
    deadline_at: float | None = None
    timer: asyncio.TimerHandle | None = None
    flight: "Flight | None" = None
    failures: int = 0
    tried: tuple[Node, ...] = ()
    goes_alone: bool = False
    is_over: bool = False


@dataclass(eq=False, slots=True)
class Flight:
    """One request under way, with the calls it has not answered."""

    node: Node
    waiting: dict[str, Waiting]
    longest_s: float  # wall limit
    heard_at: float = field(default_factory=time.monotonic)
    task: asyncio.Task[None] | None = None

    def land(self) -> list[Waiting]:
        """Take the unanswered calls off: later answers to them count no more."""
        waiting = list(self.waiting.values())
        self.waiting.clear()
        self.node.land(len(waiting))
        for one in waiting:
            one.flight = None
        return waiting


class Dispatcher:
    """Holds calls, sends them, and delivers one outcome for each."""

    def __init__(self, wire: Wire, run_id: str, batch_calls: int) -> None:
        self.nodes: list[Node] = []
        self.open: set[Waiting] = set()
        self.flights: set[Flight] = set()
        self.answered = 0
        self.trouble = "no node has been reached yet"
        self._wire = wire
        self._run_id = run_id
        self._batch_calls = batch_calls
        self._numbers = itertools.count()
        self._held: deque[Waiting] = deque()
        self._soon: asyncio.Handle | None = None
        self._later: asyncio.TimerHandle | None = None

    def set_nodes(self, urls: Iterable[str]) -> None:
        """Keep what is known of a node that stays."""
        known = {node.url: node for node in self.nodes}
        self.nodes = [known.get(url) or Node(url) for url in urls]
        self.wake()

    async def stop(self) -> None:
        """Every call is over and every request closed."""
        for waiting in list(self.open):
            self.finish(waiting, SandboxUnavailable("the client was closed", [waiting.call.id]))
        tasks = [flight.task for flight in self.flights if flight.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for handle in (self._soon, self._later):
            if handle is not None:
                handle.cancel()
        self._soon = self._later = None

    # One call: held, sent again, over.

    def hold(self, waiting: Waiting, deadline_s: float | None) -> None:
        """Take a call; exactly one outcome is delivered, unless it is forgotten before."""
        waiting.id = str(next(self._numbers))
        if deadline_s is not None:
            waiting.deadline_at = waiting.held_at + deadline_s
            waiting.timer = asyncio.get_running_loop().call_later(deadline_s, self._expire, waiting, deadline_s)
        self.open.add(waiting)
        self._held.append(waiting)
        self.wake()

    def finish(self, waiting: Waiting, outcome: Outcome) -> None:
        """Deliver the outcome, unless there was one."""
        if not waiting.is_over:
            self.forget(waiting)
            waiting.deliver(waiting, outcome)

    def forget(self, waiting: Waiting) -> None:
        """Nobody waits for it any more; a request that nobody waits for is closed, so that the node drops it too."""
        if waiting.is_over:
            return
        waiting.is_over = True
        self.open.discard(waiting)
        if not self.open:
            self._held.clear()
        if waiting.timer is not None:
            waiting.timer.cancel()
        flight, waiting.flight = waiting.flight, None
        if flight is not None:
            del flight.waiting[waiting.id]
            flight.node.land()
            if not flight.waiting and flight.task is not None:
                flight.task.cancel()

    def _expire(self, waiting: Waiting, deadline_s: float) -> None:
        self.finish(waiting, SandboxUnavailable(f"no answer within {deadline_s:g} s", [waiting.call.id]))

    def _hold_again(self, waiting: Waiting) -> None:
        if not waiting.is_over:
            self._held.appendleft(waiting)
            self.wake()

    def _retry(self, waiting: Waiting, node: Node, reason: str, after_s: float = 0.0) -> None:
        """Once more; a call that has failed too often is given up."""
        waiting.failures += 1
        if waiting.failures >= MAX_FAILURES:
            self.finish(waiting, SandboxUnavailable(reason, [waiting.call.id]))
        else:
            self._try_elsewhere(waiting, node, max(after_s, FIRST_REST_S * 2**waiting.failures))

    def _try_elsewhere(self, waiting: Waiting, node: Node, after_s: float) -> None:
        """At once on a node it was not on yet; in a while if there is none."""
        waiting.tried = (*waiting.tried, node)
        if any(other not in waiting.tried and not other.is_lost for other in self.nodes):
            self._hold_again(waiting)
        else:
            waiting.tried = (node,)
            asyncio.get_running_loop().call_later(after_s, self._hold_again, waiting)

    # Requests.

    def wake(self) -> None:
        """Dispatch at the end of this turn of the loop, if there is something to send."""
        if self._soon is None and self._held:
            self._soon = asyncio.get_running_loop().call_soon(self._dispatch)

    def _dispatch(self) -> None:
        self._soon = None
        sharers = sum(1 for node in self.nodes if node.room(len(self._held)))
        share = -(-len(self._held) // max(1, sharers))
        while self._held:
            first = self._held[0]
            if first.is_over:
                self._held.popleft()
                continue
            node = choose_node(self.nodes, len(self._held), first.tried)
            if node is None:
                return self._wake_later()
            self._launch(node, self._take_batch(node, share))

    def _wake_later(self) -> None:
        """When the first node that rests would be asked again. Answers and heartbeats wake us, too."""
        rests = [node.rests_until for node in self.nodes if not node.is_lost]
        rest_s = min(rests, default=0.0) - time.monotonic()
        if self._later is not None:
            self._later.cancel()
        self._later = asyncio.get_running_loop().call_later(rest_s, self.wake) if rest_s > 0 else None

    def _take_batch(self, node: Node, share: int) -> list[Waiting]:
        """A fair share, or what the node's idle boxes can start if that is more; at most its room."""
        most = min(self._batch_calls, node.room(len(self._held)), max(share, node.idle_boxes()))
        batch = [self._held.popleft()]
        while self._held and len(batch) < most and not batch[0].goes_alone:
            waiting = self._held[0]
            if waiting.goes_alone or waiting.tried != batch[0].tried:
                break
            self._held.popleft()
            if not waiting.is_over:
                batch.append(waiting)
        return batch

    def _launch(self, node: Node, batch: list[Waiting]) -> None:
        longest_s = max(waiting.call.limits.wall_s for waiting in batch)
        flight = Flight(node, {waiting.id: waiting for waiting in batch}, longest_s)
        for waiting in batch:
            waiting.flight = flight
        node.send(len(batch))
        self.flights.add(flight)
        flight.task = asyncio.create_task(self._fly(flight, self._body(batch)))
        flight.task.add_done_callback(lambda _: self.flights.discard(flight))  # also when cancelled before it began

    def _body(self, batch: list[Waiting]) -> ExecutionBatch:
        calls = [waiting.call.model_copy(update={"id": waiting.id}) for waiting in batch]
        deadlines = [waiting.deadline_at for waiting in batch if waiting.deadline_at is not None]
        deadline_s = None  # of the batch: a call without one must not be turned away for its neighbours'
        if len(deadlines) == len(batch):
            deadline_s = max(min(deadlines) - time.monotonic(), 0.001)
        return ExecutionBatch(calls=calls, run_id=self._run_id, deadline_s=deadline_s)

    async def _fly(self, flight: Flight, batch: ExecutionBatch) -> None:
        """Send one request and read its answers; whatever ends it, no call of it is left behind."""
        node = flight.node
        reason = f"{node.url} closed the connection"
        try:
            async for execution in self._wire.post(node.url, batch):
                self._take(flight, execution)
        except (httpx.ConnectError, httpx.ConnectTimeout) as error:
            # Nothing was sent: this does not count against the calls. The heartbeat says when the node is back.
            self._mark_lost(node, f"{node.url}: {type(error).__name__}: {error}")
            self._held.extendleft(reversed(flight.land()))
        except httpx.HTTPError as error:
            self.trouble = reason = f"{node.url}: {type(error).__name__}: {error}"
            node.stumble()
        except SandboxRefused as error:
            self._refuse(flight.land(), error)
        finally:
            for waiting in flight.land():
                self._retry(waiting, node, reason)
            self.wake()

    def _take(self, flight: Flight, execution: Execution) -> None:
        waiting = flight.waiting.pop(execution.id, None)
        if waiting is None:
            return  # answered before, or nobody waits for it any more
        node = flight.node
        waiting.flight, flight.heard_at = None, time.monotonic()
        node.land()
        node.hear()
        reason = f"{execution.node}: {execution.status.value}: {execution.reason}"
        if execution.status is ExecutionStatus.REJECTED:
            self._turn_away(waiting, node, reason, execution.retry_after_s or FIRST_REST_S)
        elif execution.status.is_ours:
            node.stumble()
            self._retry(waiting, node, reason, execution.retry_after_s or 0.0)
        else:
            self.answered += 1
            node.failures = 0
            self.finish(waiting, execution.model_copy(update={"id": waiting.call.id}))
        self.wake()

    def _turn_away(self, waiting: Waiting, node: Node, reason: str, after_s: float) -> None:
        """Nothing was run. Without a deadline the node is full for all; with one it may be full for this call only."""
        self.trouble = reason
        if waiting.deadline_at is None:
            node.rest(after_s)
            self._hold_again(waiting)
        else:
            self._try_elsewhere(waiting, node, after_s)

    def _refuse(self, refused: list[Waiting], error: SandboxRefused) -> None:
        """One call can make a node refuse its whole batch: each gets a request of its own before it is refused."""
        for waiting in refused:
            if len(refused) == 1:
                self.finish(waiting, SandboxRefused(str(error)))
            else:
                waiting.goes_alone = True
                self._hold_again(waiting)

    def lose(self, node: Node, reason: str) -> None:
        """A node is gone: what it has not answered goes elsewhere, and what it answers later is not heard."""
        self._mark_lost(node, reason)
        for flight in [flight for flight in self.flights if flight.node is node]:
            self._abandon(flight, reason)

    def abandon_silent(self, after_s: float) -> None:
        """Requests that say nothing for longer than their calls may take and wait, whatever swallowed the answers."""
        now = time.monotonic()
        for flight in list(self.flights):
            wait_s = flight.node.report.wait_s if flight.node.report else 0.0
            if now - flight.heard_at > flight.longest_s + wait_s + after_s:
                flight.node.stumble()
                self._abandon(flight, f"{flight.node.url}: no answer for {now - flight.heard_at:.0f} s")

    def _abandon(self, flight: Flight, reason: str) -> None:
        for waiting in flight.land():
            self._retry(waiting, flight.node, reason)
        if flight.task is not None:
            flight.task.cancel()

    def _mark_lost(self, node: Node, reason: str) -> None:
        if not node.is_lost:
            log.warning("sandbox node lost: %s", reason)
        self.trouble = reason
        node.lose()
