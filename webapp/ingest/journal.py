"""The journal of a driver that is gone: what it wrote and could not deliver is taken in from the file."""

import json
import logging
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from contracts.text import clean
from webapp.ingest.actions import ingest_events
from webapp.runs.attempts import run_folder
from webapp.runs.models import Run

logger = logging.getLogger(__name__)

JOURNAL = "events.jsonl"
POSITION = "delivered.json"
LINES_AT_ONCE = 500


def take_in_journal(run: Run) -> None:
    """Harmless to repeat: events are known by (attempt, seq). Starts where the driver's own delivery stopped."""
    path = run_folder(run) / JOURNAL
    if run.attempt_number == 0 or not path.is_file():
        return
    lines = _events(path, _delivered(path.with_name(POSITION)))
    while batch := list(islice(lines, LINES_AT_ONCE)):
        reply = ingest_events(run.pk, run.attempt_number, batch, is_live=False)
        for answer in reply.answers:
            if answer.reason:
                logger.warning("run %s: %d/%d: %s", run.pk, answer.attempt, answer.seq, answer.reason)


def _delivered(path: Path) -> int:
    """The byte offset up to which the driver had answers; 0 when it is not known."""
    try:
        return max(0, int(json.loads(path.read_bytes())["offset"]))
    except (OSError, ValueError, KeyError, TypeError):
        return 0


def _events(path: Path, offset: int) -> Iterator[Any]:
    """Whole lines only: a killed driver may leave half of one."""
    with path.open("rb") as journal:
        journal.seek(offset)
        for line in journal:
            if not line.endswith(b"\n"):
                return
            try:
                yield clean(json.loads(line))
            except (ValueError, RecursionError):
                logger.warning("%s: a line is not JSON and is left out", path)
