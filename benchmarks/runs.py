"""Runs of the real trainer for a benchmark: a sandbox node of their own, one command a run, the journal read back."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import httpx

from contracts.events import Event


@contextmanager
def sandbox_node(state_dir: Path) -> Iterator[None]:
    """A node on a free port, which the runs started meanwhile use."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    argv = [sys.executable, "-m", "sandbox", "serve", "--port", str(port), "--state-dir", str(state_dir)]
    node = subprocess.Popen(argv)
    try:
        _wait_ready(f"http://127.0.0.1:{port}/v1/health", node)
        os.environ["SANDBOX_URLS"] = f"http://127.0.0.1:{port}"
        yield
    finally:
        node.terminate()
        node.wait(20)


def train(recipe: Path | str, out: Path, extra: Sequence[str] = ()) -> list[Event]:
    """Run a recipe into `out` and return its journal; one that is there is gone on with, a finished one only read."""
    argv = [sys.executable, "-m", "trainer", "run", str(recipe), "--out", str(out), "--resume", *extra]
    subprocess.run(argv, check=True)
    return read_journal(out)


def read_journal(out: Path) -> list[Event]:
    """The events of a run, in the order they were written."""
    return [Event.model_validate_json(line) for line in (out / "events.jsonl").read_text().splitlines()]


def _wait_ready(url: str, node: subprocess.Popen[bytes]) -> None:
    """Until the node answers; it ends the benchmark when the node ends."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if node.poll() is not None:
            raise SystemExit("the sandbox node ended; its lines are above")
        try:
            if httpx.get(url, timeout=1).is_success:
                return
        except httpx.HTTPError:
            time.sleep(0.2)
    raise SystemExit("the sandbox node did not answer within 60 s")
