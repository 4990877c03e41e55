"""The child's side of a call: drop everything, take on the limits, run the program as `main.py`, die.

Nothing the program does can reach the pipe on which the fork-server answers: only the wait status and the two
output pipes lead out of here. Two verdicts that a wait status cannot tell by itself are given by dying of a
real-time signal; a program that forges one only lies about how it failed.
"""

import ast
import atexit
import builtins
import contextlib
import faulthandler
import gc
import io
import linecache
import os
import random
import re
import resource
import signal
import sys
import threading
import traceback
import types
from collections.abc import Iterator, Sequence
from typing import Any, NoReturn

from sandbox.guest.stream import SharedMemory, SharedText

FILE_NAME = "main.py"
OPEN_FDS = 1024  # a box has no more
UID = 10000
DIED_OF_MEMORY = signal.SIGRTMIN + 7
DIED_OF_CPU = signal.SIGRTMIN + 8
WHERE_SIGNAL = signal.SIGUSR2  # print where you hang, from C: for a program that the soft signal does not reach
MIB = 1 << 20
# A program is read from memory. Few need it as a file: to start anew, to look at itself, for tracebacks that C prints.
_WANTS_FILE = re.compile(r"__file__|__del__|main|thread|multiprocessing|concurrent|inspect|runpy|argv")
# Named, not searched for: to look at every name in sys.modules dirties a page for each, and to free a module more.
_OUR_MODULES = (
    "sandbox", "sandbox.guest", "sandbox.guest.box", "sandbox.guest.folders", "sandbox.guest.forkserver",
    "sandbox.guest.heap", "sandbox.guest.memory", "sandbox.guest.output", "sandbox.guest.pipes",
    "sandbox.guest.preload", "sandbox.guest.processes", "sandbox.guest.program", "sandbox.guest.stream",
)  # fmt: skip
_hidden: list[object] = []
# Our own names for them, whatever a program makes of `os`: an interpreter of a box must not finalize itself (heap.py).
end_now, send_signal = os._exit, os.kill
MEMORY_SLACK = 32 * MIB  # given back after a MemoryError so that its traceback can be printed
SHOWN_FRAMES = 2000  # of a traceback; more are cut in the middle before they cost memory and time
TOO_DEEP = "the program is nested too deeply to be compiled"
_BUILTINS = dict(vars(builtins))
ENVIRONMENT = {
    "PATH": "/usr/local/bin:/usr/bin:/bin",
    "LANG": "C.UTF-8",
    "TZ": "UTC",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
}


class TimeLimitExceeded(BaseException):
    """The wall clock ran out. Not an Exception, so that `except Exception` in the program does not swallow it."""

    __module__ = "builtins"


class CpuLimitExceeded(BaseException):
    """The CPU time ran out."""

    __module__ = "builtins"


def execute(source: str, history: Sequence[str] = ()) -> int:
    """Run `source` as `__main__` and return its exit code; tracebacks go to sys.stderr without our frames.

    The cells of `history` run first in the same namespace. What they print or raise was told before: it is thrown away.
    """
    lines = list(io.StringIO(source, newline=None))  # as the tokenizer counts: a form feed or U+2028 ends no line
    module = types.ModuleType("__main__")
    module.__dict__.update(__file__=FILE_NAME, __builtins__=builtins)
    sys.modules["__main__"] = module
    try:
        if history:
            _replay(history, module.__dict__)
        linecache.cache[FILE_NAME] = (len(source), None, lines, FILE_NAME)
        _run_all(_compile(source, lines), module.__dict__)
    except SystemExit as stop:
        return _exit_code(stop.code)
    except BaseException as error:  # noqa: BLE001 - whatever a program raises is its result
        _print_exception(error)
        return _verdict(error)
    return 0


def _run_all(codes: list[types.CodeType], namespace: dict[str, Any]) -> None:
    """Run the codes; afterwards the built-in names are ours again, whatever the program did to them."""
    execute_code = exec  # the first code may delete the name
    try:
        for code in codes:
            execute_code(code, namespace)  # running the program is what this process is for
    finally:
        builtins.__dict__.update(_BUILTINS)


def _replay(history: Sequence[str], namespace: dict[str, Any]) -> None:
    """Run earlier cells with their output going nowhere. A cell that failed fails again where it did, and is left."""
    null, saved = os.open(os.devnull, os.O_WRONLY), (os.dup(1), os.dup(2))
    for fd in (1, 2):
        os.dup2(null, fd)
    try:
        for cell in history:
            with contextlib.suppress(Exception, SystemExit):
                _run_all([compile(cell, FILE_NAME, "exec", dont_inherit=True)], namespace)
    finally:
        for stream, fd, copy in zip((sys.stdout, sys.stderr), (1, 2), saved, strict=True):
            with contextlib.suppress(Exception):
                stream.flush()
            os.dup2(copy, fd)
            os.close(copy)
        os.close(null)


def _compile(source: str, lines: list[str]) -> list[types.CodeType]:
    """The program, and its trailing expression apart: in "single" mode its value is echoed when it is not None."""
    try:
        tree = ast.parse(source, FILE_NAME)
        last = tree.body[-1] if tree.body else None
        if not isinstance(last, ast.Expr) or _ends_in_semicolon(last, lines):
            return [compile(tree, FILE_NAME, "exec", dont_inherit=True)]
        tree.body.pop()
        body = compile(tree, FILE_NAME, "exec", dont_inherit=True)
        # Only the __future__ statements of the program itself reach its last line.
        futures = body.co_flags & 0x1FF0000
        echo = compile(ast.Interactive([last]), FILE_NAME, "single", flags=futures, dont_inherit=True)
        return [body, echo]
    except SyntaxError as error:
        if error.text is None and error.lineno and error.lineno <= len(lines):
            error.text = lines[error.lineno - 1]
        raise error.with_traceback(None) from None
    except (MemoryError, RecursionError):  # how CPython says that the parser's stack is full
        raise SyntaxError(TOO_DEEP) from None
    except ValueError as error:  # a lone surrogate
        raise error.with_traceback(None) from None


def _ends_in_semicolon(last: ast.Expr, lines: list[str]) -> bool:
    """As in IPython: a semicolon after the last expression suppresses its echo."""
    if last.end_lineno is None or last.end_lineno > len(lines):
        return False
    rest = lines[last.end_lineno - 1].encode("utf-8", "replace")[last.end_col_offset or 0 :]
    return rest.lstrip(b" \t)").startswith(b";")


def _exit_code(code: object) -> int:
    if code is None:
        return 0
    if isinstance(code, int):
        return code & 0xFF
    with contextlib.suppress(BaseException):  # a hostile __str__
        sys.stderr.write(f"{code}\n")
    return 1


def _verdict(error: BaseException) -> int:
    """Exit code 1, or minus the signal to die of."""
    if isinstance(error, MemoryError):
        return -DIED_OF_MEMORY
    if isinstance(error, CpuLimitExceeded):
        return -DIED_OF_CPU
    return 1


def _print_exception(error: BaseException) -> None:
    if isinstance(error, MemoryError):
        with contextlib.suppress(ValueError, OSError):
            _, hard = resource.getrlimit(resource.RLIMIT_AS)
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    frames = _cut_middle(_without_our_frames(error.__traceback__))
    for show in (_call_own_hook, _write_traceback, _write_name):
        with contextlib.suppress(BaseException):  # a hostile hook or __str__, a second MemoryError, a closed stderr
            if show(error, frames):
                return


def _call_own_hook(error: BaseException, frames: types.TracebackType | None) -> bool:
    if sys.excepthook is sys.__excepthook__:
        return False
    sys.excepthook(type(error), error, frames)
    return True


def _write_traceback(error: BaseException, frames: types.TracebackType | None) -> bool:
    file = getattr(sys, "stderr", None) or io.TextIOWrapper(
        io.FileIO(2, "wb", closefd=False), errors="backslashreplace"
    )
    traceback.print_exception(type(error), error, frames, file=file)
    return True


def _write_name(error: BaseException, _: types.TracebackType | None) -> bool:
    os.write(2, f"{type(error).__name__}\n".encode("utf-8", "backslashreplace"))
    return True


def _without_our_frames(first: types.TracebackType | None) -> types.TracebackType | None:
    """Cut the runner's frames before the program's first and the handler of a limit after its last."""
    while first is not None and first.tb_frame.f_code.co_filename == __file__:
        first = first.tb_next
    for frame in _chain(first):
        if frame.tb_next is not None and frame.tb_next.tb_frame.f_code.co_filename == __file__:
            frame.tb_next = None
    return first


def _cut_middle(first: types.TracebackType | None) -> types.TracebackType | None:
    """Keep both ends of a traceback that is millions of frames deep."""
    count = sum(1 for _ in _chain(first))
    if count > SHOWN_FRAMES:
        head, tail = SHOWN_FRAMES // 2, count - SHOWN_FRAMES // 2
        ends = [frame for number, frame in enumerate(_chain(first), 1) if number in (head, tail)]
        ends[0].tb_next = ends[1].tb_next
    return first


def _chain(frame: types.TracebackType | None) -> Iterator[types.TracebackType]:
    while frame is not None:
        yield frame
        frame = frame.tb_next


def raise_time_limit(_signum: int, frame: types.FrameType | None) -> None:
    """Handler of the soft signal: raises where the program hangs, so that its traceback says where."""
    signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    raise TimeLimitExceeded("the program ran out of wall-clock time")


def _raise_cpu_limit(_signum: int, frame: types.FrameType | None) -> None:
    for number in (signal.SIGPROF, signal.SIGXCPU):
        signal.signal(number, signal.SIG_IGN)
    raise CpuLimitExceeded("the program ran out of CPU time")


def prepare() -> None:
    """What every child would do alike is done once, before the first fork: a system call of a box is dear."""
    for number, handler in (
        (signal.SIGUSR1, raise_time_limit),
        (signal.SIGPROF, _raise_cpu_limit),
        (signal.SIGXCPU, _raise_cpu_limit),
        (signal.SIGXFSZ, signal.SIG_IGN),  # as CPython does: a write past the limit is an OSError
        (signal.SIGTERM, signal.SIG_DFL),
    ):
        signal.signal(number, handler)
    faulthandler.register(WHERE_SIGNAL, file=2, all_threads=False)
    os.umask(0o022)
    _set_limit(resource.RLIMIT_CORE, 0, 0)
    sys.stdin = sys.__stdin__ = _open_stdin()  # type: ignore[misc]


def _open_stdin() -> io.TextIOWrapper:
    return io.TextIOWrapper(open(0, "rb", closefd=False), encoding="utf-8", errors="replace")  # noqa: SIM115


def run(
    request: dict[str, Any],
    *,
    out_fd: int,
    err_fd: int,
    started_fd: int,
    shared: SharedMemory,
    work_dir: str,
    base_vm: int,
    is_box: bool,
) -> NoReturn:
    """Become the program of `request`. `base_vm` is the address space the interpreter has already (bytes).

    The event on `started_fd` says that all went well until the program's first line: what comes then is its own doing.
    """
    _wire(request, out_fd, err_fd, shared)
    _confine(request["limits"], work_dir, base_vm, drops_root=is_box)
    code = str(request["code"]).removeprefix("\ufeff")
    if _WANTS_FILE.search(code):
        with contextlib.suppress(OSError, ValueError), open(FILE_NAME, "w", encoding="utf-8", newline="") as file:
            file.write(code)
    _limit_files(request["limits"])
    _fresh_interpreter(request.get("seed"), work_dir)
    os.eventfd_write(started_fd, 1)
    os.closerange(3, OPEN_FDS)  # nothing of the fork-server is left open
    try:
        exit_code = execute(code, request.get("history", ()))
    except BaseException as error:  # noqa: BLE001 - a limit that was met while a traceback was being made
        exit_code = _verdict(error)
    _end(exit_code)


def _wire(request: dict[str, Any], out_fd: int, err_fd: int, shared: SharedMemory) -> None:
    stdin = str(request.get("stdin", "")).encode("utf-8", "surrogateescape")
    if stdin:  # else fd 0 is /dev/null already, and sys.stdin open on it
        in_fd = os.memfd_create("stdin")
        view = memoryview(stdin)
        while view:
            view = view[os.write(in_fd, view) :]
        os.lseek(in_fd, 0, os.SEEK_SET)
        os.dup2(in_fd, 0)
        sys.stdin = sys.__stdin__ = _open_stdin()  # type: ignore[misc]
    os.dup2(out_fd, 1)
    os.dup2(err_fd, 2)
    # As in any interpreter the second name keeps the stream open when a program wraps or replaces the first.
    sys.stdout = sys.__stdout__ = shared.open_text(1, 0)  # type: ignore[misc]
    sys.stderr = sys.__stderr__ = shared.open_text(2, 1)  # type: ignore[misc]


def _confine(limits: dict[str, Any], work_dir: str, base_vm: int, *, drops_root: bool) -> None:
    """Session, uid, directory, limits: in this order, because the later steps need what the earlier give up."""
    os.setsid()
    for number in (signal.SIGPIPE, signal.SIGCHLD):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if drops_root:
        os.setgroups([])
        os.setresgid(UID, UID, UID)
        os.setresuid(UID, UID, UID)
    os.chdir(work_dir)
    memory = base_vm + int(limits["memory_mb"]) * MIB
    cpu = max(1, -int(-float(limits["cpu_s"]) // 1))  # RLIMIT_CPU counts whole seconds: the timer is exact
    signal.setitimer(signal.ITIMER_PROF, float(limits["cpu_s"]))
    _set_limit(resource.RLIMIT_AS, memory, memory + MEMORY_SLACK)
    _set_limit(resource.RLIMIT_CPU, cpu, cpu + 1)
    _set_limit(resource.RLIMIT_NPROC, int(limits["processes"]), int(limits["processes"]))


def _limit_files(limits: dict[str, Any]) -> None:
    size = int(limits["file_mb"]) * MIB
    _set_limit(resource.RLIMIT_FSIZE, size, size)
    _set_limit(resource.RLIMIT_NOFILE, int(limits["open_files"]), int(limits["open_files"]))


def _set_limit(kind: int, soft: int, hard: int) -> None:
    """A limit the kernel refuses is one that is already tighter."""
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (soft, hard))


def _fresh_interpreter(seed: int | None, work_dir: str) -> None:
    """Look like a new interpreter: arguments, environment, modules, random state."""
    libraries = os.environ.get("LD_LIBRARY_PATH")  # without it a box's python does not start in a subprocess
    os.environ.clear()
    if libraries:
        os.environ["LD_LIBRARY_PATH"] = libraries
    os.environ.update(ENVIRONMENT, HOME=work_dir, TMPDIR="/tmp")  # noqa: S108 - the box's own tmpfs
    sys.argv = [FILE_NAME]
    sys.path[:] = ["", *(path for path in sys.path if path.startswith(sys.prefix) or path.startswith(sys.base_prefix))]
    _hidden.extend(sys.modules.pop(name, None) for name in _OUR_MODULES)
    if seed is not None:  # else the fork has seeded it anew
        random.seed(seed)
    numpy, sympy_random = sys.modules.get("numpy"), sys.modules.get("sympy.core.random")
    if numpy is not None:
        numpy.random.seed(random.getrandbits(32) if seed is None else seed % (1 << 32))
    if sympy_random is not None:
        sympy_random.rng.seed(seed)


def _end(exit_code: int) -> NoReturn:
    """End as an interpreter does: wait for threads, run atexit, flush; then die by the verdict."""
    for step in (threading._shutdown, atexit._run_exitfuncs):  # type: ignore[attr-defined]
        try:
            step()
        except BaseException as error:  # noqa: BLE001 - e.g. the time limit while waiting for a thread
            _print_exception(error)
            exit_code = exit_code or _verdict(error)
    _drop_program()
    for name in ("stdout", "stderr", "__stdout__", "__stderr__"):
        with contextlib.suppress(BaseException):  # a program may have deleted or replaced it
            stream = getattr(sys, name)
            (stream.settle if type(stream) is SharedText else stream.flush)()
    if exit_code < 0:
        signal.signal(-exit_code, signal.SIG_DFL)
        send_signal(os.getpid(), -exit_code)
    end_now(exit_code if exit_code >= 0 else 1)


def _drop_program() -> None:
    """Let go of the program's objects, so that its finalizers run and files it left open are flushed."""
    with contextlib.suppress(BaseException):
        sys.modules.pop("__main__", None)
        gc.collect()
