"""Alice operates the project, Victor only views it, Charlie is a stranger. A launcher and a driver to script."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.test import Client

from webapp.accounts.models import Membership, Project, Role, Team
from webapp.runs.actions import create_run
from webapp.runs.attempts import claim_for_submit, record_submitted, run_token
from webapp.runs.launcher import JobReport, JobState, LauncherUnavailable
from webapp.runs.models import Run

RECIPE: dict[str, Any] = {
    "name": "smoke",
    "stages": [
        {"kind": "curate", "name": "curate", "count": 20, "held_out": 4},
        {"kind": "sft", "name": "sft", "steps": 3},
        {"kind": "rl", "name": "rl", "steps": 4},
    ],
}


@pytest.fixture
def project(db: None) -> Project:
    return Project.objects.create(team=Team.objects.create(name="Team"), name="Maths", slug="maths")


def _member(project: Project, name: str, role: Role) -> User:
    user = User.objects.create_user(name, password="pw")
    Membership.objects.create(project=project, user=user, role=role)
    return user


@pytest.fixture
def alice(project: Project) -> User:
    return _member(project, "alice", Role.OPERATOR)


@pytest.fixture
def victor(project: Project) -> User:
    return _member(project, "victor", Role.VIEWER)


@pytest.fixture
def charlie(db: None) -> User:
    return User.objects.create_user("charlie", password="pw")


@pytest.fixture
def as_user() -> Callable[[User], Client]:
    def sign_in(user: User) -> Client:
        client = Client()
        client.force_login(user)
        return client

    return sign_in


@pytest.fixture(autouse=True)
def sent_tasks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, list[Any]]]:
    """Tasks that actions hand to the broker; no worker runs in these tests."""
    sent: list[tuple[str, list[Any]]] = []
    monkeypatch.setattr("webapp.runs.actions.current_app.send_task", lambda name, args: sent.append((name, args)))
    return sent


@pytest.fixture
def queued(project: Project, alice: User) -> Run:
    return create_run(project, alice, RECIPE)


@dataclass
class FakeLauncher:
    """Remembers jobs; tests set what Ray would say."""

    jobs: dict[str, JobState] = field(default_factory=dict)
    env: dict[str, dict[str, str]] = field(default_factory=dict)
    entrypoints: dict[str, str] = field(default_factory=dict)
    stopped: list[str] = field(default_factory=list)
    message: str = ""
    is_down: bool = False

    def submit(self, job_id: str, entrypoint: str, env: dict[str, str]) -> None:
        self._check()
        if job_id not in self.jobs:
            self.jobs[job_id], self.env[job_id], self.entrypoints[job_id] = JobState.PENDING, env, entrypoint

    def report(self, job_id: str) -> JobReport:
        self._check()
        return JobReport(self.jobs.get(job_id, JobState.MISSING), self.message)

    def stop(self, job_id: str) -> None:
        self._check()
        self.stopped.append(job_id)

    def log_tail(self, job_id: str) -> str:
        self._check()
        return "last words"

    def _check(self) -> None:
        if self.is_down:
            raise LauncherUnavailable("Ray does not answer")


@pytest.fixture
def launcher() -> FakeLauncher:
    return FakeLauncher()


@dataclass
class Driver:
    """Speaks for one attempt of a run over HTTP."""

    run: Run
    attempt: int
    token: str
    seq: int = 0

    def event(self, seq: int | None = None, attempt: int | None = None, **payload: Any) -> dict[str, Any]:
        self.seq = self.seq + 1 if seq is None else seq
        return {
            "run": str(self.run.pk),
            "attempt": attempt or self.attempt,
            "seq": self.seq,
            "time": datetime.now(UTC).isoformat(),
            "payload": payload,
        }

    def started(self, **more: Any) -> dict[str, Any]:
        return self.event(kind="run_started", stages=["curate", "sft", "rl"], total_steps=4, **more)

    def metrics(self, step: int, stage: int = 2, **values: Any) -> dict[str, Any]:
        named = {name.replace("__", "/"): value for name, value in values.items()}
        return self.event(kind="metrics", stage=stage, step=step, values=named)

    def post(self, *events: Any, token: str | None = None) -> Any:
        return self.post_raw({"events": list(events)}, token=token)

    def post_raw(self, body: Any, *, token: str | None = None, content_type: str = "application/json") -> Any:
        return Client().post(
            f"/api/v1/runs/{self.run.pk}/events",
            body,
            content_type=content_type,
            headers={"Authorization": f"Bearer {token or self.token}"},
        )

    def answers(self, *events: Any) -> list[str]:
        reply = self.post(*events)
        assert reply.status_code == 200, reply.content
        return [a["status"] for a in reply.json()["answers"]]


def begin_attempt(run: Run) -> Driver:
    """Claim and submit the queued run as the worker would."""
    attempt = claim_for_submit(str(run.pk))
    assert attempt is not None
    record_submitted(attempt)
    run.refresh_from_db()
    return Driver(run, attempt.number, run_token(attempt))


@pytest.fixture
def driver(queued: Run) -> Iterator[Driver]:
    yield begin_attempt(queued)
