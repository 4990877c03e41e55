"""The event journal `events.jsonl`: append-only, one event a line, the truth about a run.

Every line is flushed to the operating system when it is written, so kill -9 loses nothing; `sync` (with
each heartbeat, each checkpoint and at the end) makes it survive a power cut. A torn last line is cut off.
"""

import json
import logging
import os
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from contracts.base import Frozen
from contracts.events import Event, Payload

FILE = "events.jsonl"
_log = logging.getLogger(__name__)
_P = TypeVar("_P", bound=Frozen)


class Journal:
    """Appends events of one attempt; safe to use from several threads.

    `attempt` None: the one after the newest in the file. An attempt that is already in the file goes on
    where its numbering ended, so (run, attempt, seq) never names two events.
    """

    def __init__(self, path: Path, run: str, attempt: int | None = None) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        last_seq = _cut_torn_end(path)
        self.path = path
        self.run = run
        self.attempt = attempt if attempt is not None else max(last_seq, default=0) + 1
        self.seq = last_seq.get(self.attempt, 0)
        self._lock = threading.Lock()
        self._file = path.open("ab")

    def append(self, payload: Payload) -> Event:
        with self._lock:
            event = Event(run=self.run, attempt=self.attempt, seq=self.seq + 1, time=datetime.now(UTC), payload=payload)
            self._file.write(event.model_dump_json().encode("utf-8", "replace") + b"\n")
            self._file.flush()
            self.seq += 1
            return event

    def sync(self) -> None:
        with self._lock:
            if not self._file.closed:
                os.fsync(self._file.fileno())

    def close(self) -> None:
        self.sync()
        with self._lock:
            self._file.close()


def read_payloads(path: Path, kind: type[_P]) -> Iterator[_P]:
    """Payloads of one kind, of all attempts, in order."""
    word = f'"{kind.model_fields["kind"].default}"'.encode()
    with path.open("rb") as stream:
        for line in stream:
            if word not in line:
                continue
            payload = Event.model_validate_json(line).payload
            if isinstance(payload, kind):
                yield payload


def _cut_torn_end(path: Path) -> dict[int, int]:
    """Cut what a killed writer left unfinished; the newest seq of each attempt in the file."""
    if not path.exists():
        return {}
    last_seq: dict[int, int] = {}
    good_end = offset = 0
    with path.open("rb") as stream:
        for line in stream:
            offset += len(line)
            try:
                record = json.loads(line) if line.endswith(b"\n") else None
            except ValueError:
                record = None
            if record is not None:
                good_end = offset
                last_seq[record["attempt"]] = max(record["seq"], last_seq.get(record["attempt"], 0))
    if good_end < offset:
        _log.warning("%s: cut %d bytes of an unfinished line", path, offset - good_end)
        os.truncate(path, good_end)
    return last_seq
