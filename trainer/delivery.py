"""Posts the journal to the web app: at least once, in order, surviving outages of either side.

The position is a byte offset into the journal, kept in `delivered.json` after each answered batch; what an
earlier attempt could not deliver is therefore sent first. The web app drops what it already has.
"""

import json
import logging
import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx
from pydantic import ValidationError

from contracts.events import EventStatus, IngestReply, LiveBatch, LiveChunk
from trainer.store import write_atomically

POSITION_FILE = "delivered.json"
MAX_BATCH_EVENTS = 256
MAX_BATCH_BYTES = 1_000_000
GATHER_S = 0.2
BACKOFF_S = 0.5
MAX_BACKOFF_S = 10.0
TIMEOUT_S = 10.0
LIVE_INTERVAL_S = 0.3
MAX_LIVE_CHUNKS = 64
_TOO_LARGE_OR_BAD = (400, 413, 422)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Target:
    """Where events go. `transport` is replaced in tests."""

    url: str
    run: str
    token: str
    transport: httpx.BaseTransport | None = None

    def open_client(self) -> httpx.Client:
        return httpx.Client(
            base_url=f"{self.url.rstrip('/')}/api/v1/runs/{self.run}",
            headers={"Authorization": f"Bearer {self.token}"},
            timeout=TIMEOUT_S,
            transport=self.transport,
        )


@dataclass(slots=True)
class _Batch:
    body: bytes
    events: int
    end: int  # offset in the journal after its last line


class Delivery:
    """A thread that follows the journal. `on_reply` gets the desired state and whether anyone watches."""

    def __init__(self, journal: Path, target: Target, on_reply: Callable[[IngestReply], None]) -> None:
        self._journal = journal
        self._state = journal.with_name(POSITION_FILE)
        self._client = target.open_client()
        self._on_reply = on_reply
        self._position = self._load_position()
        self._limit = MAX_BATCH_EVENTS
        self._failures = 0
        self._stopping = threading.Event()
        self._deadline = float("inf")
        self._thread = threading.Thread(target=self._run, name="delivery", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def close(self, wait_s: float) -> bool:
        """Deliver what is left, for at most `wait_s`. False: some is left, the next attempt sends it."""
        self._deadline = time.monotonic() + wait_s
        self._stopping.set()
        self._thread.join(wait_s + TIMEOUT_S)
        self._client.close()
        return self._position >= self._journal.stat().st_size

    def _run(self) -> None:
        while time.monotonic() < self._deadline:
            is_last_look = self._stopping.is_set()  # before reading: what is written until then is delivered
            batch = self._read_batch()
            if batch is None:
                if is_last_look:
                    return
                self._stopping.wait(GATHER_S)
            elif not self._post(batch):
                self._wait_to_retry()

    def _read_batch(self) -> _Batch | None:
        """Whole lines from the position on; None when there are none."""
        lines: list[bytes] = []
        size = 0
        with self._journal.open("rb") as stream:
            stream.seek(self._position)
            for line in stream:
                is_full = len(lines) >= self._limit or size + len(line) > MAX_BATCH_BYTES
                if not line.endswith(b"\n") or (lines and is_full):
                    break
                lines.append(line[:-1])
                size += len(line)
        if not lines:
            return None
        return _Batch(b'{"events":[' + b",".join(lines) + b"]}", len(lines), self._position + size)

    def _post(self, batch: _Batch) -> bool:
        try:
            response = self._client.post("/events", content=batch.body, headers={"Content-Type": "application/json"})
        except httpx.HTTPError as error:
            return self._note_failure(f"{type(error).__name__}: {error}")
        if response.status_code in _TOO_LARGE_OR_BAD:
            return self._shrink_or_skip(batch, response)
        if not response.is_success:
            return self._note_failure(f"status {response.status_code}: {response.text[:200]}")
        try:
            reply = IngestReply.model_validate_json(response.content)
        except ValidationError as error:
            return self._note_failure(f"answer not understood: {error}")
        for answer in reply.answers:
            if answer.status is EventStatus.REJECTED:
                _log.warning("event %d/%d was rejected: %s", answer.attempt, answer.seq, answer.reason)
        self._advance(batch.end)
        self._limit = MAX_BATCH_EVENTS
        self._on_reply(reply)
        return True

    def _shrink_or_skip(self, batch: _Batch, response: httpx.Response) -> bool:
        """A batch refused as a whole is halved until the one event that is refused is alone, and skipped."""
        if batch.events > 1:
            self._limit = batch.events // 2
            return True
        _log.error("an event was refused and is skipped: %s %s", response.status_code, response.text[:200])
        self._advance(batch.end)
        return True

    def _advance(self, position: int) -> None:
        self._position = position
        self._failures = 0
        write_atomically(self._state, json.dumps({"offset": position}).encode())

    def _note_failure(self, why: str) -> bool:
        if self._failures == 0:
            _log.warning("the web app does not take events (%s); they wait in the journal", why)
        self._failures += 1
        return False

    def _wait_to_retry(self) -> None:
        pause = min(MAX_BACKOFF_S, BACKOFF_S * 2 ** min(self._failures - 1, 10)) * random.uniform(0.5, 1.5)  # noqa: S311
        time.sleep(max(0.0, min(pause, self._deadline - time.monotonic())))

    def _load_position(self) -> int:
        """0 when unknown or beyond the journal: sending again is harmless."""
        try:
            position = int(json.loads(self._state.read_bytes())["offset"])
        except (OSError, ValueError, KeyError, TypeError):
            return 0
        return position if position <= self._journal.stat().st_size else 0


class LiveFeed:
    """Posts tokens of rollouts in the making while somebody watches; drops the oldest when it is slow."""

    def __init__(self, target: Target) -> None:
        self.is_watched = False
        self._client = target.open_client()
        self._chunks: deque[LiveChunk] = deque(maxlen=4 * MAX_LIVE_CHUNKS)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="live", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def put(self, chunk: LiveChunk) -> None:
        if self.is_watched:
            self._chunks.append(chunk)

    def close(self) -> None:
        self._stopping.set()
        self._thread.join(TIMEOUT_S + 1)
        self._client.close()

    def _run(self) -> None:
        while not self._stopping.wait(LIVE_INTERVAL_S):
            if not self._chunks:
                continue
            count = min(len(self._chunks), MAX_LIVE_CHUNKS)
            batch = LiveBatch(chunks=[self._chunks.popleft() for _ in range(count)])
            try:
                self._client.post(
                    "/live", content=batch.model_dump_json(), headers={"Content-Type": "application/json"}
                )
            except httpx.HTTPError as error:
                _log.debug("live chunks dropped: %s", error)
