"""Ray's job API behind four calls, and its dashboard's answers. The only file of the web app that imports ray.

Authentication is Ray's own: the client reads RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH of the environment.
"""

import functools
import json
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

import requests
from django.conf import settings
from ray.exceptions import AuthenticationError
from ray.job_submission import JobSubmissionClient

REQUEST_TIMEOUT_S = 20.0
LOOK_TIMEOUT_S = 5.0  # somebody waits for a page
LOG_TAIL_CHARS = 8000


class JobState(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    STOPPED = "stopped"
    MISSING = "missing"  # Ray does not know it: never submitted, or Ray was started anew

    @property
    def has_ended(self) -> bool:
        return self in (JobState.SUCCEEDED, JobState.FAILED, JobState.STOPPED)


@dataclass(frozen=True)
class JobReport:
    state: JobState
    message: str = ""


class LauncherUnavailable(Exception):
    """Ray does not answer, not to us, or cannot do it now. The same call may work later."""


class LaunchRefused(Exception):
    """Ray answered and does not want the job. The same call will fail again."""


class Launcher(Protocol):
    def submit(self, job_id: str, entrypoint: str, env: dict[str, str]) -> None: ...
    def report(self, job_id: str) -> JobReport: ...
    def stop(self, job_id: str) -> None: ...
    def log_tail(self, job_id: str) -> str: ...
    def look(self, endpoint: str) -> dict[str, Any]: ...


class _Client(JobSubmissionClient):
    """Ray's client has no time limit of its own; a hanging head must not hang the worker."""

    def _do_request(self, method: str, endpoint: str, **kwargs: Any) -> requests.Response:
        return super()._do_request(method, endpoint, **{"timeout": REQUEST_TIMEOUT_S} | kwargs)


class RayLauncher:
    def __init__(self, url: str) -> None:
        self._url = url
        self._client: _Client | None = None

    def submit(self, job_id: str, entrypoint: str, env: dict[str, str]) -> None:
        """Submit once: a job id that Ray has already is the same job, so it is left as it is."""
        body = {"entrypoint": entrypoint, "submission_id": job_id, "runtime_env": {"env_vars": env}, "metadata": {}}
        reply = self._request("POST", "/api/jobs/", json_data=body)
        if reply.ok or "already" in reply.text:
            return
        if reply.status_code >= 500:  # among them "No available agent to submit job": a node that is still starting
            raise LauncherUnavailable(f"Ray cannot take the job yet: {_message(reply)}")
        raise LaunchRefused(f"Ray refused the job: {_message(reply)}")

    def report(self, job_id: str) -> JobReport:
        reply = self._request("GET", f"/api/jobs/{job_id}")
        if reply.status_code == 404:
            return JobReport(JobState.MISSING)
        if not reply.ok:
            raise LauncherUnavailable(f"Ray answered {reply.status_code}: {_message(reply)}")
        details = reply.json()
        # Ray appends the end of the log to its message; that is `log_tail`'s to show.
        message = (details.get("message") or "").partition(", last available logs")[0]
        return JobReport(JobState(details["status"].lower()), message[:500])

    def stop(self, job_id: str) -> None:
        """Ask Ray to end the job: SIGTERM, then SIGKILL. Only a later report says that it is gone."""
        reply = self._request("POST", f"/api/jobs/{job_id}/stop")
        if not reply.ok and reply.status_code != 404:
            raise LauncherUnavailable(f"Ray could not stop the job: {_message(reply)}")

    def log_tail(self, job_id: str) -> str:
        reply = self._request("GET", f"/api/jobs/{job_id}/logs")
        return str(reply.json().get("logs") or "")[-LOG_TAIL_CHARS:] if reply.ok else ""

    def look(self, endpoint: str) -> dict[str, Any]:
        """The `data` of an answer of Ray's dashboard, e.g. of /api/v0/actors."""
        reply = self._request("GET", endpoint, timeout=LOOK_TIMEOUT_S)
        try:
            answer = reply.json() if reply.ok else {}
            if answer.get("result"):
                return dict(answer["data"])
        except (json.JSONDecodeError, AttributeError, KeyError, TypeError, ValueError):
            pass
        raise LauncherUnavailable(f"Ray answered {reply.status_code} to {endpoint}: {_message(reply)[:300]}")

    def _request(self, method: str, endpoint: str, **kwargs: Any) -> requests.Response:
        try:
            if self._client is None:
                self._client = _Client(self._url)
            return self._client._do_request(method, endpoint, **kwargs)
        except AuthenticationError as error:
            raise LauncherUnavailable(f"Ray refuses our token: {str(error).splitlines()[0]}") from error
        except (requests.RequestException, ConnectionError, RuntimeError) as error:
            raise LauncherUnavailable(f"Ray does not answer at {self._url}: {str(error)[:300]}") from error


def _message(reply: requests.Response) -> str:
    """What Ray says is wrong; of a traceback its last line."""
    try:
        text = str(reply.json().get("msg") or reply.text)
    except (json.JSONDecodeError, AttributeError):
        text = reply.text
    if text.startswith("Traceback"):
        text = text.rstrip().rpartition("\n")[2]
    return text[:1000]


@functools.cache
def get_launcher() -> Launcher:
    return RayLauncher(settings.RAY_DASHBOARD_URL)
