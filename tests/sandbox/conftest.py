"""A real node for the tests marked runsc, and a fork-server without gVisor for those that need only its answers."""

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from contracts.execution import ExecutionCall, Limits

ROOT = Path(__file__).resolve().parent.parent.parent
START_S = 60.0


def call(
    code: str,
    *,
    stdin: str = "",
    seed: int | None = None,
    id: str = "t",
    history: list[str] | None = None,
    **limits: Any,
) -> ExecutionCall:
    """A call with some limits changed."""
    return ExecutionCall(id=id, code=code, stdin=stdin, seed=seed, history=history or [], limits=Limits(**limits))


@dataclass
class RunningNode:
    """A node in a process of its own."""

    url: str
    process: subprocess.Popen[str]
    state_dir: Path

    def sentries(self) -> list[int]:
        """Pids of the sandbox kernels of this node, and of nothing else."""
        found = []
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    words = (entry / "cmdline").read_bytes().split(b"\0")
                except OSError:
                    continue
                if words[0] == b"runsc-sandbox" and any(str(self.state_dir).encode() in word for word in words):
                    found.append(int(entry.name))
        return found

    def health(self) -> dict[str, Any]:
        """What GET /v1/health says."""
        return httpx.get(f"{self.url}/v1/health", timeout=10).raise_for_status().json()


def start_node(state_dir: Path, *arguments: str, port: int = 0, **environ: str) -> RunningNode:
    """Start a node and wait until it answers; its last words are the failure message."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(("127.0.0.1", port))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "sandbox", "serve", "--port", str(port), "--state-dir", str(state_dir), *arguments]
    state_dir.mkdir(parents=True, exist_ok=True)
    with (state_dir / "node.log").open("w") as log:
        process = subprocess.Popen(argv, cwd=ROOT, stderr=log, text=True, env={**os.environ, **environ})
    node = RunningNode(f"http://127.0.0.1:{port}", process, state_dir)
    give_up = time.monotonic() + START_S
    while time.monotonic() < give_up and process.poll() is None:
        try:
            node.health()
            return node
        except httpx.TransportError:
            time.sleep(0.05)
    process.kill()
    process.wait()
    raise RuntimeError(f"the node did not start: {(state_dir / 'node.log').read_text()}")


def stop_node(node: RunningNode) -> None:
    """As Ctrl-C does."""
    if node.process.poll() is None:
        node.process.terminate()
        node.process.wait(10)


def runscs() -> list[str]:
    """The runsc on PATH ("") and, where `make test` could get it, a newer one."""
    newer = ROOT / ".venv/runsc-newer/runsc"
    return ["", *([str(newer)] if newer.exists() else [])]


def require_runsc() -> None:
    """Skip where gVisor is missing, but never in CI."""
    if shutil.which("runsc") is None:
        if os.environ.get("CI"):
            pytest.fail("CI runs the sandbox tests on real gVisor: install runsc", pytrace=False)
        pytest.skip("runsc is not installed")


@pytest.fixture(scope="session")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """One node for the session; tests leave it able to answer."""
    require_runsc()
    running = start_node(tmp_path_factory.mktemp("node"), "--boxes", "4")  # two of them light
    yield running
    stop_node(running)


class ForkServer:
    """The guest as a plain child process: frames without gVisor."""

    def __init__(self, work_dir: Path) -> None:
        argv = [sys.executable, "-m", "sandbox.guest.forkserver", "light", "plain", str(work_dir)]
        self._process = subprocess.Popen(
            argv, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0, start_new_session=True
        )
        assert self._receive()["kind"] == "hello"
        assert self._receive()["kind"] == "ready"

    def run(self, code: str, **fields: Any) -> dict[str, Any]:
        """The result frame for a program."""
        body = call(code, **fields).model_dump_json().encode()
        self._process.stdin.write(struct.pack(">I", len(body)) + body)
        result = self._receive()
        assert self._receive() == {"kind": "ready", "tainted": ""}
        return result

    def _receive(self) -> dict[str, Any]:
        (length,) = struct.unpack(">I", self._exactly(4))
        return json.loads(self._exactly(length))

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            chunk = self._process.stdout.read(count - len(data))
            assert chunk, "the fork-server is gone"
            data += chunk
        return data

    def close(self) -> None:
        """End of input ends it."""
        self._process.stdin.close()
        self._process.wait(5)
        self._process.stdout.close()


@pytest.fixture(scope="session")
def fork_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ForkServer]:
    """A fork-server without isolation: what a program's answer looks like does not depend on gVisor."""
    server = ForkServer(tmp_path_factory.mktemp("work"))
    yield server
    server.close()
