"""What a box imports once, before the first fork, and the snippet that walks every lazy path once.

A page first written by a child is copied by the sentry in units of 2 MiB, and a lazy import in a child is paid again
at every call: so everything a usual program touches is touched here, before (`import_tier`) or in a spare
child that is waiting anyway (`run_snippet`).
"""

import contextlib
import gc
import importlib
import os
import sys
from collections.abc import Callable

from sandbox.guest.stream import SharedMemory

# Measured on runsc 20221219: sixty modules of the library here instead of these cost 10 ms of CPU at every call.
LIGHT_MODULES = (
    "bisect", "cmath", "collections", "copy", "decimal", "fractions", "functools", "heapq", "itertools", "math",
    "operator", "random", "re", "string", "time", "typing",
)  # fmt: skip

SNIPPET = """\
import math, sys, random
def f(n):
    return sum(i * i for i in range(n))
print(f(10), 1.5, [1], {2: 3}, f'{f(3):.2f}', (1, 'a'), math.sqrt(2))
class A:
    def __init__(self):
        self.x = 1
print(A().x, sorted([3, 1, 2]))
1 / 0
"""


def import_tier(tier: str) -> None:
    """Import what the tier promises; packages that are not installed are left out."""
    for name in LIGHT_MODULES:
        importlib.import_module(name)
    for warm in _WARM[tier]:
        with contextlib.suppress(ImportError):
            warm()


def _warm_numpy() -> None:
    numpy = importlib.import_module("numpy")
    for name in ("random", "linalg", "fft", "polynomial"):
        importlib.import_module(f"numpy.{name}")
    numpy.random.seed(1)
    numpy.linalg.solve(numpy.eye(3), numpy.ones(3))
    str(numpy.arange(3.0))
    numpy.dot(numpy.ones((50, 50)), numpy.ones((50, 50)))


def _warm_sympy() -> None:
    sympy = importlib.import_module("sympy")
    x = sympy.symbols("x")
    sympy.integrate(sympy.sin(x) * x, x)
    sympy.solve(x**2 - 2, x)
    str(sympy.simplify((x**2 - 1) / (x - 1)))
    sympy.core.cache.clear_cache()


def _warm_scipy() -> None:
    for name in ("optimize", "special", "integrate", "linalg", "stats"):
        importlib.import_module(f"scipy.{name}")


def _warm_pandas() -> None:
    pandas = importlib.import_module("pandas")
    str(pandas.DataFrame({"a": [1, 2]}).describe())


def _warm_networkx() -> None:
    networkx = importlib.import_module("networkx")
    networkx.shortest_path(networkx.path_graph(3), 0, 2)


_WARM: dict[str, tuple[Callable[[], None], ...]] = {
    "light": (),
    "numpy": (_warm_numpy,),
    "sympy": (_warm_numpy, _warm_sympy),
    "full": (_warm_numpy, _warm_sympy, _warm_scipy, _warm_pandas, _warm_networkx),
}


def run_snippet(execute: Callable[[str], int], shared: SharedMemory) -> None:
    """Run the snippet and a syntax error through `execute`, the function that runs programs, output thrown away."""
    saved = sys.stdout, sys.stderr
    null = os.open(os.devnull, os.O_WRONLY)
    try:
        for source in (SNIPPET, "x = = 1"):
            sys.stdout, sys.stderr = shared.open_text(null, 0), shared.open_text(null, 1)
            execute(source)
    finally:
        sys.stdout, sys.stderr = saved
        shared.wipe()
        os.close(null)


def freeze() -> None:
    """Take what exists out of the collector's sight, so that a collection in a child does not copy every page."""
    gc.collect()
    gc.freeze()
