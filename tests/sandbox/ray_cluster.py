"""A real Ray cluster of this machine, with its token, for tests of what runs on it."""

import contextlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.sandbox.conftest import ROOT, require_runsc


@dataclass
class Cluster:
    """A head with the resource `sandbox`. Ray runs in processes of its own: this one never imports it.

    `dashboard` is its URL, '' without one; `token` the file that opens it.
    """

    address: str
    environ: dict[str, str]
    dashboard: str
    token: Path

    def run(self, *words: str, **environ: str) -> str:
        ran = subprocess.run(
            [sys.executable, *words],
            cwd=ROOT,
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )
        assert ran.returncode == 0, ran.stderr[-3000:]
        return ran.stdout

    def start_agents(self) -> list[str]:
        """As a user does."""
        return self.run("-m", "sandbox", "ray", "--address", self.address, "--boxes", "2").split()

    def discover(self, **environ: str) -> list[str]:
        """What the trainer finds."""
        return self.run("-c", "from trainer.cluster import *; print(*sandbox_urls())", **environ).split()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(holds: Callable[[], bool], otherwise: str) -> None:
    give_up = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < give_up, otherwise
        time.sleep(0.1)


def is_listening(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def running_cluster(*, with_dashboard: bool = False) -> Iterator[Cluster]:
    """A cluster of this machine alone; skips where gVisor is missing. It and its nodes are gone afterwards."""
    require_runsc()
    temp = Path(tempfile.mkdtemp(prefix="ray-"))  # short: Ray puts unix sockets deep below it
    token = temp / "token"
    token.touch(mode=0o600)
    token.write_text(secrets.token_hex(32))
    port = free_port()
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SANDBOX_URLS"))}
    environ = clean | {
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "TMPDIR": str(temp),
    }
    head = [str(Path(sys.executable).with_name("ray")), "start", "--head", "--block", "--port", str(port)]
    head += ["--node-ip-address", "127.0.0.1", "--num-cpus", "1", "--resources", '{"sandbox": 1}']
    head += ["--object-store-memory", "80000000", "--temp-dir", str(temp / "r")]
    dashboard = free_port() if with_dashboard else 0
    ports = ["--dashboard-port", str(dashboard), "--dashboard-agent-listen-port", str(free_port())] if dashboard else []
    head += ["--include-dashboard", str(with_dashboard).lower(), *ports]
    with (temp / "head.log").open("w") as log:
        process = subprocess.Popen(head, cwd=ROOT, env=environ, stdout=log, stderr=log, start_new_session=True)
    url = f"http://127.0.0.1:{dashboard}" if dashboard else ""
    running = Cluster(f"127.0.0.1:{port}", environ | {"RAY_ADDRESS": f"127.0.0.1:{port}"}, url, token)
    try:
        wait_until(lambda: all(map(is_listening, filter(None, (port, dashboard)))), "Ray did not start")
        yield running
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(15)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)  # Ray takes its time
        process.wait(15)
        wait_until(lambda: not nodes_of(temp), "a node outlived the cluster")
        shutil.rmtree(temp, ignore_errors=True)


def nodes_of(place: object) -> list[int]:
    """Pids of node processes with `place`, a port or a folder, in their command line."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                words = (entry / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if {"sandbox", "serve"} <= set(words) and any(str(place) in word for word in words):
                found.append(int(entry.name))
    return found
