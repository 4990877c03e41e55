"""Node agents on a real Ray cluster of this machine, with its token, and real gVisor behind them."""

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from sandbox.client import SandboxClient
from tests.sandbox.conftest import ROOT, call
from tests.sandbox.ray_cluster import Cluster, nodes_of, running_cluster, wait_until

pytestmark = [pytest.mark.runsc, pytest.mark.integration]


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


def node_pid(url: str) -> int:
    (pid,) = nodes_of(url.rsplit(":", 1)[1])
    return pid


async def test_agents_are_found_and_a_killed_node_is_back_and_costs_no_answer(cluster: Cluster) -> None:
    (url,) = await asyncio.to_thread(cluster.start_agents)
    assert await asyncio.to_thread(cluster.start_agents) == [url]  # twice is once
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
    (url,) = await asyncio.to_thread(cluster.start_agents)
    pid = node_pid(url)
    agent = int(Path(f"/proc/{pid}/status").read_text().partition("PPid:")[2].split()[0])
    os.kill(agent, signal.SIGKILL)
    wait_until(lambda: not Path(f"/proc/{pid}").exists(), "the node outlived its agent")
    (again,) = await asyncio.to_thread(cluster.start_agents)
    assert httpx.get(f"{again}/v1/health", timeout=10).json()["isolated"]
    async with SandboxClient([url], find_urls=cluster.discover) as client:  # it may listen somewhere else now
        assert (await client.run(call("print(6 * 7)"))).stdout == "42\n"


async def test_an_agent_whose_port_is_taken_is_started_anew_elsewhere(cluster: Cluster) -> None:
    (url,) = await asyncio.to_thread(cluster.start_agents)
    host, port = url.removeprefix("http://").rsplit(":", 1)
    os.kill(node_pid(url), signal.SIGKILL)
    with socket.socket() as thief:
        thief.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        wait_until(lambda: _took(thief, host, int(port)), "the port of a dead node was never free")
        wait_until(lambda: cluster.discover() not in ([], [url]), "the agent kept its old URL")
        (again,) = await asyncio.to_thread(cluster.start_agents)
        assert again != url
        assert httpx.get(f"{again}/v1/health", timeout=10).json()["isolated"]


def _took(thief: socket.socket, host: str, port: int) -> bool:
    try:
        thief.bind((host, port))
    except OSError:
        return False
    thief.listen()
    return True


def test_without_agents_it_is_the_node_of_this_machine() -> None:
    """Outside a cluster Ray is not even imported."""
    code = "import sys; from trainer.cluster import *; print(*sandbox_urls()); assert 'ray' not in sys.modules"
    environ = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "SANDBOX_URLS"))}
    ran = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=environ, capture_output=True, text=True, check=True
    )
    assert ran.stdout == "http://127.0.0.1:8088\n"
