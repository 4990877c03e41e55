"""The one door to the sandbox: sends calls to nodes and hands back what the programs did.

Errors, all of them:

    SandboxClientError
    ├── SandboxUnavailable   no node answered in time, or nodes kept failing: nothing is known about the program
    └── SandboxRefused       a node does not understand the request: versions differ, or a caller's bug

A program that fails is an `Execution`. A status that is the service's own never leaves this file: it is retried,
and in the end becomes SandboxUnavailable. Retrying is safe because a call is stateless and has no network.
"""

import asyncio
import concurrent.futures
import random
import time
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from types import TracebackType

import httpx
from pydantic import ValidationError

from contracts.execution import MAX_BATCH_CALLS, Execution, ExecutionBatch, ExecutionCall, NodeHealth

CONNECT_S = 5.0
FIRST_BACKOFF_S = 0.1
MAX_BACKOFF_S = 5.0
MAX_SANDBOX_ERRORS = 3  # of one call: it may be the call that breaks boxes
DOWN_S = 2.0  # a node that could not be reached is left alone this long while others can be


class SandboxClientError(Exception):
    """Base of everything this client raises."""


class SandboxUnavailable(SandboxClientError):
    """The service failed, not the program. `reason` is one sentence for a person."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class SandboxRefused(SandboxClientError):
    """A node answered 4xx: trying again would not help."""


@dataclass
class _Node:
    url: str
    in_flight: int = 0
    down_until: float = 0.0


@dataclass
class _Progress:
    """When the last answer came, over all batches of one `run_many`."""

    at: float = field(default_factory=time.monotonic)


class SandboxClient:
    """Spreads calls over nodes. Use as an async context manager, or call `run_blocking` from synchronous code.

    `give_up_after_s` counts from the last answer, not from the first call: a long queue that moves is not a failure.
    """

    def __init__(
        self,
        urls: Sequence[str],
        run_id: str = "",
        *,
        give_up_after_s: float = 60.0,
        batch_calls: int = 16,
        transport: httpx.AsyncBaseTransport | None = None,
    ) -> None:
        if not urls:
            raise ValueError("a sandbox client needs at least one node")
        self._nodes = [_Node(url.rstrip("/")) for url in urls]
        self._run_id = run_id
        self._give_up_after_s = give_up_after_s
        self._batch_calls = min(batch_calls, MAX_BATCH_CALLS)
        self._transport = transport
        self._http: httpx.AsyncClient | None = None

    async def __aenter__(self) -> "SandboxClient":
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None):
        await self.aclose()

    async def aclose(self) -> None:
        """Close the connections; the client may be used again."""
        http, self._http = self._http, None
        if http is not None:
            await http.aclose()

    async def run(self, call: ExecutionCall) -> Execution:
        """Run one program. Raises SandboxUnavailable or SandboxRefused."""
        async for execution in self.run_many([call]):
            return execution
        raise SandboxUnavailable("no answer")  # not reached: run_many answers or raises

    async def run_many(self, calls: Sequence[ExecutionCall]) -> AsyncIterator[Execution]:
        """Run programs side by side and yield each as it ends, every call exactly once, in no order.

        Raises SandboxUnavailable or SandboxRefused for the whole; what was yielded before stays true.
        """
        async for _, execution in self._run_numbered(calls):
            yield execution

    def run_blocking(self, calls: Sequence[ExecutionCall]) -> list[Execution]:
        """Run programs from synchronous code; the answers are in the order of the calls."""
        # A thread of its own, so that a caller inside a running event loop is served too (and blocks it, as asked).
        with concurrent.futures.ThreadPoolExecutor(max_workers=1) as thread:
            return thread.submit(lambda: asyncio.run(self._collect(calls))).result()

    async def health(self) -> dict[str, NodeHealth | None]:
        """Health of every node by URL; None: it does not answer."""

        async def ask(node: _Node) -> NodeHealth | None:
            try:
                reply = await self._client().get(f"{node.url}/v1/health", timeout=CONNECT_S)
                return NodeHealth.model_validate_json(reply.raise_for_status().content)
            except (httpx.HTTPError, ValidationError):
                return None

        found = await asyncio.gather(*(ask(node) for node in self._nodes))
        return {node.url: health for node, health in zip(self._nodes, found, strict=True)}

    async def _collect(self, calls: Sequence[ExecutionCall]) -> list[Execution]:
        # Connections belong to an event loop: this loop gets its own.
        urls = [node.url for node in self._nodes]
        async with SandboxClient(
            urls,
            self._run_id,
            give_up_after_s=self._give_up_after_s,
            batch_calls=self._batch_calls,
            transport=self._transport,
        ) as client:
            answers = {number: execution async for number, execution in client._run_numbered(calls)}
        return [answers[number] for number in range(len(calls))]

    async def _run_numbered(self, calls: Sequence[ExecutionCall]) -> AsyncIterator[tuple[int, Execution]]:
        answers: asyncio.Queue[tuple[int, Execution] | SandboxClientError] = asyncio.Queue()
        progress = _Progress()
        numbers = range(len(calls))
        batches = [numbers[start : start + self._batch_calls] for start in numbers[:: self._batch_calls]]

        async def run_batch(batch: range) -> None:
            try:
                await self._run_batch({number: calls[number] for number in batch}, answers, progress)
            except SandboxClientError as error:
                answers.put_nowait(error)

        tasks = [asyncio.create_task(run_batch(batch)) for batch in batches]
        try:
            for _ in numbers:
                answer = await answers.get()
                if isinstance(answer, SandboxClientError):
                    raise answer
                yield answer
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _run_batch(
        self,
        waiting: dict[int, ExecutionCall],
        answers: "asyncio.Queue[tuple[int, Execution] | SandboxClientError]",
        progress: _Progress,
    ) -> None:
        """Send a batch until each of its calls is answered; what a node did not answer is sent again."""
        errors = dict.fromkeys(waiting, 0)
        backoff_s = FIRST_BACKOFF_S
        while waiting:
            retry_s, reason = 0.0, "the node closed the connection"
            before = len(waiting)
            try:
                async with asyncio.timeout(self._patience_s(progress)) as patience:
                    async for number, execution in self._post(waiting):
                        patience.reschedule(asyncio.get_running_loop().time() + self._give_up_after_s)
                        if execution.status.is_ours:
                            retry_s = max(retry_s, execution.retry_after_s or 0.0)
                            reason = f"{execution.node}: {execution.status.value}: {execution.reason}"
                            errors[number] += execution.status.value == "sandbox_error"
                            continue
                        progress.at = time.monotonic()
                        call = waiting.pop(number)
                        answers.put_nowait((number, execution.model_copy(update={"id": call.id})))
            except TimeoutError:
                reason = f"no answer for {self._give_up_after_s:g} s"
            except httpx.TransportError as error:
                reason = f"{type(error).__name__}: {error}"
            if len(waiting) < before:
                backoff_s = FIRST_BACKOFF_S
            if waiting:
                if max(errors[number] for number in waiting) >= MAX_SANDBOX_ERRORS:
                    raise SandboxUnavailable(reason)
                delay_s = max(retry_s, backoff_s) * random.uniform(0.75, 1.25)  # noqa: S311 - spreads retries
                if self._patience_s(progress) <= delay_s:
                    raise SandboxUnavailable(reason)
                await asyncio.sleep(delay_s)
                backoff_s = min(backoff_s * 2, MAX_BACKOFF_S)

    def _patience_s(self, progress: _Progress) -> float:
        """How long until we give up, if nothing is answered meanwhile."""
        return progress.at + self._give_up_after_s - time.monotonic()

    async def _post(self, waiting: dict[int, ExecutionCall]) -> AsyncIterator[tuple[int, Execution]]:
        """One request to one node; yields (number, execution) as lines arrive. Raises httpx.TransportError."""
        # Ids of callers may repeat (two trajectories, one "call_0"): on the wire the number is the id.
        calls = [call.model_copy(update={"id": str(number)}) for number, call in waiting.items()]
        body = ExecutionBatch(calls=calls, run_id=self._run_id).model_dump_json()
        node = self._pick()
        node.in_flight += len(calls)
        unanswered = {call.id for call in calls}
        try:
            headers = {"content-type": "application/json"}
            async with self._client().stream("POST", f"{node.url}/v1/run", content=body, headers=headers) as reply:
                await _require_ok(reply, node)
                async for line in reply.aiter_lines():
                    execution = Execution.model_validate_json(line)
                    if execution.id in unanswered:
                        unanswered.discard(execution.id)
                        node.in_flight -= 1
                        yield int(execution.id), execution
        except httpx.TransportError:
            node.down_until = time.monotonic() + DOWN_S
            raise
        except ValidationError as error:
            raise SandboxRefused(f"{node.url} answers in another format: {error}") from error
        finally:
            node.in_flight -= len(unanswered)

    def _pick(self) -> _Node:
        """The less loaded of two nodes drawn at random, among those that could be reached lately."""
        now = time.monotonic()
        reachable = [node for node in self._nodes if node.down_until <= now] or self._nodes
        drawn = random.sample(reachable, min(2, len(reachable)))
        return min(drawn, key=lambda node: node.in_flight)

    def _client(self) -> httpx.AsyncClient:
        if self._http is None:
            # Reading the CA bundle takes 20 ms: only where a certificate is to be checked.
            is_tls = any(node.url.startswith("https:") for node in self._nodes)
            limits = httpx.Limits(max_connections=None, max_keepalive_connections=64)
            timeout = httpx.Timeout(None, connect=CONNECT_S)
            self._http = httpx.AsyncClient(transport=self._transport, timeout=timeout, limits=limits, verify=is_tls)
        return self._http


async def _require_ok(reply: httpx.Response, node: _Node) -> None:
    if reply.status_code >= 500:
        raise httpx.RemoteProtocolError(f"{node.url} answered {reply.status_code}")
    if reply.status_code != 200:
        detail = (await reply.aread())[:500].decode("utf-8", "replace")
        raise SandboxRefused(f"{node.url} answered {reply.status_code}: {detail}")
