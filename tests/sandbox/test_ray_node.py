"""Node agents on a real Ray cluster of this machine, with its token, and real gVisor behind them."""

import asyncio
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

import httpx
import pytest

from sandbox.client import SandboxClient
from tests.sandbox.conftest import ROOT, call, require_runsc

pytestmark = [pytest.mark.runsc, pytest.mark.integration]


@dataclass
class Cluster:
    """A head with the resource `sandbox`. Ray runs in processes of its own: this one never imports it."""

    address: str
    environ: dict[str, str]

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


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
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
    head += ["--object-store-memory", "80000000", "--include-dashboard", "false", "--temp-dir", str(temp / "r")]
    with (temp / "head.log").open("w") as log:
        process = subprocess.Popen(head, cwd=ROOT, env=environ, stdout=log, stderr=log, start_new_session=True)
    running = Cluster(f"127.0.0.1:{port}", environ | {"RAY_ADDRESS": f"127.0.0.1:{port}"})
    try:
        wait_until(lambda: is_listening(port), "Ray did not start")
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


def node_pid(url: str) -> int:
    (pid,) = nodes_of(url.rsplit(":", 1)[1])
    return pid


def start_agents(cluster: Cluster) -> list[str]:
    """As a user does."""
    return cluster.run("-m", "sandbox", "ray", "--address", cluster.address, "--boxes", "2").split()


async def test_agents_are_found_and_a_killed_node_is_back_and_costs_no_answer(cluster: Cluster) -> None:
    (url,) = await asyncio.to_thread(start_agents, cluster)
    assert await asyncio.to_thread(start_agents, cluster) == [url]  # twice is once
    assert await asyncio.to_thread(cluster.discover) == [url]
    assert cluster.discover(SANDBOX_URLS="http://a, http://b") == ["http://a", "http://b"]

    pid = node_pid(url)
    answered: list[str] = []
    async with SandboxClient([url]) as client:
        calls = [call(f"import time; time.sleep(0.2); print({number})", id=str(number)) for number in range(24)]
        async for execution in client.run_many(calls):
            assert execution.stdout == f"{execution.id}\n"
            if not answered:
                os.kill(pid, signal.SIGKILL)
            answered.append(execution.id)
    assert sorted(map(int, answered)) == list(range(24))
    assert node_pid(url) != pid


async def test_a_killed_agent_takes_its_node_along_and_is_started_anew(cluster: Cluster) -> None:
    (url,) = await asyncio.to_thread(start_agents, cluster)
    pid = node_pid(url)
    agent = int(Path(f"/proc/{pid}/status").read_text().partition("PPid:")[2].split()[0])
    os.kill(agent, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the node outlived its agent")
    (again,) = await asyncio.to_thread(start_agents, cluster)
    assert httpx.get(f"{again}/v1/health", timeout=10).json()["isolated"]
    async with SandboxClient([url], find_urls=cluster.discover) as client:  # it may listen somewhere else now
        assert (await client.run(call("print(6 * 7)"))).stdout == "42\n"


def test_without_agents_it_is_the_node_of_this_machine() -> None:
    """Outside a cluster Ray is not even imported."""
    code = "import sys; from trainer.cluster import *; print(*sandbox_urls()); assert 'ray' not in sys.modules"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SANDBOX_URLS"))}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "http://127.0.0.1:8088\n"
