"""The HTTP face of a node: parse, hand to the pool, stream what comes back."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from contracts.execution import ExecutionBatch, NodeHealth
from sandbox.jobs import Job
from sandbox.metrics import NodeMetrics
from sandbox.pool import Pool

MAX_BODY_BYTES = 64 << 20


def build_app(pool: Pool) -> Starlette:
    """The application of a node around its pool."""
    metrics = NodeMetrics()
    pool.on_answer = metrics.record

    async def run(request: Request) -> Response:
        try:
            batch = ExecutionBatch.model_validate_json(await _bounded_body(request))
        except _BodyTooLargeError:
            return JSONResponse({"detail": f"the body is larger than {MAX_BODY_BYTES} bytes"}, status_code=413)
        except ValidationError as error:
            details = error.errors(include_url=False, include_input=False, include_context=False)
            return JSONResponse({"detail": details}, status_code=422)
        except ClientDisconnect:
            return Response(status_code=400)
        jobs = [await pool.submit(call) for call in batch.calls]
        return StreamingResponse(_stream(request, jobs), media_type="application/x-ndjson")

    async def health(_: Request) -> Response:
        return JSONResponse(read_health(pool).model_dump(mode="json"))

    async def show_metrics(_: Request) -> Response:
        return Response(metrics.render(read_health(pool)), media_type="text/plain; version=0.0.4")

    return Starlette(
        routes=[
            Route("/v1/run", run, methods=["POST"]),
            Route("/v1/health", health),
            Route("/metrics", show_metrics),
        ]
    )


def read_health(pool: Pool) -> NodeHealth:
    """The node as it is now."""
    return NodeHealth(
        node=pool.node,
        isolated=pool.launcher.is_isolated,
        isolation=pool.launcher.isolation,
        boxes=len(pool.slots),
        ready=sum(slot.is_ready for slot in pool.slots),
        busy=sum(slot.is_busy for slot in pool.slots),
        queued=len(pool.queue),
        served=pool.tally.served,
        replaced=sum(pool.tally.replaced.values()),
    )


class _BodyTooLargeError(Exception):
    pass


async def _bounded_body(request: Request) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY_BYTES:
            raise _BodyTooLargeError
    return bytes(body)


async def _stream(request: Request, jobs: list[Job]) -> AsyncIterator[bytes]:
    """One line an answer, as they come; whatever nobody reads any more is abandoned."""
    waiting = list(jobs)
    gone = asyncio.create_task(_wait_gone(request))
    try:
        while waiting and not gone.done():
            watched: set[asyncio.Future[Any]] = {gone, *(job.done for job in waiting)}
            await asyncio.wait(watched, return_when=asyncio.FIRST_COMPLETED)
            lines = [job.done.result().model_dump_json() + "\n" for job in waiting if job.done.done()]
            waiting = [job for job in waiting if not job.done.done()]
            if lines:
                yield "".join(lines).encode()
    finally:
        gone.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await gone
        for job in jobs:
            job.abandon()


async def _wait_gone(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass
