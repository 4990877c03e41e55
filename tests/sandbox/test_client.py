"""The client against a wire that misbehaves."""

import asyncio
import json
import random

import httpx
import pytest

from contracts.execution import ExecutionCall, ExecutionStatus
from sandbox.balance import FLOOR_IN_FLIGHT
from sandbox.client import SandboxClient, SandboxRefused, SandboxUnavailable
from tests.sandbox.fake_wire import answer, answers_all, calls, client_of, collect, health, ids_of


async def test_ids_come_back_even_when_they_repeat() -> None:
    assert await collect(client_of(answers_all), calls("a", "a", "b")) == ["a", "a", "b"]


async def test_no_calls_no_request() -> None:
    assert await collect(client_of(answers_all), []) == []


async def test_runs_that_come_together_go_out_together() -> None:
    sizes: list[int] = []

    def handler(request: httpx.Request) -> httpx.Response:
        sizes.append(len(ids_of(request)))
        return answers_all(request)

    async with client_of(handler) as client:
        answers = await asyncio.gather(*(client.run(call) for call in calls(*"abcdefgh")))
    assert [execution.id for execution in answers] == [*"abcdefgh"]
    assert sizes == [8]


async def test_a_batch_is_shared_between_nodes() -> None:
    sizes: dict[str, int] = {}

    def handler(request: httpx.Request) -> httpx.Response:
        sizes[request.url.host] = len(ids_of(request))
        return answers_all(request)

    await collect(client_of(handler, "http://one", "http://two"), calls(*"abcdefgh"))
    assert sizes == {"one": 4, "two": 4}


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
    assert [sorted(ids) for ids in seen] == [["0", "1", "2"], ["1", "2"]]


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


@pytest.mark.parametrize("status", [status.value for status in ExecutionStatus if not status.is_ours])
async def test_a_program_that_failed_is_an_answer_and_no_other_try_is_made(status: str) -> None:
    tries = 0

    def handler(request: httpx.Request) -> httpx.Response:
        nonlocal tries
        tries += 1
        return httpx.Response(200, text=answer(ids_of(request)[0], status))

    async with client_of(handler, "http://one", "http://two") as client:
        assert (await client.run(calls("a")[0])).status == status
    assert tries == 1


@pytest.mark.parametrize("status", ["rejected", "sandbox_error"])
async def test_what_one_node_could_not_do_goes_to_the_other_at_once(status: str) -> None:
    hosts: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        (id,) = ids_of(request)
        return httpx.Response(200, text=answer(id, status if len(hosts) == 1 else "ok", retry_after_s=60))

    async with client_of(handler, "http://one", "http://two") as client:
        async with asyncio.timeout(2):
            assert (await client.run(calls("a")[0])).status == "ok"
    assert sorted(hosts) == ["one", "two"]


async def test_one_call_that_breaks_boxes_costs_its_siblings_nothing() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        bad = {call["id"] for call in json.loads(request.content)["calls"] if call["code"] == "break"}
        statuses = {id: "sandbox_error" if id in bad else "ok" for id in ids_of(request)}
        return httpx.Response(200, text="\n".join(answer(id, status) for id, status in statuses.items()))

    wanted = [*calls("a", "b"), ExecutionCall(id="bad", code="break"), *calls("c")]
    answered: list[str] = []
    async with client_of(handler, "http://one", "http://two") as client:
        with pytest.raises(SandboxUnavailable, match="1 of 4 calls") as caught:
            async for execution in client.run_many(wanted):
                answered.append(execution.id)
    assert sorted(answered) == ["a", "b", "c"]
    assert caught.value.ids == ["bad"]


async def test_only_the_call_that_is_not_understood_is_refused() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if any(call["code"] == "huge" for call in json.loads(request.content)["calls"]):
            return httpx.Response(413, json={"detail": "too large"})
        return answers_all(request)

    async with client_of(handler) as client:
        runs = [client.run(call) for call in [*calls("a", "b"), ExecutionCall(id="bad", code="huge")]]
        first, second, bad = await asyncio.gather(*runs, return_exceptions=True)
    assert (first.id, second.id) == ("a", "b")
    assert isinstance(bad, SandboxRefused)


async def test_text_that_is_no_unicode_is_refused_alone() -> None:
    async with client_of(answers_all) as client:
        runs = [client.run(call) for call in [*calls("a", "b"), ExecutionCall(id="bad", code="print('\ud800')")]]
        first, second, bad = await asyncio.gather(*runs, return_exceptions=True)
    assert (first.id, second.id) == ("a", "b")
    assert isinstance(bad, SandboxRefused)
    assert "not valid Unicode" in str(bad)


async def test_a_node_never_has_more_than_its_boxes_can_use() -> None:
    sent, most = 0, 0

    async def handler(request: httpx.Request) -> httpx.Response:
        nonlocal sent, most
        count = len(ids_of(request))
        sent += count
        most = max(most, sent)
        await asyncio.sleep(0)
        sent -= count
        return answers_all(request)

    assert len(await collect(client_of(handler), calls(*map(str, range(500))))) == 500
    assert most <= FLOOR_IN_FLIGHT


async def test_a_burst_is_answered_exactly_once_though_nodes_stumble() -> None:
    chance = random.Random(7)

    def handler(request: httpx.Request) -> httpx.Response:
        ids = ids_of(request)
        if chance.random() < 0.001:
            raise httpx.ReadError("reset")
        if chance.random() < 0.002:
            ids = ids[: len(ids) // 2]
        return httpx.Response(200, text="\n".join(answer(id, stdout=id) for id in ids))

    wanted = calls(*map(str, range(45_000)))
    answered = await collect(client_of(handler, "http://one", "http://two"), wanted)
    assert len(answered) == 45_000
    assert sorted(map(int, answered)) == list(range(45_000))


async def test_new_nodes_are_used_and_old_ones_left() -> None:
    hosts: list[str] = []

    def handler(request: httpx.Request) -> httpx.Response:
        hosts.append(request.url.host)
        return answers_all(request)

    async with client_of(handler, "http://old") as client:
        await client.run(calls("a")[0])
        client.set_urls(["http://new/"])
        await client.run(calls("b")[0])
        with pytest.raises(ValueError, match="at least one node"):
            client.set_urls([])
    assert hosts == ["old", "new"]


async def test_when_a_node_is_lost_it_is_asked_which_there_are() -> None:
    def handler(request: httpx.Request) -> httpx.Response:
        if request.url.host == "gone":
            raise httpx.ConnectError("refused")
        return answers_all(request) if request.method == "POST" else health()

    transport = httpx.MockTransport(handler)
    async with SandboxClient(["http://gone"], find_urls=lambda: ["http://here"], transport=transport) as client:
        assert (await client.run(calls("a")[0])).status == "ok"


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
    transport = httpx.MockTransport(lambda _: httpx.Response(503))
    async with SandboxClient(["http://one"], transport=transport) as client:
        assert await client.health() == {"http://one": None}


def test_a_client_needs_a_node() -> None:
    with pytest.raises(ValueError, match="at least one node"):
        SandboxClient([])
