"""Which processes `manage.py up` runs, on which ports, and how each says that it is ready."""

import os
import secrets
import socket
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import httpx

from webapp.embedded import redis
from webapp.embedded.supervisor import Service

WEB_PORT = 8000
SANDBOX_PORT = 8088
RAY_DASHBOARD_PORT = 8265
RAY_AGENT_PORT = (
    52365  # another Ray on the machine has it: without an agent of its own ours takes no job, and says little
)
PROBE_TIMEOUT_S = 1.0


class PortTaken(Exception):
    """The web port belongs to another program."""


@dataclass(frozen=True)
class Ports:
    web: int
    sandbox: int
    ray_dashboard: int
    ray_agent: int


def choose_ports(web: int, host: str) -> Ports:
    """The web port as asked for, since people type it; the inner ones anywhere free."""
    if not _is_free(host, web):
        raise PortTaken(f"port {web} is taken by another program: stop it, or run with ASTROLABE_PORT={web + 1}")
    inner = (_free_from(SANDBOX_PORT), _free_from(RAY_DASHBOARD_PORT), _free_from(RAY_AGENT_PORT, ""))
    return Ports(web, *inner)


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _free_from(port: int, host: str = "127.0.0.1") -> int:
    """The first free port from `port` on; host "": free on every address."""
    return next(p for p in range(port, port + 200) if _is_free(host, p))


def environment(var: Path, ports: Ports, database_url: str) -> dict[str, str]:
    """What every child reads in its settings. The Ray token stays in a file that only we can read."""
    token = var / "ray_token"
    if not token.exists():
        token.touch(mode=0o600)
        token.write_text(secrets.token_hex(32))
    return {
        "ASTROLABE_VAR": str(var),
        "ASTROLABE_URL": f"http://127.0.0.1:{ports.web}",
        "DATABASE_URL": database_url,
        "REDIS_URL": f"unix://{redis.socket_path(var / 'redis')}",
        "SANDBOX_URLS": f"http://127.0.0.1:{ports.sandbox}",
        "RAY_DASHBOARD_URL": f"http://127.0.0.1:{ports.ray_dashboard}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "PYTHONUNBUFFERED": "1",
    }


def embedded_services(var: Path, ports: Ports, *, host: str, ray_temp: Path) -> list[Service]:
    """Redis, the sandbox node, Ray, web and worker. PostgreSQL runs before them all."""
    python = sys.executable
    cpus = os.cpu_count() or 1
    return [
        Service(
            "redis",
            redis.command(var / "redis"),
            ready=_redis_ready(redis.socket_path(var / "redis")),
            quiet=True,
        ),
        Service(
            "sandbox",
            [python, "-m", "sandbox", "serve", "--host", "127.0.0.1", "--port", str(ports.sandbox)]
            + ["--state-dir", str(var / "sandbox")],
            ready=_answers(f"http://127.0.0.1:{ports.sandbox}/v1/health"),
            ready_within_s=120,
        ),
        Service(
            "ray",
            [str(Path(python).with_name("ray")), "start", "--head", "--block", "--node-ip-address", "127.0.0.1"]
            + ["--port", "0", "--num-cpus", str(cpus), "--disable-usage-stats"]
            + ["--dashboard-host", "127.0.0.1", "--dashboard-port", str(ports.ray_dashboard)]
            + ["--dashboard-agent-listen-port", str(ports.ray_agent)]
            + ["--object-store-memory", "100000000", "--temp-dir", str(ray_temp), "--include-log-monitor", "false"],
            ready=_answers(f"http://127.0.0.1:{ports.ray_dashboard}/api/version", any_status=True),
            ready_within_s=120,
            quiet=True,
        ),
        Service(
            "web",
            [python, "-m", "uvicorn", "webapp.asgi:application", "--host", host, "--port", str(ports.web)]
            + ["--no-access-log", "--log-level", "warning", "--lifespan", "off"],
            ready=_answers(f"http://127.0.0.1:{ports.web}/healthz"),
            after=("redis",),
        ),
        Service(
            "worker",
            [
                python,
                "-m",
                "celery",
                "--quiet",
                "-A",
                "webapp",
                "worker",
                "-B",
                "--pool",
                "threads",
                "--concurrency",
                "2",
            ]
            + ["--loglevel", "WARNING", "--without-gossip", "--without-mingle", "-s", str(var / "celerybeat")],
            env={"PYTHONWARNINGS": "ignore:You're running the worker"},  # root is all a container has
            after=("redis",),
        ),
    ]


def make_ray_temp() -> Path:
    """A short path: Ray puts unix sockets deep below it."""
    return Path(tempfile.mkdtemp(prefix="astro-ray-"))


def _redis_ready(path: Path) -> Callable[[], bool]:
    def is_ready() -> bool:
        with socket.socket(socket.AF_UNIX) as probe:
            try:
                probe.connect(str(path))
                probe.sendall(b"PING\r\n")
                return probe.recv(16).startswith(b"+PONG")
            except OSError:
                return False

    return is_ready


def _answers(url: str, *, any_status: bool = False) -> Callable[[], bool]:
    def is_ready() -> bool:
        try:
            reply = httpx.get(url, timeout=PROBE_TIMEOUT_S)
        except httpx.HTTPError:
            return False
        return any_status or reply.is_success

    return is_ready
