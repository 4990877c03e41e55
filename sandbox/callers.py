"""What every endpoint does with whoever calls it: read a bounded body, refuse clearly, stop when nobody listens."""

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.types import Receive

MAX_BODY_BYTES = 64 << 20

Body = TypeVar("Body", bound=BaseModel)
Result = TypeVar("Result")


class RefusedError(Exception):
    """The request is not taken. `detail` says why, as text or as pydantic's list of errors."""

    def __init__(self, status_code: int, detail: Any) -> None:
        super().__init__(detail)
        self.status_code = status_code
        self.detail = detail


async def parse(request: Request, model: type[Body]) -> Body:
    """The body as a model; what is wrong with it is said without repeating it."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > MAX_BODY_BYTES:
                raise RefusedError(413, f"the body is larger than {MAX_BODY_BYTES} bytes")
        return model.model_validate_json(bytes(body))
    except ValidationError as error:
        raise RefusedError(422, error.errors(include_url=False, include_input=False, include_context=False)) from error
    except ClientDisconnect as error:
        raise RefusedError(400, "the caller has gone") from error


async def answer_refusal(_: Request, error: Exception) -> Response:
    """The exception handler of RefusedError."""
    assert isinstance(error, RefusedError)  # noqa: S101 - registered for nothing else
    return JSONResponse({"detail": error.detail}, status_code=error.status_code)


async def unless_gone(receive: Receive, work: Coroutine[Any, Any, Result]) -> Result | None:
    """The result of the work; None, and the work is cancelled, when the caller hangs up first."""
    working = asyncio.create_task(work)
    watching = asyncio.create_task(_wait_gone(receive))
    try:
        await asyncio.wait({working, watching}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        watching.cancel()
        await asyncio.gather(working, watching, return_exceptions=True)


async def _wait_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
