"""The journal survives kills, the delivery survives outages, the user's wish to stop arrives."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest

from contracts.events import DesiredState, Event, EventAnswer, EventStatus, IngestReply, Log, LogLevel
from tests.trainer.test_store import make_row
from trainer import delivery
from trainer.delivery import Target
from trainer.journal import Journal
from trainer.reporter import Reporter


def log(text: str) -> Log:
    return Log(level=LogLevel.INFO, text=text)


def read_events(path: Path) -> list[Event]:
    return [Event.model_validate_json(line) for line in path.read_text().splitlines()]


def test_a_torn_last_line_is_cut_off(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    journal = Journal(path, "r")
    journal.append(log("one"))
    journal.close()
    with path.open("ab") as stream:
        stream.write(b'{"run":"r","attempt":1,"seq":2,"ti')
    journal = Journal(path, "r")
    journal.append(log("two"))
    journal.close()
    assert [(e.attempt, e.seq, e.payload.text) for e in read_events(path)] == [(1, 1, "one"), (2, 1, "two")]


def test_an_attempt_that_is_there_already_goes_on_numbering(tmp_path: Path) -> None:
    for text in ("one", "two"):
        journal = Journal(tmp_path / "events.jsonl", "r", attempt=3)
        journal.append(log(text))
        journal.close()
    assert [(e.attempt, e.seq) for e in read_events(tmp_path / "events.jsonl")] == [(3, 1), (3, 2)]


class WebApp:
    """Takes events as the real one does: each once, by (attempt, seq)."""

    def __init__(self) -> None:
        self.events: dict[tuple[int, int], dict] = {}
        self.order: list[tuple[int, int]] = []
        self.live: list[dict] = []
        self.tokens: set[str] = set()
        self.desired = DesiredState.RUN
        self.watched = False
        self.before: Callable[[int], httpx.Response | None] = lambda request: None
        self.requests = 0
        self.duplicates = 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        self.requests += 1
        self.tokens.add(request.headers["Authorization"])
        if (answer := self.before(self.requests)) is not None:
            return answer
        body = json.loads(request.content)
        if request.url.path.endswith("/live"):
            self.live += body["chunks"]
            return httpx.Response(204)
        assert request.url.path == "/api/v1/runs/r/events"
        answers = [self._take(event) for event in body["events"]]
        reply = IngestReply(answers=answers, desired=self.desired, watched=self.watched)
        return httpx.Response(200, content=reply.model_dump_json())

    def _take(self, event: dict) -> EventAnswer:
        key = (event["attempt"], event["seq"])
        status = EventStatus.DUPLICATE if key in self.events else EventStatus.ACCEPTED
        self.duplicates += status is EventStatus.DUPLICATE
        if key not in self.events:
            self.events[key] = event
            self.order.append(key)
        return EventAnswer(attempt=key[0], seq=key[1], status=status)

    def target(self) -> Target:
        return Target("http://web", "r", "secret", httpx.MockTransport(self))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "BACKOFF_S", 0.01)
    monkeypatch.setattr(delivery, "GATHER_S", 0.01)
    monkeypatch.setattr(delivery, "LIVE_INTERVAL_S", 0.01)


def send(tmp_path: Path, web: WebApp, count: int, wait_s: float = 10.0, attempt: int | None = None) -> None:
    reporter = Reporter(tmp_path, "r", attempt=attempt, target=web.target(), heartbeat_s=99)
    for number in range(count):
        reporter.emit(log(f"event {number}"))
    reporter.close(wait_s)


def test_everything_arrives_once_and_in_order(tmp_path: Path) -> None:
    web = WebApp()
    send(tmp_path, web, 600)
    assert web.order == [(1, seq) for seq in range(1, 601)]
    assert web.duplicates == 0
    assert web.tokens == {"Bearer secret"}


def test_an_outage_loses_nothing(tmp_path: Path) -> None:
    web = WebApp()
    web.before = lambda request: httpx.Response(503) if request % 3 else None
    send(tmp_path, web, 300)
    assert web.order == [(1, seq) for seq in range(1, 301)]


def test_a_refused_connection_is_an_outage(tmp_path: Path) -> None:
    web = WebApp()

    def refuse(request: int) -> None:
        if request < 4:
            raise httpx.ConnectError("refused")

    web.before = refuse
    send(tmp_path, web, 5)
    assert len(web.events) == 5


def test_what_one_attempt_could_not_deliver_the_next_one_sends_first(tmp_path: Path) -> None:
    web = WebApp()
    web.before = lambda request: httpx.Response(502)
    send(tmp_path, web, 3, wait_s=0.1)
    assert not web.events
    web.before = lambda request: None
    send(tmp_path, web, 2)
    assert web.order == [(1, 1), (1, 2), (1, 3), (2, 1), (2, 2)]


def test_a_lost_position_only_makes_duplicates(tmp_path: Path) -> None:
    web = WebApp()
    send(tmp_path, web, 3)
    (tmp_path / "delivered.json").write_text("torn{")
    send(tmp_path, web, 1)
    assert web.order == [(1, 1), (1, 2), (1, 3), (2, 1)]
    assert web.duplicates == 3


def test_a_batch_that_is_too_large_is_halved_and_a_bad_event_skipped(tmp_path: Path) -> None:
    web = WebApp()
    take = web._take

    def refuse_one(event: dict) -> EventAnswer:
        if event["payload"]["text"] == "event 5":
            raise ValueError
        return take(event)

    web._take = refuse_one

    def answer(request: httpx.Request) -> httpx.Response:
        try:
            return web(request)
        except ValueError:
            return httpx.Response(422)

    reporter = Reporter(tmp_path, "r", target=Target("http://web", "r", "t", httpx.MockTransport(answer)))
    for number in range(12):
        reporter.emit(log(f"event {number}"))
    reporter.close()
    assert sorted(web.events) == [(1, seq) for seq in range(1, 13) if seq != 6]


def test_the_reply_stops_the_run_and_opens_the_live_feed(tmp_path: Path) -> None:
    web = WebApp()
    web.desired, web.watched = DesiredState.STOP, True
    reporter = Reporter(tmp_path, "r", target=web.target(), heartbeat_s=99)
    reporter.emit(log("hello"))
    deadline = time.monotonic() + 10
    while not (reporter.should_stop and reporter.is_watched) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert reporter.should_stop
    reporter.close()


def test_heartbeats_come_by_themselves(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, "r", heartbeat_s=0.01)
    reporter.doing = "waiting"
    time.sleep(0.2)
    reporter.close()
    assert {e.payload.kind for e in read_events(tmp_path / "events.jsonl")} == {"heartbeat"}


def test_unknown_metrics_are_refused(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, "r")
    with pytest.raises(KeyError, match="no/such"):
        reporter.metrics(0, 1, {"no/such": 1.0})
    reporter.metrics(0, 1, {"policy/loss": float("nan")})
    reporter.close()
    assert read_events(tmp_path / "events.jsonl")[-1].payload.values == {"policy/loss": "NaN"}


def test_trajectories_are_sent_in_parts_and_clean(tmp_path: Path) -> None:
    reporter = Reporter(tmp_path, "r")
    reporter.trajectories([make_row(i, problem="bad \ud800 text").index for i in range(300)])
    reporter.close()
    events = read_events(tmp_path / "events.jsonl")
    assert [len(e.payload.rows) for e in events] == [128, 128, 44]
