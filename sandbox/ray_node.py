"""Sandbox nodes on a Ray cluster: one agent actor per Ray node that has the resource `sandbox`.

The agent starts `python -m sandbox serve` as a child, starts it anew when it dies, and says where it listens. Calls
do not pass through Ray: clients find agents by name and talk HTTP to their nodes. A node dies with its agent.
"""

import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import httpx
import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from sandbox.launcher import die_with_parent

NAMESPACE = "astrolabe"
NAME_PREFIX = "sandbox-"
RESOURCE = "sandbox"
PROJECT = Path(__file__).resolve().parent.parent
FIRST_PAUSE_S = 1.0  # before a node that died is started again; doubled while it keeps dying early
MAX_PAUSE_S = 30.0
EARLY_S = 60.0
START_S = 180.0  # the first start on a machine builds the root of its boxes
MAX_STARTS = 3  # without one answer
EXIT_STATUS = 75  # of an agent whose port another program has taken


class NodeAgent:
    """Keeps one sandbox node alive on the machine it runs on, listening on the address Ray knows that machine by."""

    def __init__(self, host: str, boxes: int) -> None:
        node_id = ray.get_runtime_context().get_node_id()
        self._host = host
        self._port = _free_port(host)
        self._boxes = boxes
        self._state_dir = Path(tempfile.gettempdir()) / f"astrolabe-{NAME_PREFIX}{node_id[:16]}"
        self._starts = 0
        # The node's death signal follows the thread that started it, so one thread starts it each time and never ends.
        threading.Thread(target=self._keep, name="sandbox-node", daemon=True).start()

    def __repr__(self) -> str:
        """Ray's dashboard keeps it as the actor's `repr_name`, where the web app reads it."""
        return self.url()

    def url(self) -> str:
        """Where the node listens, also after a restart of the node: the same while the agent lives."""
        return f"http://{self._host}:{self._port}"

    def health(self) -> dict[str, Any]:
        """What GET /v1/health says; {} while the node does not answer."""
        try:
            token = os.environ.get("SANDBOX_TOKEN", "")
            headers = {"authorization": f"Bearer {token}"} if token else {}
            reply = httpx.get(f"{self.url()}/v1/health", headers=headers, timeout=5, trust_env=False)
            return dict(reply.raise_for_status().json())
        except httpx.HTTPError:
            return {}

    def wait_ready(self) -> str:
        """The URL once the node answers; the end of its log when it does not."""
        give_up = time.monotonic() + START_S
        first = self._starts
        while not self.health():
            if time.monotonic() > give_up or self._starts - first >= MAX_STARTS:
                words = self._log_path.read_text(errors="replace").strip().splitlines()[-3:]
                raise RuntimeError(f"the sandbox node at {self.url()} does not answer: {'; '.join(words)}")
            time.sleep(0.1)
        return self.url()

    @property
    def _log_path(self) -> Path:
        return self._state_dir / "node.log"

    def _keep(self) -> None:
        self._state_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        pause_s = FIRST_PAUSE_S
        while _is_free(self._host, self._port):
            started = time.monotonic()
            process = self._start()
            self._starts += 1
            process.wait()
            pause_s = min(pause_s * 2, MAX_PAUSE_S) if time.monotonic() - started < EARLY_S else FIRST_PAUSE_S
            time.sleep(pause_s)
        os._exit(EXIT_STATUS)  # Ray starts the agent anew, with another port and the URL that everybody is told

    def _start(self) -> subprocess.Popen[bytes]:
        argv = [sys.executable, "-m", "sandbox", "serve", "--host", self._host, "--port", str(self._port)]
        argv += ["--boxes", str(self._boxes), "--state-dir", str(self._state_dir)]
        with self._log_path.open("ab") as log:
            return subprocess.Popen(
                argv,
                cwd=PROJECT,
                env={name: value for name, value in os.environ.items() if not name.startswith("RAY_")},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                preexec_fn=die_with_parent,  # noqa: PLW1509 - one system call
            )


def _free_port(host: str) -> int:
    with socket.socket() as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def _is_free(host: str, port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def start_agents(boxes: int = 0) -> tuple[list[str], list[str]]:
    """An agent on every Ray node with the resource, started where there is none: URLs that answer, and failures."""
    agents = [
        _start_agent(node["NodeID"], node["NodeManagerAddress"], boxes) for node in ray.nodes() if _has_resource(node)
    ]
    urls, failures = [], []
    for ready in [agent.wait_ready.remote() for agent in agents]:
        try:
            urls.append(str(ray.get(ready)))
        except ray.exceptions.RayTaskError as error:
            failures.append(str(error.cause))
        except ray.exceptions.RayError as error:
            failures.append(str(error))
    return urls, failures


def _has_resource(node: dict[str, Any]) -> bool:
    return bool(node["Alive"] and node["Resources"].get(RESOURCE, 0) >= 1)


def _start_agent(node_id: str, host: str, boxes: int) -> Any:
    options = {
        "name": f"{NAME_PREFIX}{node_id}",
        "namespace": NAMESPACE,
        "get_if_exists": True,
        "lifetime": "detached",
        "max_restarts": -1,
        "max_concurrency": 8,
        "num_cpus": 0,
        "resources": {RESOURCE: 1},
        "scheduling_strategy": NodeAffinitySchedulingStrategy(node_id, soft=False),
    }
    return ray.remote(NodeAgent).options(**options).remote(host, boxes)


def start_on_cluster(address: str, boxes: int) -> tuple[list[str], list[str]]:
    """Connect to the cluster and start the agents; its token is Ray's own affair (RAY_AUTH_TOKEN_PATH)."""
    environ = {"PYTHONPATH": str(PROJECT), **_forwarded()}
    ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, runtime_env={"env_vars": environ})
    try:
        return start_agents(boxes)
    finally:
        ray.shutdown()


def _forwarded() -> dict[str, str]:
    """What a node reads from its environment, from the one who starts it."""
    return {name: value for name, value in os.environ.items() if name.startswith("SANDBOX_") and name != "SANDBOX_URLS"}
