"""The Ray launcher against a stand-in for Ray's dashboard, and submitting with a scripted launcher."""

import json
import threading
from collections.abc import Iterator
from datetime import timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from tests.webapp.conftest import FakeLauncher
from webapp.runs.actions import request_stop
from webapp.runs.attempts import claim_for_submit, hash_token, record_submitted
from webapp.runs.launcher import JobState, LauncherUnavailable, LaunchRefused, RayLauncher
from webapp.runs.models import Attempt, Run, RunState
from webapp.runs.reconcile import Verb, decide
from webapp.runs.tasks import submit


class Dashboard(BaseHTTPRequestHandler):
    """Answers the way Ray 2.60's job API does."""

    jobs: dict[str, str] = {}

    def do_GET(self) -> None:
        if self.path == "/api/version":
            self._reply(200, {"version": "4", "ray_version": "2.60.0", "ray_commit": "x", "session_name": "s"})
            return
        name, _, part = self.path.removeprefix("/api/jobs/").partition("/")
        if name not in self.jobs:
            self._reply(404, f"Job {name} does not exist")
        elif part == "logs":
            self._reply(200, {"logs": "x" * 9000 + "end"})
        else:
            self._reply(200, {"status": self.jobs[name], "message": "a message, last available logs (truncated):\nx"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        if self.path == "/api/jobs/":
            name = body["submission_id"]
            if name == "bad":
                self._reply(400, "Traceback (most recent call last):\n  File x\nValueError: no such thing\n")
            elif name == "early":
                self._reply(500, "No available agent to submit job, please try again later.")
            elif name in self.jobs:
                self._reply(500, f"Job with submission_id {name} already exists.")
            else:
                self.jobs[name] = "PENDING"
                self._reply(200, {"submission_id": name, "job_id": name})
        else:
            name = self.path.split("/")[3]
            self.jobs[name] = "STOPPED"
            self._reply(200, {"stopped": True})

    def _reply(self, status: int, body: Any) -> None:
        data = (body if isinstance(body, str) else json.dumps(body)).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def dashboard() -> Iterator[str]:
    Dashboard.jobs = {}
    with HTTPServer(("127.0.0.1", 0), Dashboard) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.fixture(autouse=True)
def _no_ray_address(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)


def test_submitting_twice_makes_one_job(dashboard: str) -> None:
    ray = RayLauncher(dashboard)
    assert ray.report("a").state is JobState.MISSING
    ray.submit("a", "true", {"X": "1"})
    ray.submit("a", "true", {"X": "1"})
    assert Dashboard.jobs == {"a": "PENDING"}
    assert (ray.report("a").state, ray.report("a").message) == (JobState.PENDING, "a message")


def test_stop_and_log_tail(dashboard: str) -> None:
    ray = RayLauncher(dashboard)
    ray.submit("a", "true", {})
    ray.stop("a")
    assert ray.report("a").state is JobState.STOPPED
    assert len(ray.log_tail("a")) == 8000 and ray.log_tail("a").endswith("end")
    assert ray.log_tail("unknown") == ""


def test_a_refusal_is_not_an_outage(dashboard: str) -> None:
    with pytest.raises(LaunchRefused, match="^Ray refused the job: ValueError: no such thing$"):
        RayLauncher(dashboard).submit("bad", "true", {})


def test_no_available_agent_is_an_outage(dashboard: str) -> None:
    with pytest.raises(LauncherUnavailable, match="^Ray cannot take the job yet: No available agent to submit job"):
        RayLauncher(dashboard).submit("early", "true", {})


def test_ray_away() -> None:
    with pytest.raises(LauncherUnavailable, match="Ray does not answer at http://127.0.0.1:9"):
        RayLauncher("http://127.0.0.1:9").report("a")


@pytest.mark.django_db
def test_submit_hands_over_recipe_and_token(queued: Run, launcher: FakeLauncher, settings: Any) -> None:
    submit(str(queued.pk), launcher)
    queued.refresh_from_db()
    assert (queued.state, queued.attempt_number) == (RunState.STARTING, 1)
    job = f"run-{queued.pk}-a1"
    folder = Path(settings.ASTROLABE_ARTIFACTS) / "runs" / str(queued.pk)
    assert json.loads((folder / "recipe.json").read_text()) == queued.recipe
    assert f"-m trainer run {folder}/recipe.json --out {folder} --artifacts" in launcher.entrypoints[job]
    assert "--resume" not in launcher.entrypoints[job]
    env = launcher.env[job]
    assert (env["ASTROLABE_RUN_ID"], env["ASTROLABE_ATTEMPT"]) == (str(queued.pk), "1")
    attempt = Attempt.objects.get()
    assert attempt.token_hash == hash_token(env["ASTROLABE_RUN_TOKEN"]) != env["ASTROLABE_RUN_TOKEN"]


@pytest.mark.django_db
def test_submit_runs_twice_harmlessly(queued: Run, launcher: FakeLauncher) -> None:
    submit(str(queued.pk), launcher)
    submit(str(queued.pk), launcher)
    assert len(launcher.jobs) == 1
    assert Attempt.objects.count() == 1


@pytest.mark.django_db
def test_a_worker_that_died_after_submitting_finds_its_job(queued: Run, launcher: FakeLauncher) -> None:
    attempt = claim_for_submit(str(queued.pk))
    assert attempt is not None
    launcher.submit(attempt.ray_job_id, "x", {})
    submit(str(queued.pk), launcher)  # the retry
    queued.refresh_from_db()
    assert queued.state == RunState.STARTING
    assert list(launcher.jobs) == [attempt.ray_job_id]


@pytest.mark.django_db
def test_ray_away_keeps_the_run_waiting_and_says_why(queued: Run, launcher: FakeLauncher) -> None:
    launcher.is_down = True
    submit(str(queued.pk), launcher)
    queued.refresh_from_db()
    assert (queued.state, queued.state_reason) == (RunState.SUBMITTING, "Ray does not answer")
    launcher.is_down = False
    submit(str(queued.pk), launcher)
    queued.refresh_from_db()
    assert (queued.state, queued.attempt_number) == (RunState.STARTING, 1)


@pytest.mark.django_db
def test_a_job_ray_cannot_take_yet_is_tried_again_after_twice_the_time(queued: Run, launcher: FakeLauncher) -> None:
    launcher.is_down = True
    submit(str(queued.pk), launcher)
    waits = []
    for waited in (0, 3, 8, 40):
        Run.objects.update(state_since=timezone.now() - timedelta(seconds=waited))
        asked = timezone.now()
        submit(str(queued.pk), launcher)
        again = Run.objects.get().submit_after
        assert again is not None
        waits.append(round((again - asked).total_seconds()))
        run = Run.objects.get()
        assert decide(run, None, again - timedelta(seconds=0.1)).verb is Verb.NOTHING
        assert decide(run, None, again).verb is Verb.SUBMIT
    assert waits == [2, 3, 8, 30]
    launcher.is_down = False
    submit(str(queued.pk), launcher)
    assert (Run.objects.get().state, launcher.jobs.keys()) == (RunState.STARTING, {f"run-{queued.pk}-a1"})


@pytest.mark.django_db
def test_a_job_ray_never_takes_fails_with_what_ray_said(queued: Run, launcher: FakeLauncher, settings: Any) -> None:
    launcher.is_down = True
    submit(str(queued.pk), launcher)
    Run.objects.update(state_since=timezone.now() - timedelta(seconds=settings.RUN_START_TIMEOUT_S + 1))
    decision = decide(Run.objects.get(), None, timezone.now())
    assert (decision.verb, decision.to) == (Verb.END, RunState.FAILED)
    assert decision.reason == "could not be handed to Ray for 300 s: Ray does not answer"


@pytest.mark.django_db
def test_a_refused_job_fails_the_run(queued: Run, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*args: Any) -> None:
        raise LaunchRefused("Ray refused the job: no")

    monkeypatch.setattr(launcher, "submit", refuse)
    submit(str(queued.pk), launcher)
    queued.refresh_from_db()
    assert (queued.state, queued.state_reason) == (RunState.FAILED, "Ray refused the job: no")
    assert Attempt.objects.get().outcome == "failed"


@pytest.mark.django_db
def test_a_cancelled_run_is_not_submitted(queued: Run, alice: User, launcher: FakeLauncher) -> None:
    request_stop(queued, alice)
    submit(str(queued.pk), launcher)
    assert launcher.jobs == {}


@pytest.mark.django_db
def test_a_job_submitted_for_an_ended_run_is_stopped(
    queued: Run, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit_slowly(job_id: str, entrypoint: str, env: dict[str, str]) -> None:
        Run.objects.filter(pk=queued.pk).update(state=RunState.CANCELLED)

    monkeypatch.setattr(launcher, "submit", submit_slowly)
    submit(str(queued.pk), launcher)
    assert launcher.stopped == [f"run-{queued.pk}-a1"]


@pytest.mark.django_db
def test_the_driver_may_report_before_submitting_returns(queued: Run) -> None:
    attempt = claim_for_submit(str(queued.pk))
    assert attempt is not None
    Run.objects.filter(pk=queued.pk).update(state=RunState.RUNNING)
    assert record_submitted(attempt)
    assert Run.objects.get().state == RunState.RUNNING
