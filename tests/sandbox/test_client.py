"""The client against a wire that misbehaves."""

import json
from collections.abc import Callable

import httpx
import pytest

from contracts.execution import ExecutionCall
from sandbox.client import SandboxClient, SandboxRefused, SandboxUnavailable

Handler = Callable[[httpx.Request], httpx.Response]


def answer(id: str, status: str = "ok", **fields: object) -> str:
    return json.dumps({"id": id, "status": status, **fields})


def ids_of(request: httpx.Request) -> list[str]:
    return [call["id"] for call in json.loads(request.content)["calls"]]


def answers_all(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, text="\n".join(answer(id) for id in ids_of(request)))


def client_of(handler: Handler, *urls: str, give_up_after_s: float = 5.0, batch_calls: int = 16) -> SandboxClient:
    return SandboxClient(
        urls or ["http://one"],
        give_up_after_s=give_up_after_s,
        batch_calls=batch_calls,
        transport=httpx.MockTransport(handler),
    )


def calls(*ids: str) -> list[ExecutionCall]:
    return [ExecutionCall(id=id, code="1") for id in ids]


async def collect(client: SandboxClient, wanted: list[ExecutionCall]) -> list[str]:
    async with client:
        return [execution.id async for execution in client.run_many(wanted)]


async def test_ids_come_back_even_when_they_repeat() -> None:
    assert await collect(client_of(answers_all), calls("a", "a", "b")) == ["a", "a", "b"]


async def test_no_calls_no_request() -> None:
    assert await collect(client_of(answers_all), []) == []


async def test_calls_are_sent_in_batches() -> None:
    sizes: list[int] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sizes.append(len(ids_of(request)))
        return answers_all(request)

    assert len(await collect(client_of(handler, batch_calls=4), calls(*"abcdefghij"))) == 10
    assert sorted(sizes) == [2, 4, 4]


async def test_a_lost_connection_is_tried_again() -> None:
    tries = 0

    def handler(request: httpx.Request) -> httpx.Response:
        nonlocal tries
        tries += 1
        if tries == 1:
            raise httpx.ConnectError("refused")
        return answers_all(request)

    assert await collect(client_of(handler), calls("a")) == ["a"]


async def test_only_unanswered_calls_are_sent_again() -> None:
    seen: list[list[str]] = []

    def handler(request: httpx.Request) -> httpx.Response:
        seen.append(ids_of(request))
        half = seen[-1][: 1 if len(seen) == 1 else None]
        return httpx.Response(200, text="\n".join(answer(id) for id in half))

    assert sorted(await collect(client_of(handler), calls("a", "b", "c"))) == ["a", "b", "c"]
    assert seen == [["0", "1", "2"], ["1", "2"]]


async def test_an_answer_given_twice_counts_once() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text="\n".join(answer(id) for id in ids_of(request) for _ in range(2)))

    assert await collect(client_of(handler), calls("a", "b")) == ["a", "b"]


async def test_rejected_is_tried_again_and_never_returned() -> None:
    tries = 0

    def handler(request: httpx.Request) -> httpx.Response:
        nonlocal tries
        tries += 1
        status = "rejected" if tries == 1 else "ok"
        return httpx.Response(200, text=answer("0", status, retry_after_s=0.01))

    async with client_of(handler) as client:
        assert (await client.run(calls("a")[0])).status == "ok"


async def test_rejected_for_ever_is_unavailable() -> None:
    def handler(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=answer("0", "rejected", reason="the queue is full", retry_after_s=0.05))

    async with client_of(handler, give_up_after_s=0.3) as client:
        with pytest.raises(SandboxUnavailable, match="the queue is full"):
            await client.run(calls("a")[0])


async def test_sandbox_errors_end_as_unavailable() -> None:
    tries = 0

    def handler(_: httpx.Request) -> httpx.Response:
        nonlocal tries
        tries += 1
        return httpx.Response(200, text=answer("0", "sandbox_error", reason="boxes died"))

    async with client_of(handler) as client:
        with pytest.raises(SandboxUnavailable, match="boxes died") as caught:
            await client.run(calls("a")[0])
    assert tries == 3
    assert "boxes died" in caught.value.reason


async def test_unreachable_for_ever_is_unavailable() -> None:
    def handler(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    async with client_of(handler, give_up_after_s=0.3) as client:
        with pytest.raises(SandboxUnavailable, match="refused"):
            await client.run(calls("a")[0])


async def test_a_failed_program_is_an_answer() -> None:
    def handler(_: httpx.Request) -> httpx.Response:
        return httpx.Response(200, text=answer("0", "timeout"))

    async with client_of(handler) as client:
        assert (await client.run(calls("a")[0])).status == "timeout"


@pytest.mark.parametrize("status", [404, 422])
async def test_a_request_that_is_not_understood_is_not_repeated(status: int) -> None:
    tries = 0

    def handler(_: httpx.Request) -> httpx.Response:
        nonlocal tries
        tries += 1
        return httpx.Response(status, json={"detail": "no"})

    async with client_of(handler) as client:
        with pytest.raises(SandboxRefused, match=str(status)):
            await client.run(calls("a")[0])
    assert tries == 1


async def test_an_answer_in_another_format_is_refused() -> None:
    async with client_of(lambda _: httpx.Response(200, text='{"hello": 1}')) as client:
        with pytest.raises(SandboxRefused, match="another format"):
            await client.run(calls("a")[0])


async def test_a_dead_node_is_passed_over() -> None:
    hosts: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        if request.url.host == "dead":
            raise httpx.ConnectError("refused")
        return answers_all(request)

    async with client_of(handler, "http://dead", "http://alive") as client:
        for _ in range(10):
            await client.run(calls("a")[0])
    assert hosts.count("dead") <= 1


def test_blocking_answers_in_order() -> None:
    client = client_of(answers_all, batch_calls=2)
    assert [execution.id for execution in client.run_blocking(calls("x", "y", "z"))] == ["x", "y", "z"]


async def test_blocking_works_inside_a_running_loop() -> None:
    assert len(client_of(answers_all).run_blocking(calls("x"))) == 1


async def test_health_of_a_silent_node_is_none() -> None:
    async with client_of(lambda _: httpx.Response(503)) as client:
        assert await client.health() == {"http://one": None}


def test_a_client_needs_a_node() -> None:
    with pytest.raises(ValueError, match="at least one node"):
        SandboxClient([])
