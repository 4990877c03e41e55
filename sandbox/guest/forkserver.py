"""The fork-server of a box, its PID 1: imports once, then answers each call by forking a fresh process.

Usage: python -m sandbox.guest.forkserver TIER box|plain WORK_DIR

Frames are a big-endian length and JSON, on what were fd 0 and 1. In: one request. Out, in this order:
`hello` once, `ready` when the next request may come, `result`, `ready`, ... In mode `plain` (no gVisor) it is
not PID 1 of anything: then it may neither kill(-1) nor wipe /tmp.

It imports as little as it can: the pages of whatever is imported here are copied again and again by forking.
"""

import contextlib
import json
import os
import resource
import select
import signal
import sys
import time
from typing import Any, NamedTuple, NoReturn

from sandbox.guest import folders, memory, pipes, preload, processes, program
from sandbox.guest.output import HeadTail
from sandbox.guest.stream import SharedMemory

SOFT_GRACE_S = 0.2  # between the signal that raises in the program and the one that kills it
WHERE_PATIENCE_S = 0.02
CPU_SLACK_S = 0.3  # the soft signal comes first, and a spare has warmed itself up
SWEEP_GIVE_UP_S = 1.0
MEMORY_CHECK_S = 0.1
SPARE_PATIENCE_MS = 5  # a spare that is asked at once does not warm itself up first
NOT_STARTED = "not_started"  # the status of a child that failed before the program's first line: our failure
HARD_OUTPUT_FACTOR = 16  # a program is killed at this many times the output that is kept
PR_SET_CHILD_SUBREAPER = 36
WIPED = ("/tmp", "/dev/shm")  # noqa: S108 - the box's own tmpfs


class Child(NamedTuple):
    """A forked process and our ends of its pipes; the request may still be to come."""

    pid: int
    request_fd: int
    out_fd: int
    err_fd: int


class Ending(NamedTuple):
    """How the child ended: what we did to it (`cause`), and what the kernel says."""

    cause: str | None
    wait_status: int
    usage: resource.struct_rusage


class ForkServer:
    """The loop of PID 1 and what it keeps between calls."""

    def __init__(self, tier: str, *, is_box: bool, work_dir: str) -> None:
        self._tier = tier
        self._is_box = is_box
        self._work_dir = work_dir
        self._in_fd, self._reply_fd = pipes.hide_frame_pipes()
        self._wake_fd, self._wake_write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.set_wakeup_fd(self._wake_write_fd, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        program.prepare()
        self._stamps: dict[str, tuple[int, ...]] = {}
        self._clean()
        self._shared = SharedMemory()
        self._started_fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._unread_starts = 0  # programs that should have said on it that they start, and were not counted yet
        self._base_vm = 0
        self._memory: memory.MemoryMeter | None = None

    def serve(self) -> NoReturn:
        """Import, warm up, then answer until the host closes the pipe."""
        started = time.perf_counter()
        preload.import_tier(self._tier)
        for _ in range(2):
            preload.run_snippet(program.execute, self._shared)
        preload.freeze()
        self._base_vm = _address_space()
        if self._is_box:
            self._memory = memory.MemoryMeter.measure(lambda: preload.run_snippet(program.execute, self._shared))
        self._send({"kind": "hello", "import_s": time.perf_counter() - started})
        self._send({"kind": "ready", "tainted": ""})
        wants_spare = True
        while True:
            spare = self._fork() if wants_spare else None
            body = self._read_frame()
            request = json.loads(body)
            result = self._answer(spare, body, request)
            is_clean = not self._changed_folders()
            self._send({"kind": "result", "is_ready": is_clean, **result})
            if not is_clean:
                self._send({"kind": "ready", "tainted": self._clean()})
            wants_spare = request.get("spare", True)

    def _answer(self, spare: Child | None, body: bytes, request: dict[str, Any]) -> dict[str, Any]:
        started = time.perf_counter()
        limits = request["limits"]
        child = spare or self._fork(request)
        self._unread_starts += 1
        warmed_s = 0.0
        if spare:
            warmed_s = processes.cpu_s(child.pid)  # spent before there was a call
            self._hand_over(child, body)
        keep = int(limits["output_kb"]) * 1024
        streams = {child.out_fd: HeadTail(keep), child.err_fd: HeadTail(keep)}
        ending = self._supervise(child, limits, streams, started)
        exec_s = time.perf_counter() - started
        swept = self._sweep()
        pipes.empty(self._wake_fd)  # or the next call would begin with the end of this one
        for number, (fd, stream) in enumerate(streams.items()):
            pipes.drain(fd, stream, limit=stream.total + keep)
            stream.feed(self._shared.take(number))  # what it had not come to write
            os.close(fd)
        self._shared.wipe()
        out, err = streams[child.out_fd], streams[child.err_fd]
        verdict = _describe(ending, limits, printed=max(out.total, err.total))
        if verdict["status"] != "ok" and not self._was_started():
            verdict["status"] = NOT_STARTED
        return {
            **verdict,
            "stdout": out.text(),
            "stderr": _without_our_frames(err.text()) if ending.cause else err.text(),
            "stdout_bytes": out.total,
            "stderr_bytes": err.total,
            "truncated": out.truncated or err.truncated,
            "exec_ms": exec_s * 1000,
            "cpu_ms": max(0.0, ending.usage.ru_utime + ending.usage.ru_stime - warmed_s) * 1000,
            "max_rss_kb": ending.usage.ru_maxrss,
            "swept": swept,
        }

    def _was_started(self) -> bool:
        """True when the child came to the program's first line. Asked only of those that failed."""
        expected, self._unread_starts = self._unread_starts, 0
        try:
            return os.eventfd_read(self._started_fd) == expected
        except BlockingIOError:
            return False

    def _fork(self, request: dict[str, Any] | None = None) -> Child:
        """Fork the child of a call. A spare, forked before there is one, warms itself up while it waits for it."""
        request_r, request_w = (-1, -1) if request else os.pipe()
        out_r, out_w = os.pipe()
        err_r, err_w = os.pipe()
        pid = os.fork()
        if pid == 0:
            if request_w >= 0:
                os.close(request_w)  # or it would wait for its own end of the request
            self._be_child(request, request_r, out_w, err_w)
        for fd in (request_r, out_w, err_w):
            if fd >= 0:
                os.close(fd)
        for fd in (out_r, err_r):
            os.set_blocking(fd, False)
        return Child(pid, request_w, out_r, err_r)

    def _be_child(self, request: dict[str, Any] | None, request_fd: int, out_fd: int, err_fd: int) -> NoReturn:
        try:
            signal.set_wakeup_fd(-1)
            program.run(
                request or self._await_request(request_fd),
                out_fd=out_fd,
                err_fd=err_fd,
                started_fd=self._started_fd,
                shared=self._shared,
                work_dir=self._work_dir,
                base_vm=self._base_vm,
                is_box=self._is_box,
            )
        except BaseException:  # noqa: BLE001 - a child must never return into the loop of the fork-server
            with contextlib.suppress(BaseException):
                os.write(pipes.open_fd(err_fd, 2), program.traceback.format_exc().encode("utf-8", "backslashreplace"))
            program.end_now(1)

    def _await_request(self, request_fd: int) -> dict[str, Any]:
        """The request that a spare child is given in the end."""
        poll = select.poll()
        poll.register(request_fd, select.POLLIN)
        if not poll.poll(SPARE_PATIENCE_MS):
            preload.run_snippet(program.execute, self._shared)
        parts = []
        while part := os.read(request_fd, pipes.READ_BYTES):
            parts.append(part)
        return dict(json.loads(b"".join(parts)))

    def _hand_over(self, child: Child, body: bytes) -> None:
        with contextlib.suppress(BrokenPipeError):  # it died: the wait status will say so
            view = memoryview(body)
            while view:
                view = view[os.write(child.request_fd, view) :]
        os.close(child.request_fd)

    def _supervise(self, child: Child, limits: dict[str, Any], streams: dict[int, HeadTail], started: float) -> Ending:
        """Read its output, watch its limits, return when it is dead. Its end counts, not that of the pipes."""
        hard_output = _hard_output(limits)
        deadline = started + float(limits["wall_s"])
        check_at = started + MEMORY_CHECK_S  # by the clock: a program that never stops printing is looked at too
        cause: str | None = None
        poll = select.poll()
        for fd in (*streams, self._wake_fd):
            poll.register(fd, select.POLLIN)
        while True:
            left = deadline - time.perf_counter()
            if left <= 0:
                if cause is not None:
                    break
                cause, deadline = "timeout", deadline + SOFT_GRACE_S
                processes.signal_one(child.pid, signal.SIGUSR1)
                continue
            events = poll.poll(min(left, MEMORY_CHECK_S) * 1000 + 1)
            self._read(events, streams, poll, hard_output)
            if any(stream.total > hard_output for stream in streams.values()):
                cause = "output_limit"
                break
            pid, status, usage = os.wait4(child.pid, os.WNOHANG)
            if pid:
                return Ending(cause, status, usage)
            if cause is None and time.perf_counter() >= check_at:
                check_at = time.perf_counter() + MEMORY_CHECK_S
                cause = self._overdrawn(child, limits)
                if cause is not None:
                    break
        if cause in ("timeout", "cpu_limit"):
            self._ask_where(child, streams, poll, hard_output)
        processes.signal_one(child.pid, signal.SIGKILL)
        _, status, usage = os.wait4(child.pid, 0)
        return Ending(cause, status, usage)

    def _read(self, events: list[tuple[int, int]], streams: dict[int, HeadTail], poll: select.poll, limit: int) -> None:
        for fd, _ in events:
            if fd == self._wake_fd:
                pipes.empty(fd)
            elif not pipes.drain(fd, streams[fd], limit=limit):
                poll.unregister(fd)

    def _ask_where(self, child: Child, streams: dict[int, HeadTail], poll: select.poll, limit: int) -> None:
        """A program that the soft signal did not reach (it hangs in C) says where it hangs before it is killed."""
        processes.signal_one(child.pid, program.WHERE_SIGNAL)
        give_up = time.perf_counter() + WHERE_PATIENCE_S
        while (left := give_up - time.perf_counter()) > 0:
            self._read(poll.poll(left * 1000), streams, poll, limit)

    def _overdrawn(self, child: Child, limits: dict[str, Any]) -> str | None:
        """The limit that the call is past although the kernel did not stop it."""
        # RLIMIT_AS holds one process; this holds all processes and files of the call together.
        if self._memory and self._memory.is_over(int(limits["memory_mb"])):
            return "memory"
        return "cpu_limit" if processes.cpu_s(child.pid) > float(limits["cpu_s"]) + CPU_SLACK_S else None

    def _sweep(self) -> bool:
        """Kill whatever the call left behind. False: something would not die, and the box must go.

        kill(-1) is not atomic against fork() in gVisor: one pass is not enough.
        """
        give_up = time.perf_counter() + SWEEP_GIVE_UP_S
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return True
            if pid:
                continue
            if time.perf_counter() > give_up:
                return False
            if self._is_box:
                processes.signal_one(-1, signal.SIGKILL)
            else:
                for orphan in processes.own_children():
                    processes.signal_one(orphan, signal.SIGKILL)
            time.sleep(0.001)

    def _changed_folders(self) -> list[str]:
        """The places a program can write to that are not as they were when they were last emptied.

        Any entry that comes, goes or changes its name moves a folder's time of change, which no program can set.
        """
        if not self._is_box:
            return [self._work_dir]
        return [top for top in (*WIPED, self._work_dir) if self._stamps.get(top) != folders.stamp(top)]

    def _clean(self) -> str:
        """Empty every place a program has written to; the reason to replace the box, or ""."""
        left = [path for top in self._changed_folders() for path in folders.empty(top, but=self._work_dir)]
        os.makedirs(self._work_dir, exist_ok=True)  # root's, in a box: a program can neither remove nor mark it
        os.chmod(self._work_dir, 0o777 if self._is_box else 0o700)
        self._stamps = {top: folders.stamp(top) for top in (*WIPED, self._work_dir)}
        return f"files left behind: {left[:3]}" if left else ""

    def _send(self, message: dict[str, Any]) -> None:
        body = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
        view = memoryview(len(body).to_bytes(4, "big") + body)
        while view:
            view = view[os.write(self._reply_fd, view) :]

    def _read_frame(self) -> bytes:
        """The next frame; the host sends one at a time, so that most take one system call."""
        data = self._read_some()
        while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
            data += self._read_some()
        return data[4:]

    def _read_some(self) -> bytes:
        data = os.read(self._in_fd, pipes.READ_BYTES)
        if not data:
            os._exit(0)
        return data


def _hard_output(limits: dict[str, Any]) -> int:
    """Bytes on one stream at which a program is killed."""
    return int(limits["output_kb"]) * 1024 * HARD_OUTPUT_FACTOR


def _describe(ending: Ending, limits: dict[str, Any], printed: int) -> dict[str, Any]:
    """The status and its numbers, from the cause we know and the wait status."""
    status = ending.wait_status
    number = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    exit_code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
    cpu_s = ending.usage.ru_utime + ending.usage.ru_stime
    name = ending.cause or ("output_limit" if printed > _hard_output(limits) else None)
    if name is None and number in (program.DIED_OF_MEMORY, program.DIED_OF_CPU):
        name = "memory" if number == program.DIED_OF_MEMORY else "cpu_limit"
        number, exit_code = None, 1
    elif name is None and (number == signal.SIGXCPU or (number == signal.SIGKILL and cpu_s > limits["cpu_s"])):
        name = "cpu_limit"
    elif name is None:
        name = "signal" if number is not None else "ok" if exit_code == 0 else "error"
    return {"status": name, "exit_code": exit_code, "signal": number}


def _without_our_frames(text: str) -> str:
    """What `WHERE_SIGNAL` printed names the runner's own files too."""
    folder = os.path.dirname(__file__)
    return "".join(line for line in text.splitlines(keepends=True) if f'  File "{folder}/' not in line)


def _address_space() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def main() -> NoReturn:
    """Entry point; the arguments are the host's, not a user's."""
    tier, mode, work_dir = sys.argv[1:4]
    is_box = mode == "box" and os.getpid() == 1
    if not is_box:
        import ctypes  # not in a box, where every page of an import is copied at every call

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ForkServer(tier, is_box=is_box, work_dir=work_dir).serve()


if __name__ == "__main__":
    main()
