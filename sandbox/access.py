"""Who may ask a node: everybody who reaches it, or everybody who knows its token (SANDBOX_TOKEN)."""

import hmac

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

OPEN_PATHS = ("/ping", "/v1/ping", "/docs", "/openapi.json")
REFUSAL = "give the node's token: 'Authorization: Bearer …', for clients of ours SANDBOX_TOKEN in the environment"


class TokenGuard:
    """Answers 401 to what comes without the token; what says nothing about programs stays open."""

    def __init__(self, app: ASGIApp, token: str) -> None:
        self._app = app
        self._wanted = f"Bearer {token}".encode()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Let the request through or refuse it."""
        if scope["type"] == "http" and scope["path"] not in OPEN_PATHS:
            given = dict(scope["headers"]).get(b"authorization", b"")
            if not hmac.compare_digest(given, self._wanted):
                refusal = JSONResponse({"detail": REFUSAL}, status_code=401, headers={"www-authenticate": "Bearer"})
                return await refusal(scope, receive, send)
        await self._app(scope, receive, send)
