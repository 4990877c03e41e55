"""HTTP to nodes: one batch out and answers back as they come, or one question about health. Knows no retries."""

import asyncio
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing

import httpx
from pydantic import ValidationError

from contracts.execution import Execution, ExecutionBatch, NodeHealth
from sandbox.errors import SandboxRefused

CONNECT_S = 30.0  # the heartbeat finds a silent node sooner; a loop that an engine keeps busy needs seconds to connect
_JSON = {"content-type": "application/json"}
# Idle ones are closed before a node would: uvicorn does after 5 s, and a request would race with that.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=256, keepalive_expiry=4.0)
# A connection that a router forgot, or whose other end lost power, is an error after about 20 s and not never.
_TCP = {"TCP_NODELAY": 1, "TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}
_SOCKET_OPTIONS = [(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)] + [
    (socket.IPPROTO_TCP, getattr(socket, name), value) for name, value in _TCP.items() if hasattr(socket, name)
]


class Wire:
    """The connections of one event loop."""

    def __init__(self, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._transport = transport
        token = os.environ.get("SANDBOX_TOKEN", "")
        self._headers = {"authorization": f"Bearer {token}"} if token else {}
        self._clients: dict[bool, httpx.AsyncClient] = {}  # by whether certificates are checked

    async def post(self, url: str, batch: ExecutionBatch) -> AsyncIterator[Execution]:
        """Executions as they end. Raises httpx.TransportError or SandboxRefused; may end before all are answered."""
        try:
            body = batch.model_dump_json()
        except ValueError as error:  # a lone surrogate has no UTF-8
            raise SandboxRefused(f"a call holds text that is not valid Unicode: {error}") from error
        async with self._http(url).stream("POST", f"{url}/v1/run", content=body, headers=_JSON) as reply:
            await _require_ok(reply, url)
            async with aclosing(_lines(reply)) as lines:
                async for line in lines:
                    try:
                        execution = Execution.model_validate_json(line)
                    except ValidationError as error:
                        raise SandboxRefused(f"{url} answers in another format: {error}") from error
                    yield execution

    async def health(self, url: str, *, within_s: float) -> NodeHealth:
        """The node's own report. Raises TimeoutError, httpx.HTTPError or pydantic.ValidationError."""
        async with asyncio.timeout(within_s):
            reply = await self._http(url).get(f"{url}/v1/health")
        return NodeHealth.model_validate_json(reply.raise_for_status().content)

    async def aclose(self) -> None:
        """Close every connection; the next request opens new ones."""
        clients = list(self._clients.values())
        self._clients.clear()
        for client in clients:
            await client.aclose()

    def _http(self, url: str) -> httpx.AsyncClient:
        is_tls = url.startswith("https:")  # reading the CA bundle takes 20 ms
        if is_tls not in self._clients:
            transport = self._transport or httpx.AsyncHTTPTransport(
                verify=is_tls, limits=_LIMITS, socket_options=_SOCKET_OPTIONS
            )
            timeout = httpx.Timeout(None, connect=CONNECT_S)
            self._clients[is_tls] = httpx.AsyncClient(transport=transport, timeout=timeout, headers=self._headers)
        return self._clients[is_tls]


async def _require_ok(reply: httpx.Response, url: str) -> None:
    if reply.status_code >= 500:
        raise httpx.RemoteProtocolError(f"{url} answered {reply.status_code}")
    if reply.status_code != 200:
        detail = (await reply.aread())[:500].decode("utf-8", "replace")
        raise SandboxRefused(f"{url} answered {reply.status_code}: {detail}")


async def _lines(reply: httpx.Response) -> AsyncGenerator[bytes, None]:
    """Lines of the body as bytes; a part of a line at the end of a broken stream is not one."""
    parts: list[bytes] = []
    async for chunk in reply.aiter_bytes():
        parts.append(chunk)
        if b"\n" in chunk:
            *lines, rest = b"".join(parts).split(b"\n")
            parts = [rest]
            for line in lines:
                if line:
                    yield line
    if rest := b"".join(parts):
        yield rest
