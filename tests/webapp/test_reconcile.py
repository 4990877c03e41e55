"""Every way a driver and Ray can disagree with what the user wants."""

import json
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.utils import timezone

from tests.webapp.conftest import Driver, FakeLauncher
from webapp.runs.actions import request_stop
from webapp.runs.attempts import run_folder
from webapp.runs.launcher import JobState
from webapp.runs.models import Attempt, Run, RunHistory, RunState
from webapp.runs.tasks import reconcile_all

pytestmark = pytest.mark.django_db


def _age(seconds: float, *columns: str) -> None:
    """Let the time of these columns lie back."""
    Run.objects.update(**{c: timezone.now() - timedelta(seconds=seconds) for c in columns})


def _job(driver: Driver) -> str:
    return f"run-{driver.run.pk}-a{driver.attempt}"


def _after(launcher: FakeLauncher) -> tuple[str, str]:
    reconcile_all(launcher)
    run = Run.objects.get()
    return run.state, run.state_reason


@pytest.fixture
def running(driver: Driver, launcher: FakeLauncher) -> Driver:
    driver.post(driver.started())
    launcher.jobs[_job(driver)] = JobState.RUNNING
    return driver


def test_a_healthy_run_is_left_alone(running: Driver, launcher: FakeLauncher) -> None:
    before = Run.objects.get().revision
    assert _after(launcher)[0] == RunState.RUNNING
    assert Run.objects.get().revision == before


def test_a_queued_run_whose_task_was_lost_is_submitted(queued: Run, launcher: FakeLauncher) -> None:
    assert _after(launcher)[0] == RunState.QUEUED
    _age(20, "state_since")
    assert _after(launcher)[0] == RunState.STARTING


def test_a_killed_driver_is_lost_at_once_with_the_reason(running: Driver, launcher: FakeLauncher) -> None:
    launcher.jobs[_job(running)] = JobState.FAILED
    launcher.message = "Job entrypoint command failed with exit code -9"
    state, reason = _after(launcher)
    assert state == RunState.LOST
    assert reason == (
        "the job ended without saying how the run ended (failed): Job entrypoint command failed with exit code -9"
    )
    attempt = Attempt.objects.get()
    assert (attempt.outcome, attempt.log_tail) == ("lost", "last words")
    assert RunHistory.objects.order_by("-id")[0].reason == reason


def test_a_job_that_ends_before_the_run_began_failed(driver: Driver, launcher: FakeLauncher) -> None:
    launcher.jobs[_job(driver)] = JobState.FAILED
    launcher.message = "ModuleNotFoundError"
    assert _after(launcher) == (
        RunState.FAILED,
        "the job ended before the run began (failed): ModuleNotFoundError",
    )


def test_the_journal_is_asked_before_a_run_is_called_lost(running: Driver, launcher: FakeLauncher) -> None:
    folder = run_folder(running.run)
    folder.mkdir(parents=True)
    last = [running.metrics(4, reward__mean=1.0), running.event(kind="run_ended", outcome="finished", reason="")]
    (folder / "events.jsonl").write_text("".join(json.dumps(e) + "\n" for e in last))
    launcher.jobs[_job(running)] = JobState.SUCCEEDED
    assert _after(launcher)[0] == RunState.FINISHED


def test_stopped_in_ray_by_somebody_else(running: Driver, launcher: FakeLauncher) -> None:
    launcher.jobs[_job(running)] = JobState.STOPPED
    assert _after(launcher) == (RunState.LOST, "the job was stopped in Ray, not from here")


def test_ray_started_anew_while_the_driver_still_speaks(running: Driver, launcher: FakeLauncher) -> None:
    launcher.jobs.clear()
    assert _after(launcher)[0] == RunState.RUNNING
    _age(31, "last_heartbeat_at")
    assert _after(launcher) == (RunState.LOST, "Ray has no job of it any more")


def test_a_silent_driver_whose_job_lives_is_not_ended(running: Driver, launcher: FakeLauncher) -> None:
    _age(3600, "last_heartbeat_at")
    assert _after(launcher)[0] == RunState.RUNNING


def test_ray_away_is_no_reason_while_the_driver_speaks(running: Driver, launcher: FakeLauncher) -> None:
    launcher.is_down = True
    _age(60, "last_heartbeat_at")
    assert _after(launcher)[0] == RunState.RUNNING
    _age(601, "last_heartbeat_at")
    assert _after(launcher) == (RunState.LOST, "neither Ray nor the run answered for 600 s")


def test_starting_times_out_and_the_job_is_stopped(driver: Driver, launcher: FakeLauncher) -> None:
    launcher.jobs[_job(driver)] = JobState.PENDING
    assert _after(launcher)[0] == RunState.STARTING
    _age(301, "state_since")
    assert _after(launcher) == (RunState.FAILED, "the job did not report within 300 s of being submitted")
    assert launcher.stopped == [_job(driver)]


def test_submitting_times_out_with_rays_last_word(queued: Run, launcher: FakeLauncher) -> None:
    launcher.is_down = True
    _age(20, "state_since")
    assert _after(launcher) == (RunState.SUBMITTING, "Ray does not answer")
    _age(301, "state_since")
    launcher.is_down = False
    assert _after(launcher) == (RunState.FAILED, "could not be handed to Ray for 300 s: Ray does not answer")


def test_a_driver_that_obeys_is_cancelled_without_kill(running: Driver, alice: User, launcher: FakeLauncher) -> None:
    request_stop(running.run, alice)
    assert _after(launcher)[0] == RunState.STOPPING
    running.post(running.event(kind="run_ended", outcome="cancelled", reason="stopped by alice"))
    assert _after(launcher) == (RunState.CANCELLED, "stopped by alice")
    assert launcher.stopped == []


def test_stop_then_kill_at_the_deadline_then_confirmed(running: Driver, alice: User, launcher: FakeLauncher) -> None:
    request_stop(running.run, alice)
    _age(1, "stop_deadline")
    assert _after(launcher)[0] == RunState.STOPPING  # asked Ray; not gone until Ray says so
    assert launcher.stopped == [_job(running)]
    assert Run.objects.get().kill_sent_at is not None
    reconcile_all(launcher)
    assert launcher.stopped == [_job(running)]
    launcher.jobs[_job(running)] = JobState.STOPPED
    assert _after(launcher) == (RunState.CANCELLED, "killed: it did not stop by the deadline")


def test_the_kill_is_repeated_while_the_job_lives(running: Driver, alice: User, launcher: FakeLauncher) -> None:
    request_stop(running.run, alice)
    _age(30, "stop_deadline")
    reconcile_all(launcher)
    _age(11, "kill_sent_at")
    reconcile_all(launcher)
    assert len(launcher.stopped) == 2


def test_stopping_a_run_that_ray_does_not_know(running: Driver, alice: User, launcher: FakeLauncher) -> None:
    launcher.jobs.clear()
    request_stop(running.run, alice)
    assert _after(launcher)[0] == RunState.STOPPING
    _age(1, "stop_deadline")
    assert _after(launcher) == (RunState.CANCELLED, "stopped: Ray has no job of it")


def test_one_run_in_trouble_does_not_keep_the_others_waiting(
    running: Driver, alice: User, launcher: FakeLauncher, monkeypatch: pytest.MonkeyPatch
) -> None:
    request_stop(running.run, alice)
    _age(1, "stop_deadline")
    other: Any = Run.objects.get()
    other.pk, other.name = None, "other"
    other.state, other.state_since = RunState.QUEUED, timezone.now() - timedelta(seconds=60)
    other.attempt_number = 0
    other._state.adding = True
    other.id = __import__("uuid").uuid4()
    other.save()
    Run.objects.filter(pk=other.pk).update(state_since=timezone.now() - timedelta(seconds=60))

    def fail(job_id: str) -> None:
        from webapp.runs.launcher import LauncherUnavailable

        raise LauncherUnavailable("no")

    monkeypatch.setattr(launcher, "stop", fail)
    reconcile_all(launcher)
    other.refresh_from_db()
    assert other.state == RunState.STARTING
