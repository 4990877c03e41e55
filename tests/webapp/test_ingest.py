import json
import math
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from tests.webapp.conftest import RECIPE, Driver, begin_attempt
from webapp.accounts.models import Project
from webapp.ingest.journal import take_in_journal
from webapp.ingest.seen import TooManyGaps, add_seen, has_seen
from webapp.runs.actions import create_run, request_stop, resume_run
from webapp.runs.attempts import run_folder
from webapp.runs.models import Attempt, Checkpoint, LogLine, MetricPoint, Run, RunState, TimelineRow, TokenReportRow

pytestmark = pytest.mark.django_db


def _value(name: str, step: int) -> float:
    return MetricPoint.objects.get(name=name, step=step).value


# --- the run's life ---------------------------------------------------------------------------


def test_events_move_the_run_from_start_to_end(driver: Driver) -> None:
    assert driver.answers(driver.started(versions={"torch": "2"}, git_commit="abc")) == ["accepted"]
    run = Run.objects.get()
    assert (run.state, run.total_steps, run.versions) == (RunState.RUNNING, 4, {"torch": "2"})
    assert run.started_at is not None and run.last_heartbeat_at is not None
    driver.answers(
        driver.event(kind="stage_started", stage=2, name="rl", stage_kind="rl", steps=4, first_step=1),
        driver.metrics(2, reward__mean=0.5),
        driver.event(kind="heartbeat", doing="generating"),
    )
    run.refresh_from_db()
    assert (run.stage, run.step, run.doing) == (2, 2, "generating")
    driver.answers(
        driver.event(kind="stage_finished", stage=2, name="rl", duration_s=3.5),
        driver.event(kind="run_ended", outcome="finished", steps=4),
    )
    run.refresh_from_db()
    assert (run.state, run.stages[2]["duration_s"]) == (RunState.FINISHED, 3.5)
    assert Attempt.objects.get().outcome == "finished"


def test_a_batch_may_hold_the_whole_life(driver: Driver) -> None:
    driver.answers(driver.event(2, kind="run_ended", outcome="failed", reason="boom"), driver.started())
    assert Run.objects.get().state == RunState.FAILED


def test_late_events_of_an_ended_run_are_kept_but_move_nothing(driver: Driver) -> None:
    driver.answers(driver.started(), driver.event(kind="run_ended", outcome="cancelled"))
    late = [driver.metrics(3, reward__mean=1.0), driver.event(kind="run_ended", outcome="finished")]
    assert driver.answers(*late) == ["accepted", "accepted"]
    assert Run.objects.get().state == RunState.CANCELLED
    assert _value("reward/mean", 3) == 1.0


def test_the_reply_carries_what_the_user_wants(driver: Driver, alice: User) -> None:
    reply = driver.post(driver.started()).json()
    assert (reply["desired"], reply["watched"]) == ("run", False)
    request_stop(driver.run, alice)
    assert driver.post(driver.event(kind="heartbeat")).json()["desired"] == "stop"


def test_a_driver_of_an_ended_run_is_told_to_stop(driver: Driver) -> None:
    driver.post(driver.started())
    Run.objects.update(state=RunState.LOST)
    assert driver.post(driver.event(kind="heartbeat")).json()["desired"] == "stop"
    assert Run.objects.get().state == RunState.LOST


# --- once each --------------------------------------------------------------------------------


def test_sending_twice_is_harmless(driver: Driver) -> None:
    events = [driver.started(), driver.metrics(1, reward__mean=0.25), driver.event(kind="log", level="info", text="x")]
    assert driver.answers(*events) == ["accepted"] * 3
    revision = Run.objects.get().revision
    assert driver.answers(*events) == ["duplicate"] * 3
    assert (MetricPoint.objects.count(), LogLine.objects.count()) == (1, 1)
    assert Run.objects.get().revision == revision


def test_twice_in_one_batch(driver: Driver) -> None:
    log = driver.event(kind="log", level="info", text="x")
    assert sorted(driver.answers(log, log)) == ["accepted", "duplicate"]
    assert LogLine.objects.count() == 1


def test_out_of_order(driver: Driver) -> None:
    late = driver.metrics(1, reward__mean=0.1)
    early = driver.metrics(2, reward__mean=0.2)
    assert driver.answers(early) == ["accepted"]
    assert Attempt.objects.get().seen == [[2, 2]]
    assert driver.answers(late) == ["accepted"]
    assert Attempt.objects.get().seen == [[1, 2]]
    assert Run.objects.get().step == 2


def test_seen_ranges_agree_with_a_set() -> None:
    ranges: list[list[int]] = []
    order = [5, 1, 2, 4, 9, 3, 3, 8, 10, 1]
    known: set[int] = set()
    for seq in order:
        assert add_seen(ranges, seq) == (seq not in known)
        known.add(seq)
        assert {n for n in range(12) if has_seen(ranges, n)} == known
    assert ranges == [[1, 5], [8, 10]]


def test_seen_ranges_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("webapp.ingest.seen.MAX_RANGES", 2)
    ranges = [[1, 1], [3, 3]]
    with pytest.raises(TooManyGaps):
        add_seen(ranges, 9)
    assert add_seen(ranges, 2) and ranges == [[1, 3]]


def test_the_newer_attempt_wins_whatever_the_order(driver: Driver, alice: User) -> None:
    driver.answers(driver.started(), driver.metrics(1, reward__mean=0.1), driver.metrics(2, reward__mean=0.2))
    driver.answers(driver.event(kind="run_ended", outcome="failed"))
    run = Run.objects.get()
    resume_run(run, alice)
    second = begin_attempt(run)
    second.answers(second.started(resumed_from_step=1), second.metrics(2, reward__mean=0.7))
    late = [driver.metrics(2, reward__mean=0.9), driver.metrics(3, reward__mean=0.3)]
    assert second.answers(*late) == ["accepted", "accepted"]  # the new driver brings what the old one could not
    assert [_value("reward/mean", step) for step in (1, 2, 3)] == [0.1, 0.7, 0.3]
    assert Run.objects.get().state == RunState.RUNNING


def test_what_a_resumed_attempt_does_again_is_not_shown_meanwhile(driver: Driver, alice: User) -> None:
    driver.answers(driver.started(), *(driver.metrics(step, reward__mean=0.1) for step in (1, 2, 3)))
    driver.answers(driver.metrics(1, stage=3, reward__mean=0.1), driver.metrics(9, stage=1, sft__loss=1.0))
    run = Run.objects.get()
    driver.answers(driver.event(kind="run_ended", outcome="failed"))
    resume_run(run, alice)
    second = begin_attempt(run)
    resumed = second.started(resumed_from_step=1, resumes_at={"stage": 2, "step": 2})
    assert second.answers(second.metrics(2, reward__mean=0.7), resumed) == ["accepted"] * 2
    points = MetricPoint.objects.order_by("stage", "step").values_list("stage", "step", "value")
    assert list(points) == [(1, 9, 1.0), (2, 1, 0.1), (2, 2, 0.7)]


def test_an_older_attempts_end_does_not_end_the_run(driver: Driver, alice: User) -> None:
    driver.answers(driver.started())
    Run.objects.update(state=RunState.LOST)
    run = Run.objects.get()
    resume_run(run, alice)
    second = begin_attempt(run)
    second.answers(second.started())
    assert driver.answers(driver.event(kind="run_ended", outcome="failed")) == ["accepted"]
    assert Run.objects.get().state == RunState.RUNNING


# --- refusals ---------------------------------------------------------------------------------


def test_wrong_token(driver: Driver, project: Project, alice: User) -> None:
    assert driver.post(driver.started(), token="nonsense").status_code == 401
    other = begin_attempt(create_run(project, alice, RECIPE))
    assert driver.post(driver.event(kind="heartbeat"), token=other.token).status_code == 401
    assert Run.objects.get(pk=driver.run.pk).last_event_at is None


def test_no_token_and_a_session_is_no_token(driver: Driver, alice: User) -> None:
    url = f"/api/v1/runs/{driver.run.pk}/events"
    client = Client()
    client.force_login(alice)
    assert client.post(url, {"events": []}, content_type="application/json").status_code == 401


def test_wrong_method(driver: Driver) -> None:
    assert Client().get(f"/api/v1/runs/{driver.run.pk}/events").status_code == 405


def test_a_bad_event_does_not_keep_the_others_out(driver: Driver) -> None:
    bad = [
        driver.event(kind="surprise"),
        driver.metrics(1, reward__mena=1.0),
        {**driver.event(kind="heartbeat"), "run": "another"},
        {**driver.event(kind="heartbeat"), "time": "1200-01-01T00:00:00Z"},
        driver.event(kind="heartbeat", attempt=7),
        driver.event(kind="metrics", stage=2, step=2**40, values={}),
        driver.event(kind="metrics", stage=99999, step=1, values={"reward/mean": 1.0}),
        "not even an object",
        None,
    ]
    reply = driver.post(driver.started(), *bad, driver.event(kind="log", level="info", text="fine"))
    answers = reply.json()["answers"]
    assert [a["status"] for a in answers].count("accepted") == 2
    reasons = {a["seq"]: a["reason"] for a in answers if a["status"] == "rejected"}
    assert len([a for a in answers if a["status"] == "rejected"]) == len(bad)
    assert "surprise" in reasons[1]
    assert "unknown metric 'reward/mena'" in reasons[2]
    assert "is of run another" in reasons[3]
    assert "not of this run" in reasons[4]
    assert "attempt 7 has not begun" in reasons[5]
    assert "step is too large" in reasons[6]
    assert "could not be stored" in reasons[7]
    assert LogLine.objects.get().text == "fine"


def test_a_rejected_event_may_come_again_corrected(driver: Driver) -> None:
    assert driver.answers(driver.event(1, kind="surprise")) == ["rejected"]
    assert driver.answers(driver.event(1, kind="heartbeat")) == ["accepted"]


@pytest.mark.parametrize("text", ["a\0b", "lone \ud800 surrogate", "\udfff", "<script>alert(1)</script>", "‮"])
def test_hostile_strings_are_stored_safely(driver: Driver, text: str) -> None:
    assert driver.answers(driver.event(kind="log", level="error", text=text)) == ["accepted"]
    assert driver.answers(driver.event(kind="token_report", **_token_report(text))) == ["accepted"]
    assert driver.answers(driver.event(kind="step_timeline", **_timeline(text))) == ["accepted"]
    safe = "".join("\ufffd" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in text)
    assert LogLine.objects.get().text == safe
    assert TokenReportRow.objects.get().report["top_forking"][0]["text"] == safe
    assert TimelineRow.objects.get().report["slowest"][0]["prompt_id"] == safe


def _timeline(text: str) -> dict[str, Any]:
    slowest = [{"prompt_id": text, "sample": 0, "spans": []}]
    return {"stage": 2, "step": 1, "seconds": 1.0, "bins": 1, "phases": [], "in_flight": {}, "slowest": slowest}


def _token_report(text: str) -> dict[str, Any]:
    return {
        "stage": 2,
        "step": 1,
        "forking_share": 0.2,
        "reflection_window": 24,
        "mean_entropy_by_class": {"code": 0.5},
        "tokens_by_class": {"code": 3},
        "top_forking": [{"text": text, "count": 1, "mean_entropy": 1.0}],
        "top_reflection": [],
    }


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"", 400),
        (b"{", 400),
        (b"[]", 400),
        (b'{"events": 3}', 400),
        (b"[" * 200_000, 400),
        (b"\xff\xfe", 400),
        (b'{"events": []}', 200),
    ],
)
def test_bodies(driver: Driver, body: bytes, status: int) -> None:
    assert driver.post_raw(body).status_code == status


def test_twenty_megabytes_are_refused_clearly(driver: Driver) -> None:
    reply = driver.post(driver.event(kind="log", level="info", text="x" * 20_000_000))
    assert reply.status_code == 413
    assert reply.json()["detail"] == "the body is larger than 8 MB: send fewer events at once"


def test_a_long_log_line_is_cut_and_says_so(driver: Driver) -> None:
    driver.answers(driver.event(kind="log", level="info", text="x" * 70_000))
    assert LogLine.objects.get().text.endswith("4464 more characters are in the journal")


def test_ndjson(driver: Driver) -> None:
    lines = "\n".join(json.dumps(e) for e in (driver.started(), driver.event(kind="heartbeat")))
    reply = driver.post_raw(lines, content_type="application/x-ndjson")
    assert [a["status"] for a in reply.json()["answers"]] == ["accepted", "accepted"]


# --- what is stored ---------------------------------------------------------------------------


def test_numbers_that_are_not_finite(driver: Driver) -> None:
    driver.answers(driver.metrics(1, policy__loss="NaN", policy__grad_norm="Infinity", entropy__mean="-Infinity"))
    assert math.isnan(_value("policy/loss", 1))
    assert _value("policy/grad_norm", 1) == math.inf
    assert _value("entropy/mean", 1) == -math.inf


def test_a_bare_nan_is_refused_alone(driver: Driver) -> None:
    bad = json.dumps(driver.metrics(1, reward__mean=float("nan")))
    good = json.dumps(driver.metrics(2, reward__mean=1.0))
    reply = driver.post_raw('{"events": [' + bad + "," + good + "]}")
    assert sorted(a["status"] for a in reply.json()["answers"]) == ["accepted", "rejected"]


def test_checkpoints_and_their_pruning(driver: Driver) -> None:
    def written(step: int, pruned: list[str]) -> dict[str, Any]:
        return driver.event(
            kind="checkpoint_written", stage=2, step=step, path=f"ckpt/{step}", size_bytes=2**40, pruned=pruned
        )

    driver.answers(written(1, []))
    driver.answers(written(2, ["ckpt/1"]))
    assert [(c.path, c.pruned_at is None) for c in Checkpoint.objects.order_by("step")] == [
        ("ckpt/1", False),
        ("ckpt/2", True),
    ]


def test_one_statement_a_kind(driver: Driver, django_assert_max_num_queries: Any) -> None:
    events = [driver.metrics(step, reward__mean=0.5, entropy__mean=1.0) for step in range(1, 101)]
    with django_assert_max_num_queries(12):
        driver.answers(*events)
    assert MetricPoint.objects.count() == 200


def test_a_dead_drivers_journal_is_taken_in_once(driver: Driver) -> None:
    events = [driver.started(), driver.metrics(1, reward__mean=0.5), driver.event(kind="run_ended", outcome="finished")]
    driver.answers(events[0])
    folder = run_folder(driver.run)
    folder.mkdir(parents=True)
    text = "\n".join(json.dumps(e) for e in events) + '\n{"half a li'
    (folder / "events.jsonl").write_text(text)
    heard = Run.objects.get().last_heartbeat_at
    for _ in range(2):
        take_in_journal(Run.objects.get())
    run = Run.objects.get()
    assert (run.state, run.last_heartbeat_at) == (RunState.FINISHED, heard)
    assert MetricPoint.objects.count() == 1
    assert Attempt.objects.get().seen == [[1, 3]]
