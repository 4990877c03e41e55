"""code-judge's way to run a program, by our own code: a script in a temporary directory, `python3` anew, no walls.

As read in its source: a prologue sets SIGALRM, RLIMIT_CPU, RLIMIT_AS and one BLAS thread inside the process that
runs the program, an epilogue prints an end mark and the duration, the process group is killed afterwards. Where its
workers only trust the alarm, this one has a timeout of its own as well, so that a benchmark ends.
"""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from contracts.execution import Execution, ExecutionCall, ExecutionStatus
from sandbox.guest.output import HeadTail

END_MARK = "@@END-OF-PROGRAM"
GRACE_S = 1.0
_MEMORY_MB = 256 + 128
_PROLOGUE = """\
import signal as _signal, resource as _resource, os as _os, sys as _sys, time as _time
def _on_alarm(*_):
    _sys.stdout.flush()
    print("Suicide from timeout.", file=_sys.stderr, flush=True)
    _os.kill(_os.getpid(), _signal.SIGKILL)
_signal.signal(_signal.SIGALRM, _on_alarm)
_signal.setitimer(_signal.ITIMER_REAL, {wall_s})
_resource.setrlimit(_resource.RLIMIT_CPU, ({cpu_s}, {cpu_s}))
_resource.setrlimit(_resource.RLIMIT_AS, ({memory}, {memory}))
_resource.setrlimit(_resource.RLIMIT_CORE, (0, 0))
_os.environ["OPENBLAS_NUM_THREADS"] = "1"
_started = _time.perf_counter()
"""
_EPILOGUE = f"""
print("{END_MARK}", _time.perf_counter() - _started)
"""


def judge(call: ExecutionCall) -> Execution:
    """Run one call in an interpreter of its own; runs in a worker process."""
    started = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "source.py"
        script.write_text(_wrap(call))
        is_late, process, out, err = _run(script, call)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    exec_s = time.perf_counter() - started
    stdout, reached_end = _without_mark(out)
    was_killed = process.returncode in (-signal.SIGKILL, -signal.SIGXCPU, -signal.SIGALRM)
    if is_late or (was_killed and exec_s > call.limits.wall_s * 0.9):
        status = ExecutionStatus.TIMEOUT
    else:
        status = ExecutionStatus.OK if process.returncode == 0 and reached_end else ExecutionStatus.ERROR
    kept = HeadTail(call.limits.output_kb * 1024)
    kept.feed(stdout)
    return Execution(
        id=call.id,
        status=status,
        exit_code=max(0, process.returncode),
        stdout=kept.text(),
        stdout_bytes=kept.total,
        stderr=err.decode("utf-8", "replace")[-65536:],
        truncated=kept.truncated,
        exec_ms=exec_s * 1000,
        cpu_ms=(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1000,
    )


def _wrap(call: ExecutionCall) -> str:
    limits = call.limits
    prologue = _PROLOGUE.format(wall_s=limits.wall_s, cpu_s=max(1, round(limits.cpu_s)), memory=_MEMORY_MB << 20)
    return prologue + call.code + _EPILOGUE


def _run(script: Path, call: ExecutionCall) -> tuple[bool, "subprocess.Popen[bytes]", bytes, bytes]:
    process = subprocess.Popen(
        [sys.executable, script],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        cwd=script.parent,
        start_new_session=True,
        env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"},
    )
    is_late = False
    try:
        out, err = process.communicate(call.stdin.encode(), timeout=call.limits.wall_s + GRACE_S)
    except subprocess.TimeoutExpired:
        is_late = True
        process.kill()
        out, err = process.communicate()
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    return is_late, process, out, err


def _without_mark(out: bytes) -> tuple[bytes, bool]:
    """The program's own output, and whether it came to its end."""
    text, mark, _ = out.rpartition(END_MARK.encode())
    return (text, True) if mark else (out, False)
