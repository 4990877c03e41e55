"""`POST /api/v1/runs/<run>/events` and `/live`: what a driver sends, with its run token."""

from uuid import UUID

from django.conf import settings
from django.http import HttpRequest
from ninja import Router, Status
from ninja.errors import HttpError
from ninja.security import HttpBearer
from pydantic import ValidationError

from contracts.events import IngestReply, LiveBatch
from webapp.ingest.actions import ingest_events
from webapp.ingest.parse import BodyInvalid, split_body
from webapp.runs.attempts import hash_token
from webapp.runs.live import is_watched, send_live
from webapp.runs.models import Attempt

router = Router(tags=["ingest"])


class RunToken(HttpBearer):
    """The token of an attempt of the very run in the address."""

    def authenticate(self, request: HttpRequest, token: str) -> Attempt | None:
        match = request.resolver_match
        run_id = match.kwargs.get("run_id") if match else None
        return Attempt.objects.filter(run_id=run_id, token_hash=hash_token(token)).first()


@router.post("/runs/{uuid:run_id}/events", auth=RunToken(), response=IngestReply, summary="Take in events")
def post_events(request: HttpRequest, run_id: UUID) -> IngestReply:
    """Body: `{"events": [Event, ...]}`, or NDJSON. One answer an event; a bad one does not keep the others out."""
    body = _read(request)
    try:
        items = split_body(body, request.content_type or "")
    except BodyInvalid as error:
        raise HttpError(400, str(error)) from None
    attempt: Attempt = request.auth
    return ingest_events(run_id, attempt.number, items)


@router.post("/runs/{uuid:run_id}/live", auth=RunToken(), response={204: None}, summary="Show live tokens")
def post_live(request: HttpRequest, run_id: UUID) -> Status:
    """Ephemeral: passed on while somebody watches, never stored."""
    try:
        batch = LiveBatch.model_validate_json(_read(request))
    except ValidationError as error:
        raise HttpError(422, f"not a LiveBatch: {error.errors(include_url=False)[0]['msg']}") from None
    if is_watched(run_id):
        send_live(run_id, [chunk.model_dump(mode="json") for chunk in batch.chunks])
    return Status(204, None)


def _read(request: HttpRequest) -> bytes:
    """The body, bounded even when it does not say its length."""
    limit = settings.INGEST_MAX_BODY_BYTES
    body = request.read(limit + 1)
    if len(body) > limit:
        raise HttpError(413, f"the body is larger than {limit // 2**20} MB: send fewer events at once")
    return body
