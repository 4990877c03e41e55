"""The client over real TCP: nodes that fall silent, that are only slow, and that answer after all."""

import asyncio
import concurrent.futures
import contextlib
import json
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from contracts.execution import ExecutionCall, Limits, NodeHealth
from sandbox import heartbeat
from sandbox.client import SandboxClient


@pytest.fixture(autouse=True)
def _quick_heartbeat(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BEAT_S", 0.1)
    monkeypatch.setattr(heartbeat, "SILENT_S", 1.0)


class FakeNode:
    """A node that answers a call when its gate is open; `seen` counts how often each program came."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.url = ""
        self.seen: Counter[str] = Counter()
        self.came = asyncio.Event()
        self.gate = asyncio.Event()
        self.gate.set()
        self.beats = 0

    async def run(self, request: Request) -> Response:
        calls = json.loads(await request.body())["calls"]
        self.seen.update(call["code"] for call in calls)
        self.came.set()

        async def answers() -> AsyncIterator[bytes]:
            for call in calls:
                await self.gate.wait()
                yield json.dumps({"id": call["id"], "status": "ok", "node": self.name}).encode() + b"\n"

        return StreamingResponse(answers())

    async def health(self, _: Request) -> Response:
        self.beats += 1
        report = NodeHealth(
            node=self.name, isolated=True, isolation="x", boxes=4, ready=4, busy=0, queued=0, served=0, replaced=0
        )
        return JSONResponse(report.model_dump())


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are pytest's."""
        yield


@asynccontextmanager
async def serving(node: FakeNode) -> AsyncIterator[FakeNode]:
    routes = [Route("/v1/run", node.run, methods=["POST"]), Route("/v1/health", node.health)]
    config = uvicorn.Config(
        Starlette(routes=routes), port=0, log_level="error", lifespan="off", timeout_graceful_shutdown=1
    )
    server = _Server(config)
    running = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    node.url = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    try:
        yield node
    finally:
        node.gate.set()
        server.should_exit = True
        await running


class BlackHole:
    """A proxy that can stop forwarding without closing anything, as a dead router does."""

    def __init__(self, target: str) -> None:
        self.port = int(target.rsplit(":", 1)[1])
        self.is_open = asyncio.Event()
        self.is_open.set()
        self._tasks: list[asyncio.Task[None]] = []

    async def connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", self.port)
        self._tasks += [asyncio.create_task(self._pump(reader, back)), asyncio.create_task(self._pump(there, writer))]

    async def _pump(self, source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(65536):
                await self.is_open.wait()
                target.write(data)
                await target.drain()
            await self.is_open.wait()
        except ConnectionError:
            pass
        finally:
            target.close()
            with contextlib.suppress(ConnectionError):
                await target.wait_closed()

    async def stop(self) -> None:
        self.is_open.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


@asynccontextmanager
async def behind_a_black_hole(node: FakeNode) -> AsyncIterator[tuple[BlackHole, str]]:
    hole = BlackHole(node.url)
    server = await asyncio.start_server(hole.connect, "127.0.0.1", 0)
    try:
        yield hole, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        await hole.stop()
        await server.wait_closed()


def programs(count: int) -> list[ExecutionCall]:
    return [ExecutionCall(id="same", code=str(number), limits=Limits(wall_s=60)) for number in range(count)]


async def test_a_connection_that_swallows_everything_costs_no_answer_and_gives_none_twice() -> None:
    async with serving(FakeNode("far")) as far, serving(FakeNode("near")) as near:
        far.gate.clear()
        async with behind_a_black_hole(far) as (hole, far_url), SandboxClient([far_url, near.url]) as client:
            answers: list[str] = []

            async def run_all() -> None:
                async for execution in client.run_many(programs(40)):
                    answers.append(execution.node)

            running = asyncio.create_task(run_all())
            await asyncio.wait_for(far.came.wait(), 5)
            hole.is_open.clear()
            far.gate.set()  # it works on and answers; nobody hears it
            await asyncio.wait_for(running, 10)
            hole.is_open.set()  # now its answers arrive
            last = await client.run(programs(1)[0])
    assert answers == ["near"] * 40
    assert last.status == "ok"
    assert far.seen.total() > 0
    assert all(near.seen[str(number)] >= 1 for number in range(40))


async def test_a_node_is_used_again_when_it_speaks_again() -> None:
    async with serving(FakeNode("far")) as far, serving(FakeNode("near")) as near, behind_a_black_hole(far) as proxied:
        hole, far_url = proxied
        async with SandboxClient([far_url, near.url]) as client:
            hole.is_open.clear()
            assert {execution.node async for execution in client.run_many(programs(40))} == {"near"}
            hole.is_open.set()
            async with asyncio.timeout(10):
                while "far" not in {execution.node async for execution in client.run_many(programs(40))}:
                    await asyncio.sleep(0.05)


async def test_a_slow_call_on_a_node_that_speaks_is_waited_for() -> None:
    async with serving(FakeNode("one")) as one, serving(FakeNode("two")) as two:
        one.gate.clear()
        two.gate.clear()
        async with SandboxClient([one.url, two.url], give_up_after_s=0.2) as client:
            running = asyncio.create_task(client.run(programs(1)[0]))
            async with asyncio.timeout(10):
                while one.beats + two.beats < 30:  # far longer than a silent node would be given
                    await asyncio.sleep(0.05)
            one.gate.set()
            two.gate.set()
            assert (await running).status == "ok"
    assert one.seen.total() + two.seen.total() == 1


async def test_a_loop_that_stood_still_blames_no_node() -> None:
    async with serving(FakeNode("one")) as one, serving(FakeNode("two")) as two:
        urls = [one.url, two.url]
        started = asyncio.Event()

        def wait_and_run() -> str:
            """The client in a loop of its own, which is blocked for longer than a node may be silent."""

            async def run() -> str:
                async with SandboxClient(urls) as client:
                    running = asyncio.create_task(client.run(programs(1)[0]))
                    while not one.seen and not two.seen:
                        await asyncio.sleep(0.01)
                    loop.call_soon_threadsafe(started.set)
                    blocked.result()
                    return (await running).status.value

            return asyncio.run(run())

        loop = asyncio.get_running_loop()
        blocked: concurrent.futures.Future[None] = concurrent.futures.Future()
        one.gate.clear()
        two.gate.clear()
        running = asyncio.create_task(asyncio.to_thread(wait_and_run))
        await asyncio.wait_for(started.wait(), 10)
        await asyncio.sleep(2.0)
        one.gate.set()
        two.gate.set()
        blocked.set_result(None)
        assert await asyncio.wait_for(running, 10) == "ok"
    assert one.seen.total() + two.seen.total() == 1
