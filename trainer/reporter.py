"""What a run says about itself: journal first, then delivery; heartbeats; the user's wish to stop."""

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path

from contracts.events import (
    DesiredState,
    Heartbeat,
    IngestReply,
    LiveChunk,
    Log,
    LogLevel,
    Metrics,
    Payload,
    RunEnded,
    Trajectories,
    encode_number,
)
from contracts.metrics import METRICS
from contracts.text import clean_text
from contracts.trajectory import TrajectoryIndex
from trainer.delivery import Delivery, LiveFeed, Target
from trainer.journal import FILE, Journal
from trainer.store import clean_index

HEARTBEAT_S = 3.0
CLOSE_WAIT_S = 20.0
MAX_ROWS_PER_EVENT = 128
_LOGGING_LEVELS = {LogLevel.INFO: logging.INFO, LogLevel.WARNING: logging.WARNING, LogLevel.ERROR: logging.ERROR}
_log = logging.getLogger(__name__)


class Reporter:
    """`target` None: the journal only. Close it at the end: that waits for delivery, for a while."""

    def __init__(
        self,
        out: Path,
        run: str,
        *,
        attempt: int | None = None,
        target: Target | None = None,
        heartbeat_s: float = HEARTBEAT_S,
    ) -> None:
        self.journal = Journal(out / FILE, run, attempt)
        self.doing = "starting"
        self._heartbeat_s = heartbeat_s
        self._stop = threading.Event()
        self._closing = threading.Event()
        self._delivery = Delivery(self.journal.path, target, self._obey) if target else None
        self._live = LiveFeed(target) if target else None
        self._pulse = threading.Thread(target=self._beat, name="heartbeat", daemon=True)
        for part in (self._delivery, self._live, self._pulse):
            if part is not None:
                part.start()

    @property
    def run(self) -> str:
        return self.journal.run

    @property
    def attempt(self) -> int:
        return self.journal.attempt

    @property
    def should_stop(self) -> bool:
        """Somebody asked the run to stop; obey at the next safe point."""
        return self._stop.is_set()

    @property
    def is_watched(self) -> bool:
        return self._live is not None and self._live.is_watched

    def request_stop(self) -> None:
        self._stop.set()

    def emit(self, payload: Payload) -> None:
        self.journal.append(payload)

    def metrics(self, stage: int, step: int, values: Mapping[str, float]) -> None:
        """Names must be of `contracts.metrics`; a name that is not is an error of ours."""
        if unknown := values.keys() - METRICS.keys():
            raise KeyError(f"no such metric: {', '.join(sorted(unknown))}")
        self.emit(Metrics(stage=stage, step=step, values={k: encode_number(v) for k, v in values.items()}))

    def trajectories(self, rows: Sequence[TrajectoryIndex]) -> None:
        """Index rows of a shard that is on disk."""
        for start in range(0, len(rows), MAX_ROWS_PER_EVENT):
            self.emit(Trajectories(rows=[clean_index(row) for row in rows[start : start + MAX_ROWS_PER_EVENT]]))

    def log(self, level: LogLevel, text: str, source: str = "driver") -> None:
        _log.log(_LOGGING_LEVELS[level], "%s", text)
        self.emit(Log(level=level, source=source, text=clean_text(text)))

    def live(self, chunk: LiveChunk) -> None:
        if self._live is not None:
            self._live.put(chunk)

    def sync(self) -> None:
        self.journal.sync()

    def end(self, ending: RunEnded) -> None:
        """The attempt's last event: no heartbeat follows it."""
        self._closing.set()
        self._pulse.join()
        self.emit(ending)
        self.journal.sync()

    def close(self, wait_s: float = CLOSE_WAIT_S) -> None:
        """Stop the threads, make the journal durable, deliver what is left for at most `wait_s`."""
        self._closing.set()
        self._pulse.join()
        self.journal.sync()
        if self._live is not None:
            self._live.close()
        if self._delivery is not None and not self._delivery.close(wait_s):
            _log.warning("not all events reached the web app; they stay in %s", self.journal.path)
        self.journal.close()

    def _obey(self, reply: IngestReply) -> None:
        if reply.desired is DesiredState.STOP and not self._stop.is_set():
            _log.info("the user asked the run to stop")
            self._stop.set()
        if self._live is not None:
            self._live.is_watched = reply.watched

    def _beat(self) -> None:
        while not self._closing.wait(self._heartbeat_s):
            self.emit(Heartbeat(doing=self.doing))
            self.journal.sync()
