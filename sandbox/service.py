"""The HTTP face of a node: parse, hand to the pool, stream what comes back."""

import asyncio
import contextlib

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from contracts.execution import ExecutionBatch, LimitProfile, NodeHealth
from sandbox import compat
from sandbox.api_page import render_page
from sandbox.callers import RefusedError, answer_refusal, parse, unless_gone
from sandbox.jobs import Answers
from sandbox.metrics import NodeMetrics
from sandbox.openapi import describe_api
from sandbox.pool import Pool

SEND_S = 60.0  # a caller that takes nothing for so long is gone
PAGE_HEADERS = {"content-security-policy": "default-src 'none'; style-src 'unsafe-inline'; form-action 'none'"}


def build_app(pool: Pool, *, judge_profile: LimitProfile = LimitProfile.PAPER) -> Starlette:
    """The application of a node around its pool."""
    metrics = NodeMetrics(pool)
    pool.on_answer = metrics.record
    api = describe_api()
    page = render_page(api)

    async def run(request: Request) -> Response:
        batch = await parse(request, ExecutionBatch)
        if len({call.id for call in batch.calls}) < len(batch.calls):
            raise RefusedError(422, "two calls of the batch have the same id")
        answers = pool.submit(batch.calls, run_id=batch.run_id, deadline_s=batch.deadline_s)
        return AnswerStream(pool, answers)

    async def health(_: Request) -> Response:
        return Response(read_health(pool).model_dump_json(), media_type="application/json")

    async def show_metrics(_: Request) -> Response:
        return Response(metrics.render(), media_type="text/plain; version=0.0.4")

    async def show_api(_: Request) -> Response:
        return JSONResponse(api)

    async def show_page(_: Request) -> Response:
        return HTMLResponse(page, headers=PAGE_HEADERS)

    return Starlette(
        routes=[
            Route("/v1/run", run, methods=["POST"]),
            Route("/v1/health", health),
            Route("/metrics", show_metrics),
            Route("/openapi.json", show_api),
            Route("/docs", show_page),
            *compat.routes(pool, judge_profile),
        ],
        exception_handlers={RefusedError: answer_refusal},
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
        wait_s=round(pool.drain_s(), 3),
        calls_per_s=round(pool.calls_per_s(), 2),
        cores=pool.cores,
    )


class AnswerStream(Response):
    """One line an answer, as they come, those that are there together. What nobody reads any more is abandoned."""

    media_type = "application/x-ndjson"

    def __init__(self, pool: Pool, answers: Answers) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._pool = pool
        self._answers = answers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Write until every call is answered, the caller goes, or reads nothing for a minute."""
        try:
            with contextlib.suppress(TimeoutError):
                await unless_gone(receive, self._write(send))
        finally:
            self._pool.abandon(self._answers)

    async def _write(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        while executions := await self._answers.take():
            # In ASCII: many readers of lines, httpx among them, split on U+2028 and U+0085 too.
            lines = "".join(execution.model_dump_json(ensure_ascii=True) + "\n" for execution in executions)
            async with asyncio.timeout(SEND_S):
                await send({"type": "http.response.body", "body": lines.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
