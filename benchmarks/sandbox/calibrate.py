"""What the programs of the mix cost as plain Python here: the imports are done, each runs in a forked child.

Only the imports: what a sandbox warms beyond them is its own merit.
"""

import contextlib
import importlib
import io
import os
import time

from benchmarks.sandbox.load import mean, quantile
from benchmarks.sandbox.report import table
from benchmarks.sandbox.workload import Kind, mixed_load

TASKS = 400


def calibrate(seed: int) -> str:
    """A table of CPU milliseconds by kind."""
    for name in ("numpy", "sympy"):
        importlib.import_module(name)
    spent: dict[Kind, list[float]] = {}
    for task in mixed_load(TASKS, seed):
        if task.kind in (Kind.PYTHON, Kind.NUMPY, Kind.SYMPY):
            spent.setdefault(task.kind, []).append(_in_child(task.call.code))
    rows = [
        [kind.value, len(ms), mean(ms), *(quantile(sorted(ms), q) for q in (0.1, 0.5, 0.9))]
        for kind, ms in spent.items()
    ]
    return table(("kind", "programs", "mean CPU ms", "p10", "p50", "p90"), rows)


def _in_child(code: str) -> float:
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        started = time.process_time()
        with contextlib.redirect_stdout(io.StringIO()):
            exec(code, {"__name__": "__main__"})  # noqa: S102 - a program of the load, which is ours
        os.write(writer, repr((time.process_time() - started) * 1000).encode())
        os._exit(0)
    os.close(writer)
    with open(reader) as pipe:
        ms = float(pipe.read())
    os.waitpid(pid, 0)
    return ms
