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


SYMPY_USES = """\
x, y, z = symbols("x y z"); n = symbols("n", integer=True, positive=True); a = symbols("a", real=True)
str(simplify((x**2 - 1) / (x - 1) + sin(x) ** 2 + cos(x) ** 2)); expand((x + y) ** 3); factor(x**4 - 1)
trigsimp(sin(2 * x)); solve(x**3 - 6 * x**2 + 11 * x - 6, x); solve([Eq(x + y, 3), Eq(x - y, 1)], [x, y])
solve(x**2 + 1 > 3, x); solveset(a**2 - 2, a); integrate(x**2 * exp(-x), x); integrate(x * sin(2 * x), x)
integrate(1 / (1 + x**2), (x, 0, 1)); diff(log(x) * sqrt(x), x); limit(sin(x) / x, x, 0)
series(exp(x), x, 0, 4); summation(n**2, (n, 1, y)); product(n, (n, 1, 4)); m = Matrix([[2, 1], [1, 3]])
m.det(); m.inv(); m.eigenvals(); m.rref(); m.charpoly(x); m * m; factorint(360); isprime(97); primerange(1, 20)
divisors(36); gcd(12, 18); binomial(7, 3); mod_inverse(3, 7); totient(36); N(pi, 20)
Rational(1, 3) + Rational(1, 6); latex(x**2 / 2); str(Poly(x**2 + 1, x)); (x**2 + 1).subs(x, 2)
sympify("x + 1"); ff = Function("f"); apart(1 / (x * (x + 1)), x); together(1 / x + 1 / y)
cancel((x**2 - 1) / (x + 1)); roots(x**2 - 2, x); Sum(1 / n**2, (n, 1, oo)).doit(); floor(Rational(7, 2))
Abs(-3); nsimplify(0.5); resultant(x**2 - 1, x - 2, x)
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
    """Once through what programs do most: it sets up dispatch tables, assumptions, caches and late imports."""
    sympy = importlib.import_module("sympy")
    namespace = dict(vars(sympy))
    for line in SYMPY_USES.splitlines():
        exec(line, namespace)  # noqa: S102 - our own text


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
