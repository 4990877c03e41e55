"""The HTTP API: `/api/v1`, described at `/api/docs`. JSON never holds NaN: see `contracts.events.encode_number`."""

from typing import Any

from django.contrib.auth.decorators import login_required
from django.core.exceptions import PermissionDenied
from django.http import HttpRequest, HttpResponse
from ninja import NinjaAPI
from ninja.renderers import JSONRenderer
from ninja.security import SessionAuth

from webapp.ingest.views import router as ingest_router
from webapp.runs.endpoints import router as runs_router


class StrictRenderer(JSONRenderer):
    json_dumps_params = {"allow_nan": False}


class SignedIn(SessionAuth):
    """The browser's session; unsafe methods need the CSRF token."""

    def authenticate(self, request: HttpRequest, key: str | None) -> Any:
        return request.user if request.user.is_authenticated else None


api = NinjaAPI(
    title="Astrolabe",
    version="1",
    docs_url="/docs",
    openapi_url="/openapi.json",
    docs_decorator=login_required,
    renderer=StrictRenderer(),
    auth=SignedIn(),
)
api.add_router("/v1", ingest_router)
api.add_router("/v1", runs_router)


@api.exception_handler(PermissionDenied)
def _forbidden(request: HttpRequest, error: PermissionDenied) -> HttpResponse:
    return api.create_response(request, {"detail": str(error)}, status=403)
