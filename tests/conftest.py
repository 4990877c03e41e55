"""Real services for tests that ask for a database: one embedded PostgreSQL and one Redis a session."""

import shutil
import subprocess
from collections.abc import Iterator

import pytest

from tests.settings import VAR
from webapp.embedded import postgres, redis


@pytest.fixture(scope="session")
def services() -> Iterator[None]:
    """PostgreSQL and Redis on unix sockets in the session's throwaway folder."""
    server = subprocess.Popen(redis.command(VAR / "redis"), stdout=subprocess.DEVNULL)
    try:
        with postgres.running(VAR / "postgres"):
            yield
    finally:
        server.terminate()
        server.wait(10)


@pytest.fixture(scope="session")
def django_db_modify_db_settings(services: None) -> None:
    """pytest-django asks for this before it touches the database."""


def pytest_unconfigure() -> None:
    shutil.rmtree(VAR, ignore_errors=True)
