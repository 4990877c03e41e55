"""The HTTP face of a node, before boxes that obey the test and once before real ones."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.responses import JSONResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from contracts.execution import Execution, NodeHealth
from sandbox.access import TokenGuard
from sandbox.api_page import render_page
from sandbox.client import SandboxClient
from sandbox.openapi import ENDPOINTS, describe_api
from sandbox.service import AnswerStream, build_app
from tests.sandbox.conftest import RunningNode, require_runsc, start_node, stop_node
from tests.sandbox.fake_boxes import LIGHT, RICHEST, FakePool, calls


@pytest.fixture
async def pool() -> AsyncIterator[FakePool]:
    async with FakePool({LIGHT: 1, RICHEST: 1}) as pool:
        yield pool


@pytest.fixture
async def http(pool: FakePool) -> AsyncIterator[httpx.AsyncClient]:
    transport = httpx.ASGITransport(build_app(pool))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as http:
        yield http


def batch(*codes: str, **fields: Any) -> dict[str, Any]:
    return {"calls": [{"id": str(number), "code": code} for number, code in enumerate(codes)], **fields}


async def test_answers_are_lines_that_come_as_calls_end(pool: FakePool, http: httpx.AsyncClient) -> None:
    posting = asyncio.create_task(http.post("/v1/run", json=batch("hold", "1", "1")))
    while not pool.held or len(pool.ran) < 3:
        await asyncio.sleep(0)
    pool.held["0"].release()
    reply = await posting
    assert reply.headers["content-type"] == "application/x-ndjson"
    executions = [Execution.model_validate_json(line) for line in reply.text.splitlines()]
    assert [execution.id for execution in executions] == ["1", "2", "0"]
    assert {execution.node for execution in executions} == {"n"}


async def test_the_client_understands_it(pool: FakePool) -> None:
    transport = httpx.ASGITransport(build_app(pool))
    async with SandboxClient(["http://node"], transport=transport) as client:
        assert len([execution async for execution in client.run_many(calls(*["1"] * 50))]) == 50
        health = (await client.health())["http://node"]
        assert health is not None
        assert (health.boxes, health.ready, health.busy, health.queued, health.served) == (2, 2, 0, 0, 50)
        assert (health.wait_s, health.cores) == (0.0, pool.cores)
        assert health.calls_per_s > 0


@pytest.mark.parametrize(
    "body", [b"", b"{}", b'{"calls": []}', b'{"calls": [{"id": "a", "code": "1", "x": 1}]}', b"\xff"]
)
async def test_a_bad_body_is_refused_and_not_echoed(http: httpx.AsyncClient, body: bytes) -> None:
    reply = await http.post("/v1/run", content=body)
    assert reply.status_code == 422
    assert all(set(error) <= {"type", "loc", "msg"} for error in reply.json()["detail"])


async def test_an_id_twice_in_a_batch_is_refused(pool: FakePool, http: httpx.AsyncClient) -> None:
    body = {"calls": [{"id": "a", "code": "1"}, {"id": "a", "code": "2"}]}
    reply = await http.post("/v1/run", json=body)
    assert (reply.status_code, reply.json()) == (422, {"detail": "two calls of the batch have the same id"})
    assert pool.ran == []


async def test_one_id_in_two_requests_is_two_calls(pool: FakePool, http: httpx.AsyncClient) -> None:
    replies = await asyncio.gather(*(http.post("/v1/run", json=batch("1", run_id="r")) for _ in range(2)))
    assert [len(reply.text.splitlines()) for reply in replies] == [1, 1]
    assert len(pool.ran) == 2


async def test_too_large_a_body_is_refused(http: httpx.AsyncClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.callers.MAX_BODY_BYTES", 100)
    reply = await http.post("/v1/run", content=b"x" * 101)
    assert (reply.status_code, reply.json()) == (413, {"detail": "the body is larger than 100 bytes"})


async def test_a_deadline_is_passed_on(pool: FakePool, http: httpx.AsyncClient) -> None:
    pool.tally.mean_call_s.update(dict.fromkeys(pool.tiers, 10.0))
    holding = pool.submit(calls("hold", "hold", prefix="h"))
    await pool.settle()
    (line,) = (await http.post("/v1/run", json=batch("1", deadline_s=3))).text.splitlines()
    assert (json.loads(line)["status"], json.loads(line)["retry_after_s"]) == ("rejected", 7.0)
    pool.abandon(holding)


class Wire:
    """An ASGI connection by hand: what it was sent, and a switch to hang up."""

    def __init__(self) -> None:
        self.sent: list[dict[str, Any]] = []
        self.is_reading = asyncio.Event()
        self.hangs_up = asyncio.Event()

    async def receive(self) -> dict[str, Any]:
        await self.hangs_up.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        await self.is_reading.wait()
        self.sent.append(message)

    def lines(self) -> list[int]:
        return [message.get("body", b"").count(b"\n") for message in self.sent[1:-1]]


async def test_a_caller_who_hangs_up_takes_its_queued_calls_along(pool: FakePool) -> None:
    wire = Wire()
    answers = pool.submit(calls("hold", "hold", *["1"] * 40))
    writing = asyncio.create_task(AnswerStream(pool, answers)({"type": "http"}, wire.receive, wire.send))
    await pool.settle()
    assert len(pool.queue) == 40
    wire.hangs_up.set()
    await writing
    assert len(pool.queue) == 0
    assert len(pool.ran) == 2


async def test_a_caller_who_does_not_read_gets_all_at_once_later_and_holds_no_box(pool: FakePool) -> None:
    wire = Wire()
    answers = pool.submit(calls(*["1"] * 40))
    writing = asyncio.create_task(AnswerStream(pool, answers)({"type": "http"}, wire.receive, wire.send))
    while len(pool.ran) < 40 or not all(slot.is_ready for slot in pool.slots):
        await asyncio.sleep(0)
    wire.is_reading.set()
    await writing
    assert wire.lines() == [40]


async def test_a_caller_who_never_reads_is_given_up(pool: FakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sandbox.service.SEND_S", 0.01)
    wire = Wire()
    wire.is_reading.set()
    answers = pool.submit(calls("1", "hold"))
    stream = AnswerStream(pool, answers)

    async def send(message: Any) -> None:
        wire.sent.append(message)
        if message["type"] == "http.response.body":
            await asyncio.Event().wait()

    await stream({"type": "http"}, wire.receive, send)
    assert answers.open_jobs == set()


def numbers(text: str) -> dict[tuple[str, str], float]:
    """Samples by name and label values."""
    return {
        (sample.name, ",".join(sample.labels.values())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


async def test_metrics(pool: FakePool, http: httpx.AsyncClient) -> None:
    await http.post("/v1/run", json=batch("1", "die", "import sympy"))
    await pool.settle()
    found = numbers((await http.get("/metrics")).text)
    assert found["sandbox_executions_total", "ok"] == 2
    assert found["sandbox_executions_total", "sandbox_error"] == 1
    assert found["sandbox_executions_total", "timeout"] == 0
    assert found["sandbox_exec_seconds_count", ""] == found["sandbox_queue_seconds_count", ""] == 2
    assert found["sandbox_cpu_seconds_total", ""] == 0.002
    assert found["sandbox_boxes_replaced_total", "BoxDiedError"] == 2
    for tier in pool.tiers:
        assert found["sandbox_boxes", f"ready,{tier.value}"] == 1
        assert found["sandbox_boxes", f"busy,{tier.value}"] == 0
        assert found["sandbox_queued", tier.value] == 0
        assert found["sandbox_wait_seconds", tier.value] == 0
    assert found["sandbox_load_ratio", ""] == 0
    assert found["sandbox_queued_bytes", ""] == 0


def references(value: Any) -> set[str]:
    if isinstance(value, dict):
        own = {value["$ref"]} if isinstance(value.get("$ref"), str) else set()
        return own.union(*map(references, value.values()))
    return set().union(*map(references, value)) if isinstance(value, list) else set()


async def test_the_document_describes_every_endpoint_and_no_other(pool: FakePool, http: httpx.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    described = {(method.upper(), path) for path, item in document["paths"].items() for method in item}
    served = {
        (method, route.path)
        for route in build_app(pool).routes
        if isinstance(route, Route)
        for method in (route.methods or ()) - {"HEAD"}
    }
    assert described == served
    assert document["openapi"].startswith("3.1")


def test_every_reference_of_the_document_resolves() -> None:
    document = describe_api()
    known = {f"#/components/schemas/{name}" for name in document["components"]["schemas"]}
    assert references(document) <= known
    operations = [operation for item in document["paths"].values() for operation in item.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations) == len(ENDPOINTS)
    assert document["paths"]["/v1/run"]["post"]["responses"]["200"]["content"] == {
        "application/x-ndjson": {"schema": {"$ref": "#/components/schemas/Execution"}}
    }


class Page(HTMLParser):
    """Tags, ids and links of a page; complains about tags that do not close."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.ids: set[str] = set()
        self.links: set[str] = set()
        self._open: list[str] = []
        self.feed(text)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        fields = dict(attrs)
        assert "src" not in fields
        self.ids |= {fields["id"]} if fields.get("id") else set()
        self.links |= {fields["href"]} if fields.get("href") else set()
        if tag not in ("meta", "br"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag


async def test_the_page_stands_alone(http: httpx.AsyncClient) -> None:
    reply = await http.get("/docs")
    page = Page(reply.text)
    assert page.tags.isdisjoint({"script", "link", "img", "iframe"})
    assert {f"#{id}" for id in page.ids} >= page.links > set()
    assert "default-src 'none'" in reply.headers["content-security-policy"]
    assert all(endpoint.path in reply.text for endpoint in ENDPOINTS)
    assert "color-scheme: light dark" in reply.text


def test_the_page_escapes_what_the_document_says() -> None:
    document = describe_api()
    document["info"]["title"] = "<script>alert(1)</script>"
    document["paths"]["/v1/run"]["post"]["summary"] = "a < b"
    page = Page(render_page(document))
    assert "script" not in page.tags


@pytest.mark.runsc
async def test_a_real_node_answers_every_endpoint(node: RunningNode) -> None:
    async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:
        lines = (await http.post("/v1/run", json=batch("print(6 * 7)", "1/0", run_id="r"))).text.splitlines()
        executions = {execution.id: execution for execution in map(Execution.model_validate_json, lines)}
        assert (executions["0"].stdout, executions["1"].status) == ("42\n", "error")
        found = numbers((await http.get("/metrics")).text)
        assert found["sandbox_executions_total", "ok"] >= 1
        assert sum(value for (name, _), value in found.items() if name == "sandbox_boxes") >= 2
        for endpoint in ENDPOINTS:
            if endpoint.method == "get":
                assert (await http.get(endpoint.path)).status_code == 200


async def until(holds: Any, within_s: float = 15.0) -> None:
    """Poll for a state of another process; there is no event to wait for."""
    give_up = time.monotonic() + within_s
    while not await holds():
        assert time.monotonic() < give_up, "it did not happen in time"
        await asyncio.sleep(0.05)


@pytest.mark.runsc
async def test_a_long_call_of_a_caller_who_hung_up_is_ended(node: RunningNode) -> None:
    sleeper = {"id": "0", "code": "import time; time.sleep(60)", "limits": {"wall_s": 60}}
    async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:

        async def health(name: str) -> int:
            return int((await http.get("/v1/health")).json()[name])

        async def is_busy() -> bool:
            return await health("busy") == 1

        async def is_ready() -> bool:
            return await health("ready") == await health("boxes")

        replaced = await health("replaced")
        await until(is_ready)
        posting = asyncio.create_task(http.post("/v1/run", json={"calls": [sleeper]}))
        await until(is_busy)
        posting.cancel()
        await until(is_ready)
        assert await health("replaced") == replaced + 1


@pytest.mark.runsc
async def test_a_full_queue_of_sleepers_rejects_and_recovers(tmp_path: Path) -> None:
    require_runsc()
    node = start_node(tmp_path, "--boxes", "1", SANDBOX_MAX_QUEUED="3")
    try:
        async with httpx.AsyncClient(base_url=node.url, timeout=30) as http:

            async def is_ready() -> bool:
                return bool((await http.get("/v1/health")).json()["ready"])

            await until(is_ready)
            sleepers = batch(*["import time; time.sleep(60)"] * 8)
            for call in sleepers["calls"]:
                call["limits"] = {"wall_s": 0.4}
            lines = (await http.post("/v1/run", json=sleepers)).text.splitlines()
            answers = Counter(json.loads(line)["status"] for line in lines)
            assert answers == {"rejected": 4, "timeout": 4}  # one ran, three waited; waiting was no time of theirs
            (line,) = (await http.post("/v1/run", json=batch("print(1)"))).text.splitlines()
            assert json.loads(line)["stdout"] == "1\n"
    finally:
        stop_node(node)


async def test_a_node_with_a_token_answers_only_who_knows_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        health = NodeHealth(node="n", isolated=True, isolation="x", boxes=1, ready=1, busy=0, queued=0, served=0,
                            replaced=0)  # fmt: skip
        await JSONResponse(health.model_dump(mode="json"))(scope, receive, send)

    transport = httpx.ASGITransport(TokenGuard(app, "geheim"))
    async with httpx.AsyncClient(transport=transport, base_url="http://node") as http:
        for headers in ({}, {"authorization": "Bearer wrong"}, {"authorization": "geheim"}):
            reply = await http.get("/v1/health", headers=headers)
            assert (reply.status_code, "SANDBOX_TOKEN" in reply.json()["detail"]) == (401, True)
        assert (await http.get("/docs")).status_code == 200
    for token, is_known in (("geheim", True), ("", False)):
        monkeypatch.setenv("SANDBOX_TOKEN", token)
        async with SandboxClient(["http://node"], transport=transport) as client:
            assert ((await client.health())["http://node"] is not None) is is_known
