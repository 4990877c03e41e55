"""The one door to the sandbox: sends calls to nodes and hands back what the programs did.

Every call is held here until its answer is: a node that is lost loses nothing. Calls go out in batches (`dispatch`,
`wire`) to the node that would answer first (`balance`), which is watched while it works (`heartbeat`). What a node did
not answer is sent again, by id, to another one; that is harmless because a call is stateless and has no network, and
of two answers the first counts.

A program that fails is an `Execution`, and no other try is made. A status that is the service's own never leaves this
room: it is retried, and in the end becomes SandboxUnavailable (`errors`).
"""

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from types import TracebackType

import httpx
from pydantic import ValidationError

from contracts.execution import MAX_BATCH_CALLS, Execution, ExecutionCall, NodeHealth
from sandbox.balance import Node
from sandbox.dispatch import Dispatcher, Outcome, Waiting
from sandbox.errors import SandboxClientError, SandboxRefused, SandboxUnavailable
from sandbox.heartbeat import Heartbeat
from sandbox.wire import Wire

__all__ = ["SandboxClient", "SandboxClientError", "SandboxRefused", "SandboxUnavailable"]

HEALTH_S = 5.0


class SandboxClient:
    """Spreads calls over nodes. Use as an async context manager, or call `run_blocking` from synchronous code.

    `give_up_after_s`: how long a call is kept while no node that still speaks has a call of ours and nothing is
    answered; a long queue that moves is not a failure, nor is a long call. `deadline_s` of a call counts from when it
    was given to the client, waiting included. `find_urls` is asked in a thread, every 30 s of work and when a node is
    lost, which nodes there are now; an empty list means that it does not know.
    """

    def __init__(
        self,
        urls: Sequence[str],
        run_id: str = "",
        *,
        give_up_after_s: float = 60.0,
        deadline_s: float | None = None,
        batch_calls: int = 32,
        find_urls: Callable[[], Sequence[str]] | None = None,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        self._twin = partial(
            SandboxClient,
            run_id=run_id,
            give_up_after_s=give_up_after_s,
            deadline_s=deadline_s,
            batch_calls=batch_calls,
            find_urls=find_urls,
            transport=transport,
        )
        self._deadline_s = deadline_s
        self._wire = Wire(transport)
        self._dispatcher = Dispatcher(self._wire, run_id, min(batch_calls, MAX_BATCH_CALLS))
        self._heartbeat = Heartbeat(self._dispatcher, self._wire, give_up_after_s, find_urls)
        self.set_urls(urls)

    async def __aenter__(self) -> "SandboxClient":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None):
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; calls still waiting are unavailable. The client may be used again."""
        await self._dispatcher.stop()
        await self._heartbeat.stop()
        await self._wire.aclose()

    def set_urls(self, urls: Sequence[str]) -> None:
        """These are the nodes from now on. What is under way to another one is still waited for."""
        wanted = dict.fromkeys(url.rstrip("/") for url in urls)
        if not wanted:
            raise ValueError("a sandbox client needs at least one node")
        self._dispatcher.set_nodes(wanted)

    async def run(self, call: ExecutionCall, *, deadline_s: float | None = None) -> Execution:
        """Run one program. Raises SandboxUnavailable or SandboxRefused."""
        answer: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()

        def deliver(_: Waiting, outcome: Outcome) -> None:
            if not answer.done():
                answer.set_result(outcome)

        waiting = self._hold(call, deliver, deadline_s)
        try:
            outcome = await answer
        finally:
            self._dispatcher.forget(waiting)
        if isinstance(outcome, SandboxClientError):
            raise outcome
        return outcome

    async def run_many(
        self, calls: Sequence[ExecutionCall], *, deadline_s: float | None = None
    ) -> AsyncIterator[Execution]:
        """Run programs side by side and yield each as it ends, every call exactly once, in no order.

        Raises SandboxRefused at once. SandboxUnavailable, with the ids it is about, only after all others are out.
        """
        async for _, execution in self._run_numbered(calls, deadline_s):
            yield execution

    def run_blocking(self, calls: Sequence[ExecutionCall]) -> list[Execution]:
        """Run programs from synchronous code; the answers are in the order of the calls."""
        # A thread of its own, so that a caller inside a running event loop is served too (and blocks it, as asked).
        with concurrent.futures.ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(lambda: asyncio.run(self._collect(calls))).result()

    async def health(self) -> dict[str, NodeHealth | None]:
        """Health of every node by URL; None: it does not answer."""

        async def ask(node: Node) -> NodeHealth | None:
            try:
                return await self._wire.health(node.url, within_s=HEALTH_S)
            except (TimeoutError, httpx.HTTPError, ValidationError):
                return None

        nodes = self._dispatcher.nodes
        found = await asyncio.gather(*(ask(node) for node in nodes))
        return {node.url: health for node, health in zip(nodes, found, strict=True)}

    async def _collect(self, calls: Sequence[ExecutionCall]) -> list[Execution]:
        # Connections belong to an event loop: this loop gets its own.
        urls = [node.url for node in self._dispatcher.nodes]
        async with self._twin(urls) as client:
            answers = {number: execution async for number, execution in client._run_numbered(calls, None)}
        return [answers[number] for number in range(len(calls))]

    async def _run_numbered(
        self, calls: Sequence[ExecutionCall], deadline_s: float | None
    ) -> AsyncIterator[tuple[int, Execution]]:
        answers: asyncio.Queue[tuple[Waiting, Outcome]] = asyncio.Queue()
        unavailable: list[SandboxUnavailable] = []

        def deliver(waiting: Waiting, outcome: Outcome) -> None:
            answers.put_nowait((waiting, outcome))

        ours = [self._hold(call, deliver, deadline_s, position) for position, call in enumerate(calls)]
        try:
            for _ in ours:
                waiting, outcome = await answers.get()
                if isinstance(outcome, Execution):
                    yield waiting.position, outcome
                elif isinstance(outcome, SandboxUnavailable):
                    unavailable.append(outcome)
                else:
                    raise outcome
        finally:
            for waiting in ours:
                self._dispatcher.forget(waiting)
        if unavailable:
            ids = [id for error in unavailable for id in error.ids]
            raise SandboxUnavailable(f"{len(ids)} of {len(ours)} calls: {unavailable[0].reason}", ids)

    def _hold(
        self,
        call: ExecutionCall,
        deliver: Callable[[Waiting, Outcome], None],
        deadline_s: float | None,
        position: int = 0,
    ) -> Waiting:
        waiting = Waiting(call, deliver, position)
        self._dispatcher.hold(waiting, self._deadline_s if deadline_s is None else deadline_s)
        self._heartbeat.start()
        return waiting
