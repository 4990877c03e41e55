"""Take a batch of events in: one transaction, each event once, one answer an event."""

import logging
from collections import defaultdict
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.db import DataError, IntegrityError, transaction
from django.db.models import F

from contracts.events import DesiredState, Event, EventAnswer, EventStatus, IngestReply
from webapp.ingest.effects import apply_effects, move_by_events
from webapp.ingest.parse import Parsed, parse_events
from webapp.ingest.seen import TooManyGaps, add_seen, has_seen
from webapp.ingest.writers import DIRTY, WRITERS
from webapp.runs.attempts import wants_stop
from webapp.runs.live import announce_on_commit, is_watched
from webapp.runs.models import Attempt, Run

logger = logging.getLogger(__name__)

Key = tuple[int, int]


def ingest_events(run_id: UUID, newest_attempt: int, items: list[Any], *, is_live: bool = True) -> IngestReply:
    """`newest_attempt`: the attempt whose token brought them; it may bring what older ones could not deliver.

    `is_live` is False for events found in a dead driver's journal: they are no sign of life.
    """
    parsed = parse_events(items, str(run_id), newest_attempt)
    answers, run = _take_in(run_id, parsed, is_live=is_live)
    desired = DesiredState.STOP if wants_stop(run) else DesiredState.RUN
    return IngestReply(answers=answers + parsed.refused, desired=desired, watched=is_watched(run_id))


@transaction.atomic
def _take_in(run_id: UUID, parsed: Parsed, *, is_live: bool) -> tuple[list[EventAnswer], Run]:
    run = Run.objects.select_for_update().get(pk=run_id)
    if not parsed.events:
        return [], run
    attempts = {a.number: a for a in Attempt.objects.filter(run=run, number__in={e.attempt for e in parsed.events})}
    fresh, answers = _drop_seen(parsed.events, attempts)
    revision = run.revision + 1
    failed = _write(run, fresh, revision)
    taken = [e for e in fresh if (e.attempt, e.seq) not in failed]
    for event in list(taken):
        try:
            add_seen(attempts[event.attempt].seen, event.seq)
        except TooManyGaps as error:
            failed[event.attempt, event.seq] = str(error)
            taken.remove(event)
    answers += [_answer_of(e, failed) for e in fresh]
    if taken:
        _save(run, taken, attempts, revision, is_live=is_live)
    return answers, run


def _drop_seen(events: Sequence[Event], attempts: dict[int, Attempt]) -> tuple[list[Event], list[EventAnswer]]:
    fresh: dict[Key, Event] = {}
    answers = []
    for event in events:
        key = (event.attempt, event.seq)
        attempt = attempts.get(event.attempt)
        if attempt is None:
            reason = f"there is no attempt {event.attempt}"
            answers.append(EventAnswer(attempt=key[0], seq=key[1], status=EventStatus.REJECTED, reason=reason))
        elif key in fresh or has_seen(attempt.seen, event.seq):
            answers.append(EventAnswer(attempt=key[0], seq=key[1], status=EventStatus.DUPLICATE))
        else:
            fresh[key] = event
    return list(fresh.values()), answers


def _write(run: Run, events: Sequence[Event], revision: int) -> dict[Key, str]:
    """Each kind by its writer; returns the events that Postgres would not take, with the reason."""
    by_kind: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_kind[event.payload.kind].append(event)
    failed: dict[Key, str] = {}
    for kind, of_kind in by_kind.items():
        if kind in WRITERS:
            failed.update(_write_kind(run, kind, of_kind, revision))
    return failed


def _write_kind(run: Run, kind: str, events: list[Event], revision: int) -> dict[Key, str]:
    """All at once; when that fails, one by one, so that a bad event costs only itself."""
    try:
        with transaction.atomic():
            WRITERS[kind](run, events, revision)
    except (DataError, IntegrityError, ValueError) as error:
        if len(events) > 1:
            return {k: v for e in events for k, v in _write_kind(run, kind, [e], revision).items()}
        event = events[0]
        logger.warning("run %s: event %d/%d refused: %s", run.pk, event.attempt, event.seq, error)
        return {(event.attempt, event.seq): f"could not be stored: {str(error).splitlines()[0][:200]}"}
    return {}


def _save(run: Run, taken: list[Event], attempts: dict[int, Attempt], revision: int, *, is_live: bool) -> None:
    Attempt.objects.bulk_update(attempts.values(), ["seen"])
    changes = apply_effects(run, taken, is_live=is_live)
    Run.objects.filter(pk=run.pk).update(revision=F("revision") + 1, **changes)
    run.refresh_from_db()
    announce_on_commit(run.pk, revision, {DIRTY[e.payload.kind] for e in taken}, run.attempt_number)
    move_by_events(run, taken)


def _answer_of(event: Event, failed: dict[Key, str]) -> EventAnswer:
    reason = failed.get((event.attempt, event.seq))
    status = EventStatus.ACCEPTED if reason is None else EventStatus.REJECTED
    return EventAnswer(attempt=event.attempt, seq=event.seq, status=status, reason=reason or "")
