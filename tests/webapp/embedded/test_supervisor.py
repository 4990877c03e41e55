"""The supervisor on real children: order, restart, stop, and nothing left behind."""

import io
import os
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable

import psutil
import pytest
from honcho.printer import Printer

from webapp.embedded.supervisor import MARK, Service, StartFailed, Supervisor

SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(600)"]


@pytest.fixture
def make():
    """Supervisors of this test; whatever it does, they are stopped."""
    made: list[Supervisor] = []

    def build(*services: Service) -> tuple[Supervisor, io.StringIO]:
        out = io.StringIO()
        supervisor = Supervisor(services, instance=uuid.uuid4().hex, log=Printer(out, colour=False))
        made.append(supervisor)
        return supervisor, out

    yield build
    for supervisor in made:
        supervisor.stop_all()


def marked(supervisor: Supervisor) -> list[psutil.Process]:
    mine = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == supervisor._instance and process.status() != psutil.STATUS_ZOMBIE:
                mine.append(process)
        except (psutil.NoSuchProcess, psutil.AccessDenied):
            continue
    return mine


def run_until(supervisor: Supervisor, done: Callable[[], bool]) -> None:
    """The supervisor's loop in this thread, ended by a watcher once `done` holds (or after a minute)."""

    def watch() -> None:
        pause = threading.Event()
        for _ in range(600):
            if done():
                break
            pause.wait(0.1)
        supervisor.request_stop()

    threading.Thread(target=watch, daemon=True).start()
    supervisor.run()


def test_a_service_waits_for_those_it_needs(make):
    supervisor, out = make(Service("second", SLEEP, after=("first",)), Service("first", SLEEP))
    order: list[str] = []
    supervisor.start_all(order.append)
    assert order == ["first", "second"]
    assert "first is ready" in out.getvalue()


def test_one_that_ends_while_starting_is_named(make):
    supervisor, _ = make(Service("broken", [sys.executable, "-c", "raise SystemExit(3)"], ready=lambda: False))
    with pytest.raises(StartFailed, match="broken ended with code 3"):
        supervisor.start_all(lambda _: None)


def test_one_that_never_answers_is_named(make):
    supervisor, _ = make(Service("mute", SLEEP, ready=lambda: False, ready_within_s=0.5))
    with pytest.raises(StartFailed, match="mute did not answer within"):
        supervisor.start_all(lambda _: None)


def test_a_dead_child_is_reported_and_started_again(make):
    supervisor, out = make(Service("child", SLEEP))
    supervisor.start_all(lambda _: None)
    first = supervisor._children["child"].pid
    os.kill(first, 9)
    run_until(supervisor, lambda: supervisor._children["child"].pid not in (first, None))
    assert "child ended with code -9; restart in 1 s" in out.getvalue()


def test_a_quiet_child_speaks_when_it_dies(make):
    code = "import sys, time; print('last words', flush=True); sys.stdin.read() if False else time.sleep(0.2)"
    supervisor, out = make(Service("quiet", [sys.executable, "-c", code], quiet=True))
    supervisor.start_all(lambda _: None)
    run_until(supervisor, lambda: "quiet ended" in out.getvalue())
    assert "last words" in out.getvalue()


def test_stop_leaves_nothing_behind(make):
    # a grandchild in a session of its own survives its parent: the sweep finds it by the mark
    daemon = (
        "import subprocess, sys, time;"
        "subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True);"
        "time.sleep(600)"
    )
    supervisor, _ = make(Service("parent", [sys.executable, "-c", daemon]))
    supervisor.start_all(lambda _: None)
    run_until(supervisor, lambda: len(marked(supervisor)) == 2)
    supervisor.stop_all()
    assert marked(supervisor) == []


def test_a_taken_port_is_one_clear_sentence(tmp_path):
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        env = {**os.environ, "ASTROLABE_VAR": str(tmp_path / "v"), "DJANGO_SETTINGS_MODULE": "webapp.settings"}
        done = subprocess.run(
            [sys.executable, "manage.py", "up", "--port", str(port)], capture_output=True, text=True, env=env
        )
    assert done.returncode == 1
    assert done.stderr.strip() == (
        f"CommandError: port {port} is taken by another program: stop it, or run with ASTROLABE_PORT={port + 1}"
    )
