"""A wire that says what a test wants it to, and a client on it."""

import json
from collections.abc import Awaitable, Callable
from typing import Any

import httpx

from contracts.execution import ExecutionCall
from sandbox.client import SandboxClient

Handler = Callable[[httpx.Request], httpx.Response | Awaitable[httpx.Response]]


def answer(id: str, status: str = "ok", **fields: object) -> str:
    return json.dumps({"id": id, "status": status, **fields})


def ids_of(request: httpx.Request) -> list[str]:
    return [call["id"] for call in json.loads(request.content)["calls"]]


def answers_all(request: httpx.Request) -> httpx.Response:
    return httpx.Response(200, text="\n".join(answer(id) for id in ids_of(request)))


def health(**fields: int) -> httpx.Response:
    counts = {"boxes": 2, "ready": 2, "busy": 0, "queued": 0, "served": 0, "replaced": 0, **fields}
    return httpx.Response(200, json={"node": "n", "isolated": True, "isolation": "gvisor", **counts})


def client_of(handler: Handler, *urls: str, **settings: Any) -> SandboxClient:
    """A client whose nodes are healthy where they can be reached; `handler` answers calls."""

    async def answer_request(request: httpx.Request) -> httpx.Response:
        if request.method == "GET":
            return health()
        response = handler(request)
        return await response if isinstance(response, Awaitable) else response

    transport = httpx.MockTransport(answer_request)
    return SandboxClient(urls or ["http://one"], **{"give_up_after_s": 5.0, **settings}, transport=transport)


def calls(*ids: str) -> list[ExecutionCall]:
    return [ExecutionCall(id=id, code="1") for id in ids]


async def collect(client: SandboxClient, wanted: list[ExecutionCall]) -> list[str]:
    async with client:
        return [execution.id async for execution in client.run_many(wanted)]
