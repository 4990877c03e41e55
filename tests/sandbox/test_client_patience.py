"""How long the client waits, and what it leaves when nobody waits any more."""

import asyncio
import json

import httpx
import pytest

from contracts.execution import ExecutionCall, Limits
from sandbox.client import SandboxUnavailable
from tests.sandbox.fake_wire import answer, answers_all, calls, client_of, ids_of


async def never(request: httpx.Request) -> httpx.Response:
    await asyncio.Event().wait()
    raise AssertionError


async def test_a_deadline_ends_the_wait_and_is_told_to_the_node() -> None:
    told: list[float] = []

    async def handler(request: httpx.Request) -> httpx.Response:
        told.append(json.loads(request.content)["deadline_s"])
        return await never(request)

    async with client_of(handler) as client:
        with pytest.raises(SandboxUnavailable, match="within 0.2 s") as caught:
            await client.run(calls("a")[0], deadline_s=0.2)
    assert 0 < told[0] <= 0.2
    assert caught.value.ids == ["a"]


async def test_waiting_for_a_full_node_counts_to_the_deadline() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=answer(ids_of(request)[0], "rejected", retry_after_s=0.05))

    async with client_of(handler, deadline_s=0.3) as client:
        with pytest.raises(SandboxUnavailable, match="within 0.3 s"):
            await client.run(calls("a")[0])


async def test_a_node_that_cannot_keep_one_deadline_is_not_full_for_others() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        body = json.loads(request.content)
        status = "rejected" if body["deadline_s"] is not None else "ok"
        return httpx.Response(200, text="\n".join(answer(id, status, retry_after_s=60) for id in ids_of(request)))

    async with client_of(handler) as client:
        with pytest.raises(SandboxUnavailable, match="within 0.1 s"):
            await client.run(calls("a")[0], deadline_s=0.1)
        async with asyncio.timeout(2):
            assert (await client.run(calls("b")[0])).status == "ok"


async def test_a_request_that_swallows_its_answers_is_sent_again() -> None:
    tries = 0

    async def handler(request: httpx.Request) -> httpx.Response:
        nonlocal tries
        tries += 1
        return await never(request) if tries == 1 else answers_all(request)

    short = ExecutionCall(id="a", code="1", limits=Limits(wall_s=0.1))
    async with client_of(handler, give_up_after_s=0.2) as client:
        assert (await client.run(short)).status == "ok"
    assert tries == 2


async def test_a_call_nobody_waits_for_closes_its_request() -> None:
    closed = asyncio.Event()
    posted = asyncio.Event()

    async def handler(request: httpx.Request) -> httpx.Response:
        posted.set()
        try:
            return await never(request)
        finally:
            closed.set()

    async with client_of(handler) as client:
        running = asyncio.create_task(client.run(calls("a")[0]))
        await posted.wait()
        running.cancel()
        await asyncio.wait_for(closed.wait(), 2)
        with pytest.raises(asyncio.CancelledError):
            await running


async def test_calls_forgotten_at_once_leave_nothing_behind() -> None:
    async with client_of(answers_all) as client:
        for turns in range(4):
            running = asyncio.create_task(client.run(calls("a")[0]))
            for _ in range(turns):
                await asyncio.sleep(0)
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)
        await asyncio.sleep(0)
        assert not client._dispatcher.flights
        assert not client._dispatcher.open
        assert [node.in_flight for node in client._dispatcher.nodes] == [0]


async def test_closing_the_client_ends_what_waits() -> None:
    async with client_of(never) as client:
        running = asyncio.create_task(client.run(calls("a")[0]))
        await asyncio.sleep(0)
    with pytest.raises(SandboxUnavailable, match="closed"):
        await running
