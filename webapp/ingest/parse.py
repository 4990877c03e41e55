"""From bytes of a driver to checked events. Every string is hostile: NUL and lone surrogates, which Postgres
does not take, become U+FFFD; a bad event is refused with its reason and the others go on."""

import json
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.utils import timezone
from pydantic import ValidationError

from contracts.events import Event, EventAnswer, EventStatus, Metrics
from contracts.metrics import METRICS
from contracts.text import clean

_MAX_INT = 2**31 - 1
_MAX_BIG_INT = 2**63 - 1
_OLDEST = datetime(2000, 1, 1, tzinfo=UTC)
_BIG = {"seq", "size_bytes"}


class BodyInvalid(ValueError):
    """The body as a whole is not what the endpoint takes."""


@dataclass(frozen=True)
class Parsed:
    """Checked events in the order given, and the answers to those that are refused."""

    events: list[Event]
    refused: list[EventAnswer]


def split_body(body: bytes, content_type: str) -> list[Any]:
    """The raw events of a JSON document `{"events": [...]}` or of NDJSON."""
    items: Any
    try:
        if "ndjson" in content_type:
            items = [json.loads(line) for line in body.splitlines() if line.strip()]
        else:
            document = json.loads(body)
            items = document.get("events") if isinstance(document, dict) else None
    except (ValueError, RecursionError) as error:
        raise BodyInvalid(f"the body is not JSON: {str(error)[:200]}") from None
    if not isinstance(items, list):
        raise BodyInvalid('the body must be {"events": [...]}, or NDJSON with that content type')
    return clean(items) if b"\\u" in body else items


def parse_events(items: list[Any], run_id: str, newest_attempt: int) -> Parsed:
    events: list[Event] = []
    refused: list[EventAnswer] = []
    for item in items:
        try:
            event = Event.model_validate(item)
        except ValidationError as error:
            refused.append(_refuse_raw(item, _reason(error)))
            continue
        reason = _objection(event, run_id, newest_attempt)
        if reason:
            refused.append(_answer(event.attempt, event.seq, EventStatus.REJECTED, reason))
        else:
            events.append(event)
    return Parsed(events, refused)


def _objection(event: Event, run_id: str, newest_attempt: int) -> str:
    """Why a well-formed event cannot be taken; '' when it can."""
    if event.run != run_id:
        return f"the event is of run {event.run[:80]}, the address says {run_id}"
    if event.attempt > newest_attempt:
        return f"attempt {event.attempt} has not begun: this token is of attempt {newest_attempt}"
    if event.seq > _MAX_BIG_INT:
        return "seq is too large"
    at = event.time if event.time.tzinfo else event.time.replace(tzinfo=UTC)
    if not _OLDEST < at < timezone.now() + timedelta(days=2):
        return f"time {event.time.isoformat()} is not of this run"
    if isinstance(event.payload, Metrics):
        unknown = sorted(set(event.payload.values) - METRICS.keys())
        if unknown:
            return f"unknown metric {unknown[0][:80]!r}: add it to contracts.metrics"
    return _too_large(event.payload.model_dump())


def _too_large(value: Any, key: str = "") -> str:
    """A whole number that its column could not hold."""
    if isinstance(value, bool):
        return ""
    if isinstance(value, int):
        limit = _MAX_BIG_INT if key in _BIG else _MAX_INT
        return "" if -limit <= value <= limit else f"{key} is too large"
    if isinstance(value, dict):
        return next((r for k, v in value.items() if (r := _too_large(v, str(k)))), "")
    if isinstance(value, list):
        return next((r for v in value if (r := _too_large(v, key))), "")
    return ""


def _refuse_raw(item: Any, reason: str) -> EventAnswer:
    known = item if isinstance(item, dict) else {}
    attempt, seq = known.get("attempt"), known.get("seq")
    return _answer(
        attempt if isinstance(attempt, int) else 0, seq if isinstance(seq, int) else 0, EventStatus.REJECTED, reason
    )


def _answer(attempt: int, seq: int, status: EventStatus, reason: str = "") -> EventAnswer:
    return EventAnswer(attempt=attempt, seq=seq, status=status, reason=reason)


def _reason(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in first["loc"])
    return f"{where}: {first['msg']}"[:300] if where else first["msg"][:300]
