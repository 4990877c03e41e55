"""Families of programs that fail: those with a wrong syntax return the code and the error's name, the others the code,
what it prints before it fails, and the error's name.
"""

import random
from collections.abc import Callable

FailingFamily = Callable[[random.Random], tuple[str, str, str]]


def missing_parenthesis(rng: random.Random) -> tuple[str, str]:
    return f"total = sum(range({rng.randrange(10, 999)})\nprint(total)\n", "SyntaxError"


def assignment_in_condition(rng: random.Random) -> tuple[str, str]:
    n = rng.randrange(10, 999)
    return f"for n in range({n}):\n    if n % 7 = 0:\n        print(n)\n", "SyntaxError"


def bad_indentation(rng: random.Random) -> tuple[str, str]:
    n = rng.randrange(10, 999)
    return f"def f(n):\n    s = 0\n  return s + n\n\nprint(f({n}))\n", "IndentationError"


def prose_in_code(rng: random.Random) -> tuple[str, str]:
    return f"x = {rng.randrange(10, 999)}\nSo the answer is x + 1.\nprint(x + 1)\n", "SyntaxError"


def zero_division(rng: random.Random) -> tuple[str, str, str]:
    n = rng.randrange(5, 60)
    code = f"values = [k - {n} for k in range(100)]\nprint('mean so far')\nprint([100 // v for v in values])\n"
    return code, "mean so far\n", "ZeroDivisionError"


def index_error(rng: random.Random) -> tuple[str, str, str]:
    n = rng.randrange(10, 400)
    code = f"def last(xs, n):\n    return xs[n]\n\nxs = list(range({n}))\nprint(len(xs))\nprint(last(xs, {n}))\n"
    return code, f"{n}\n", "IndexError"


def undefined_name(rng: random.Random) -> tuple[str, str, str]:
    n = rng.randrange(10, 400)
    return f"result = {n} ** 2\nprint(result)\nprint(reslt + 1)\n", f"{n * n}\n", "NameError"


def wrong_type(rng: random.Random) -> tuple[str, str, str]:
    n = rng.randrange(10, 400)
    return f"answer = {n}\nprint('The answer is ' + answer)\n", "", "TypeError"


def missing_module(rng: random.Random) -> tuple[str, str, str]:
    n = rng.randrange(10, 400)
    code = f"print({n})\nimport sage.all as sage\nprint(sage.factor({n}))\n"
    return code, f"{n}\n", "ModuleNotFoundError"


def failed_assertion(rng: random.Random) -> tuple[str, str, str]:
    n = rng.randrange(10, 400)
    code = f"def check(n):\n    assert n % 2 == 1 and n % 2 == 0, f'{{n}} is not both'\n\ncheck({n})\n"
    return code, "", "AssertionError"


SYNTAX: tuple[Callable[[random.Random], tuple[str, str]], ...] = (
    missing_parenthesis,
    assignment_in_condition,
    bad_indentation,
    prose_in_code,
)
TRACEBACK: tuple[FailingFamily, ...] = (
    zero_division, index_error, undefined_name, wrong_type, missing_module, failed_assertion,
)  # fmt: skip
