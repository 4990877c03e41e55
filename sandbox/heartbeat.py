"""Watches nodes while calls wait: asks each twice a second how it is, gives up those that are silent.

A busy node answers a heartbeat at once, however long its calls take; a dead one, or one behind a connection that
swallows everything, does not. Time in which our own loop stood still is nobody's fault and does not count.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from functools import partial

import httpx
from pydantic import ValidationError

from sandbox.balance import MAX_REST_S, Node
from sandbox.dispatch import Dispatcher
from sandbox.errors import SandboxUnavailable
from sandbox.wire import Wire

BEAT_S = 0.5
SILENT_S = 2.0  # without an answer to a heartbeat: the node is lost
SILENT_ALONE_S = 10.0  # the same when there is no other node to turn to
STALL_S = 0.05  # a heartbeat that ends this much too late says that we were late, not the node
REFRESH_S = 30.0
REFRESH_LOST_S = 2.0  # the same while a node is lost


class Heartbeat:
    """Runs while the dispatcher has open calls."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        wire: Wire,
        give_up_after_s: float,
        find_urls: Callable[[], Sequence[str]] | None,
    ) -> None:
        self._dispatcher = dispatcher
        self._wire = wire
        self._give_up_after_s = give_up_after_s
        self._find_urls = find_urls
        self._refreshed_at = time.monotonic()
        self._starved_s = 0.0
        self._answered = 0
        self._beating: asyncio.Task[None] | None = None
        self._finding: asyncio.Task[None] | None = None
        self._watches: dict[Node, asyncio.Task[None]] = {}

    def start(self) -> None:
        """Beat, if it does not yet."""
        if self._beating is None or self._beating.done():
            self._beating = asyncio.create_task(self._beat())

    async def stop(self) -> None:
        """Nothing of it runs any more."""
        tasks = [task for task in (self._beating, self._finding, *self._watches.values()) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._beating = self._finding = None

    async def _beat(self) -> None:
        dispatcher = self._dispatcher
        while dispatcher.open:
            started = time.monotonic()
            for node in {*dispatcher.nodes, *(flight.node for flight in dispatcher.flights)}:
                if node not in self._watches:
                    watch = self._watches[node] = asyncio.create_task(self._watch(node))
                    watch.add_done_callback(partial(self._end_watch, node))
            self._refresh_if_due(started)
            await asyncio.sleep(BEAT_S)
            dispatcher.abandon_silent(self._give_up_after_s)
            self._give_up(min(time.monotonic() - started, 2 * BEAT_S))
            dispatcher.wake()

    def _give_up(self, spent_s: float) -> None:
        """End calls that have waited long enough while no node that speaks had any of ours and none was answered."""
        dispatcher = self._dispatcher
        if dispatcher.answered > self._answered:
            self._answered, self._starved_s = dispatcher.answered, 0.0
        elif not any(flight.node.is_alive() for flight in dispatcher.flights):
            self._starved_s += spent_s
        if self._starved_s >= self._give_up_after_s:
            oldest = time.monotonic() - self._give_up_after_s
            for waiting in [waiting for waiting in dispatcher.open if waiting.held_at <= oldest]:
                dispatcher.finish(waiting, SandboxUnavailable(dispatcher.trouble, [waiting.call.id]))

    async def _watch(self, node: Node) -> None:
        if node.report is not None and not node.is_lost:
            await asyncio.sleep(BEAT_S)
        while self._dispatcher.open and (node in self._dispatcher.nodes or node.in_flight):
            await self._ask(node)
            self._dispatcher.wake()
            rest_s = min(node.rests_until - time.monotonic(), MAX_REST_S) if node.is_lost else BEAT_S
            await asyncio.sleep(max(rest_s, 0.05))

    def _end_watch(self, node: Node, _: asyncio.Task[None]) -> None:
        self._watches.pop(node, None)

    async def _ask(self, node: Node) -> None:
        """One heartbeat. Only silence and a refused connection say that a node is lost."""
        started = time.monotonic()
        is_alone = all(other is node or other.is_lost for other in self._dispatcher.nodes)
        patience_s = SILENT_ALONE_S if is_alone else SILENT_S
        try:
            node.take_report(await self._wire.health(node.url, within_s=patience_s))
        except (TimeoutError, httpx.TimeoutException, httpx.ConnectError) as error:
            is_our_stall = time.monotonic() - started > patience_s + STALL_S
            if node.heard_at < started and not is_our_stall:
                self._dispatcher.lose(node, f"{node.url}: {error or 'no answer to the heartbeat'}")
        except httpx.HTTPStatusError as error:
            if error.response.status_code < 500:
                node.hear()
        except (httpx.HTTPError, ValidationError):
            pass  # the next heartbeat will tell

    def _refresh_if_due(self, now: float) -> None:
        every_s = REFRESH_LOST_S if any(node.is_lost for node in self._dispatcher.nodes) else REFRESH_S
        is_asking = self._finding is not None and not self._finding.done()
        if self._find_urls is not None and now - self._refreshed_at > every_s and not is_asking:
            self._refreshed_at = now
            self._finding = asyncio.create_task(self._refresh_urls(self._find_urls))

    async def _refresh_urls(self, find_urls: Callable[[], Sequence[str]]) -> None:
        if urls := await asyncio.to_thread(find_urls):
            self._dispatcher.set_nodes(url.rstrip("/") for url in urls)
