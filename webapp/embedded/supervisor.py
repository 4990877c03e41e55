"""One supervisor for the embedded set: starts children in dependency order, names their log lines,
restarts one that dies and says so, stops all on Ctrl-C and leaves nothing behind.

Honcho gives the child runner and the line printer; order, probes, restarts and the last sweep are ours
(honcho's own manager ends everything when one child ends).
"""

import contextlib
import os
import queue
import signal
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime

import psutil
from honcho.colour import get_colours
from honcho.printer import Message, Printer
from honcho.process import Process

MARK = "ASTROLABE_INSTANCE"  # in the environment of every child: what the last sweep looks for
SWEEP_WAIT_S = 5.0  # a process that was killed goes when the kernel comes to it
STOP_WAIT_S = 20.0
RESTART_WAIT_S = (1.0, 2.0, 5.0, 10.0, 30.0)
STABLE_S = 60.0
MAX_RESTARTS = 8
QUIET_LINES = 40


class StartFailed(Exception):
    """A service did not come up: the message says which and what to do."""


@dataclass(frozen=True)
class Service:
    """One child. `ready` is polled until true; `after` names services that must be ready first."""

    name: str
    command: list[str]
    env: dict[str, str] = field(default_factory=dict)
    ready: Callable[[], bool] | None = None
    ready_within_s: float = 60.0
    after: tuple[str, ...] = ()
    stop_signal: signal.Signals = signal.SIGTERM
    quiet: bool = False  # its lines are shown only when it dies


@dataclass
class _Child:
    service: Service
    process: Process | None = None
    pid: int | None = None
    returncode: int | None = None
    started_at: float = 0.0
    restarts: int = 0
    restart_at: float | None = None
    is_ready: bool = False
    last_lines: deque[Message] = field(default_factory=lambda: deque(maxlen=QUIET_LINES))


class Supervisor:
    """Runs services until `stop` is called or a signal arrives."""

    def __init__(self, services: Iterable[Service], *, instance: str, log: Printer | None = None) -> None:
        self._children = {s.name: _Child(s) for s in services}
        self._instance = instance
        self._events: queue.Queue[Message] = queue.Queue()
        self._printer = log or Printer(sys.stdout)
        self._printer.width = max(len(n) for n in [*self._children, "astrolabe"])
        self._colours = get_colours()
        self._colour = {name: next(self._colours) for name in self._children}
        self._stopping = threading.Event()

    def say(self, text: str) -> None:
        """One line of the supervisor's own."""
        now = datetime.now().astimezone()
        self._printer.write(Message(type="line", data=text + "\n", time=now, name="astrolabe", colour=None))

    def start_all(self, on_ready: Callable[[str], None]) -> None:
        """Start every service as soon as those it waits for are ready; StartFailed when one does not come up.

        `on_ready` gets the name of each that answers.
        """
        waiting = set(self._children)
        while waiting and not self._stopping.is_set():
            for name in sorted(waiting):
                child = self._children[name]
                if child.pid is None and all(self._children[a].is_ready for a in child.service.after):
                    self._launch(child)
                if child.pid is not None and self._check_ready(child):
                    waiting.discard(name)
                    on_ready(name)
            self._drain(0.05)

    def run(self, *, on_tick: Callable[[], None] | None = None) -> None:
        """Stream logs and restart the dead until stopped."""
        next_tick = 0.0
        while not self._stopping.is_set():
            self._drain(0.2)
            self._restart_dead()
            if on_tick and time.monotonic() > next_tick:
                on_tick()
                next_tick = time.monotonic() + 2.0

    def request_stop(self, *_: object) -> None:
        """Signal handler: the loop ends at its next turn."""
        self._stopping.set()

    @property
    def is_stopping(self) -> bool:
        return self._stopping.is_set()

    def stop_all(self) -> None:
        """Ask every child to end in reverse order of dependence, kill what does not, sweep what is left."""
        self._stopping.set()
        alive = [c for c in self._children.values() if c.pid is not None and c.returncode is None]
        needed_by: dict[str, set[str]] = {n: set() for n in self._children}
        for child in alive:
            for name in child.service.after:
                needed_by[name].add(child.service.name)
        deadline = time.monotonic() + STOP_WAIT_S
        asked: set[str] = set()
        while alive and time.monotonic() < deadline:
            running = {c.service.name for c in alive}
            for child in alive:
                if child.service.name not in asked and not (needed_by[child.service.name] & running):
                    self._signal(child, child.service.stop_signal)
                    asked.add(child.service.name)
            self._drain(0.05)
            alive = [c for c in alive if c.returncode is None]
        for child in alive:
            self.say(f"{child.service.name} did not stop in {STOP_WAIT_S:.0f} s: killed")
            self._signal(child, signal.SIGKILL)
        self._drain(0.2)
        self._sweep()

    def _launch(self, child: _Child) -> None:
        service = child.service
        env = {**os.environ, **service.env, MARK: self._instance}
        child.process = Process(service.command, name=service.name, colour=self._colour[service.name], env=env)
        child.process._child_ctor = _popen_list
        child.pid, child.returncode, child.is_ready, child.restart_at = None, None, False, None
        child.started_at = time.monotonic()
        threading.Thread(target=child.process.run, args=(self._events,), daemon=True, name=service.name).start()
        while child.pid is None and child.returncode is None:
            self._drain(0.05)

    def _check_ready(self, child: _Child) -> bool:
        service = child.service
        if child.returncode is not None:
            raise StartFailed(f"{service.name} ended with code {child.returncode} while starting; its lines are above")
        if service.ready is None or service.ready():
            child.is_ready = True
            self.say(f"{service.name} is ready after {time.monotonic() - child.started_at:.1f} s")
            return True
        if time.monotonic() - child.started_at > service.ready_within_s:
            raise StartFailed(f"{service.name} did not answer within {service.ready_within_s:.0f} s")
        return False

    def _restart_dead(self) -> None:
        now = time.monotonic()
        for child in self._children.values():
            if child.returncode is None:
                if child.restarts and now - child.started_at > STABLE_S:
                    child.restarts = 0
                continue
            if child.restart_at is None and child.restarts < MAX_RESTARTS:
                wait = RESTART_WAIT_S[min(child.restarts, len(RESTART_WAIT_S) - 1)]
                child.restart_at, child.restarts = now + wait, child.restarts + 1
                self.say(f"{child.service.name} ended with code {child.returncode}; restart in {wait:.0f} s")
                if child.restarts == MAX_RESTARTS:
                    self.say(f"{child.service.name} died {MAX_RESTARTS} times: this was the last restart")
            elif child.restart_at is not None and now >= child.restart_at:
                self._launch(child)

    def _drain(self, timeout_s: float) -> None:
        try:
            message = self._events.get(timeout=timeout_s)
            while True:
                self._handle(message)
                message = self._events.get_nowait()
        except queue.Empty:
            return

    def _handle(self, message: Message) -> None:
        child = self._children[message.name]
        match message.type:
            case "line" if child.service.quiet:
                child.last_lines.append(message)
            case "line":
                self._printer.write(message)
            case "start":
                child.pid = message.data["pid"]
            case "stop":
                child.returncode = message.data["returncode"]
                if not self._stopping.is_set():
                    for line in child.last_lines:
                        self._printer.write(line)

    def _signal(self, child: _Child, number: signal.Signals) -> None:
        if child.pid is None or child.returncode is not None:
            return
        with contextlib.suppress(ProcessLookupError):
            if number == signal.SIGKILL:
                os.killpg(child.pid, number)  # each child leads a session of its own
            else:
                os.kill(child.pid, number)

    def _sweep(self) -> None:
        """Kill whatever still carries this instance's mark, grandchildren that left their group, until nothing does."""
        deadline, told = time.monotonic() + SWEEP_WAIT_S, set[psutil.Process]()
        while left := [p for p in psutil.process_iter() if p.pid != os.getpid() and _mark_of(p) == self._instance]:
            for process in left:
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process not in told:
                        self.say(f"sweeping {process.name()} (pid {process.pid})")
                        told.add(process)
                    process.kill()
            if time.monotonic() > deadline:
                return
            psutil.wait_procs(left, timeout=0.1)


def _popen_list(cmd: list[str], **kwargs: object) -> object:
    from honcho.process import Popen

    return Popen(cmd, shell=False, **kwargs)


def _mark_of(process: psutil.Process) -> str | None:
    try:
        return process.environ().get(MARK)
    except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
        return None
