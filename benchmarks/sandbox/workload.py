"""The mixed load: programs as a model writes them for a maths problem, each with the answer it must give.

Deterministic in the seed. Every block of 200 programs has exactly the shares of `BLOCK`, each half of it nearly so,
shuffled: two contestants that get through different numbers of programs still did the same mix.
Work is a fixed number of steps, never a time. As plain warm Python on the machine of docs/scale.md (numpy and sympy
imported before) python and numpy programs take about 10 ms and sympy programs about 200 ms;
`python -m benchmarks.sandbox --modes calibrate` says what they take here.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from benchmarks.sandbox.failing_programs import SYNTAX, TRACEBACK
from benchmarks.sandbox.programs import NUMPY, PYTHON, SYMPY
from contracts.execution import Execution, ExecutionCall, ExecutionStatus, Limits

WALL_LIMIT_S = 2.0
MIX_LIMITS = Limits(wall_s=WALL_LIMIT_S, cpu_s=WALL_LIMIT_S)
MIN_CODE_BYTES, MAX_CODE_BYTES = 200, 8000
KEPT_SAMPLE = 2000  # characters of head and tail an oracle remembers of a long output


class Kind(StrEnum):
    """What a program is for."""

    PYTHON = "python"
    NUMPY = "numpy"
    SYMPY = "sympy"
    PRINTS = "prints"  # python that prints more than 64 KB
    FILES = "files"
    SUBPROCESS = "subprocess"
    SYNTAX = "syntax"
    TRACEBACK = "traceback"
    SPIN = "spin"
    SLEEP = "sleep"

    @property
    def is_over_limit(self) -> bool:
        """True for the programs that never end by themselves."""
        return self in (Kind.SPIN, Kind.SLEEP)


# Of 200: 70 % about 10 ms (30 % of them numpy), 20 % sympy, 8 % errors, 2 % over the limit.
BLOCK: dict[Kind, int] = {
    Kind.PYTHON: 85, Kind.PRINTS: 10, Kind.FILES: 2, Kind.SUBPROCESS: 1, Kind.NUMPY: 42, Kind.SYMPY: 40,
    Kind.SYNTAX: 8, Kind.TRACEBACK: 8, Kind.SPIN: 2, Kind.SLEEP: 2,
}  # fmt: skip
BLOCK_CALLS = sum(BLOCK.values())


@dataclass(frozen=True)
class Expected:
    """The answer a program must get. Of a long output only the ends and the length are kept."""

    statuses: frozenset[ExecutionStatus]
    head: str = ""
    tail: str = ""
    stdout_bytes: int = 0
    stderr_has: str = ""
    is_any_output: bool = False

    @classmethod
    def of(cls, stdout: str, *, status: ExecutionStatus = ExecutionStatus.OK, stderr_has: str = "") -> "Expected":
        """The answer of a program that ends with `status` after printing `stdout`."""
        size = len(stdout.encode())
        return cls(frozenset([status]), stdout[:KEPT_SAMPLE], stdout[-KEPT_SAMPLE:], size, stderr_has)

    @classmethod
    def over_limit(cls) -> "Expected":
        """Stopped by the wall or the CPU limit, whichever came first."""
        return cls(frozenset([ExecutionStatus.TIMEOUT, ExecutionStatus.CPU_LIMIT]), is_any_output=True)

    def fault(self, answer: Execution) -> str:
        """What is wrong with an answer; "" when nothing is."""
        if answer.status not in self.statuses:
            return f"status {answer.status.value}, stderr {answer.stderr[-200:]!r}"
        if self.is_any_output:
            return ""
        if not (answer.stdout.startswith(self.head) and answer.stdout.endswith(self.tail)):
            return f"stdout {answer.stdout[:200]!r} instead of {self.head[:200]!r}"
        if answer.stdout_bytes != self.stdout_bytes:
            return f"{answer.stdout_bytes} bytes on stdout instead of {self.stdout_bytes}"
        if self.stderr_has not in answer.stderr:
            return f"stderr {answer.stderr[-200:]!r} lacks {self.stderr_has!r}"
        return ""


@dataclass(frozen=True)
class Task:
    """One call of the load, its kind and its oracle."""

    call: ExecutionCall
    kind: Kind
    expected: Expected


def mixed_load(count: int, seed: int) -> list[Task]:
    """The first `count` tasks of the mix."""
    order, rng = random.Random(f"order {seed}"), random.Random(f"programs {seed}")
    kinds: list[Kind] = []
    while len(kinds) < count:
        kinds += _shuffled_block(order)
    return [_task(rng, kind, f"mix-{seed}-{number}") for number, kind in enumerate(kinds[:count])]


def trivial_load(count: int, seed: int) -> list[Task]:
    """Tasks that only print a number: what a call costs when the program costs nothing."""
    rng = random.Random(seed)
    tasks = []
    for number in range(count):
        a, b, c = (rng.randrange(1, 10**6) for _ in range(3))
        call = ExecutionCall(id=f"trivial-{seed}-{number}", code=f"print({a} * {b} + {c})\n", limits=MIX_LIMITS)
        tasks.append(Task(call, Kind.PYTHON, Expected.of(f"{a * b + c}\n")))
    return tasks


def _shuffled_block(rng: random.Random) -> list[Kind]:
    halves: tuple[list[Kind], list[Kind]] = ([], [])
    for kind, count in BLOCK.items():
        for index in range(count):
            halves[index % 2].append(kind)
    for half in halves:
        rng.shuffle(half)
    return [*halves[0], *halves[1]]


def _task(rng: random.Random, kind: Kind, call_id: str) -> Task:
    code, expected = _WRITERS[kind](rng)
    call = ExecutionCall(id=call_id, code=_with_comments(rng, code), limits=MIX_LIMITS)
    return Task(call, kind, expected)


def _from(families: Sequence[Callable[[random.Random], tuple[str, str]]]) -> "_Writer":
    def write(rng: random.Random) -> tuple[str, Expected]:
        code, stdout = rng.choice(families)(rng)
        return code, Expected.of(stdout)

    return write


def _prints(rng: random.Random) -> tuple[str, Expected]:
    lines, step = rng.randrange(6000, 14000), rng.randrange(3, 999)
    code = f"for i in range({lines}):\n    print('step', i, 'value', i * {step} % 10007)\n"
    return code, Expected.of("".join(f"step {i} value {i * step % 10007}\n" for i in range(lines)))


def _files(rng: random.Random) -> tuple[str, Expected]:
    rows, factor = rng.randrange(200, 2000), rng.randrange(2, 99)
    code = (
        f"with open('table.csv', 'w') as out:\n    for n in range({rows}):\n"
        f"        out.write(f'{{n}},{{n * {factor}}}\\n')\n"
        "with open('table.csv') as table:\n    rows = [line.strip().split(',') for line in table]\n"
        "print(len(rows), sum(int(b) for _, b in rows))\n"
    )
    return code, Expected.of(f"{rows} {factor * rows * (rows - 1) // 2}\n")


def _subprocess(rng: random.Random) -> tuple[str, Expected]:
    a, b = rng.randrange(10**4), rng.randrange(10**4)
    code = (
        "import subprocess\nimport sys\n\n"
        f"done = subprocess.run([sys.executable, '-c', 'print({a} * {b})'], capture_output=True, text=True)\n"
        "print('child said', done.stdout.strip(), 'and ended with', done.returncode)\n"
    )
    return code, Expected.of(f"child said {a * b} and ended with 0\n")


def _syntax(rng: random.Random) -> tuple[str, Expected]:
    code, name = rng.choice(SYNTAX)(rng)
    return code, Expected.of("", status=ExecutionStatus.ERROR, stderr_has=name)


def _traceback(rng: random.Random) -> tuple[str, Expected]:
    code, stdout, name = rng.choice(TRACEBACK)(rng)
    return code, Expected.of(stdout, status=ExecutionStatus.ERROR, stderr_has=name)


def _spin(rng: random.Random) -> tuple[str, Expected]:
    n = rng.randrange(3, 999)
    code = rng.choice(
        (
            f"n = {n}\nwhile n != 0:\n    n = n * 3 % 1000003 + 1\nprint(n)\n",
            f"total = 0\nfor k in range({n}, 10**12):\n    if k * k % 7 == 3:\n        total += k\nprint(total)\n",
            f"# brute force over everything\nprint(sum(range({n}, 10**12)))\n",
        )
    )
    return code, Expected.over_limit()


def _sleep(rng: random.Random) -> tuple[str, Expected]:
    code = f"import time\n\nprint('waiting for the server')\ntime.sleep({rng.randrange(30, 3600)})\nprint('done')\n"
    return code, Expected.over_limit()


_Writer = Callable[[random.Random], tuple[str, Expected]]
_WRITERS: dict[Kind, _Writer] = {
    Kind.PYTHON: _from(PYTHON), Kind.NUMPY: _from(NUMPY), Kind.SYMPY: _from(SYMPY), Kind.PRINTS: _prints,
    Kind.FILES: _files, Kind.SUBPROCESS: _subprocess, Kind.SYNTAX: _syntax, Kind.TRACEBACK: _traceback,
    Kind.SPIN: _spin, Kind.SLEEP: _sleep,
}  # fmt: skip

_THOUGHTS = (
    "Let me think about this step by step.", "We need to count the integers that satisfy the condition.",
    "First, set up the equation and check small cases by brute force.", "The answer should be an integer.",
    "By symmetry we may assume that the first term is the largest.", "Now verify the formula numerically.",
    "Wait, the upper bound has to be included as well.", "This follows from the Chinese remainder theorem.",
    "Let me double-check the edge cases before I answer.", "We can reduce modulo the prime at every step.",
)  # fmt: skip


def _with_comments(rng: random.Random, code: str) -> str:
    """Comments in front until the program has a length between 0.2 and 8 KB, most of them short."""
    wanted = MIN_CODE_BYTES + int((MAX_CODE_BYTES - MIN_CODE_BYTES) * rng.random() ** 3)
    lines: list[str] = []
    size = len(code)
    while size < wanted or not lines:
        line = f"# {rng.choice(_THOUGHTS)} (case {rng.randrange(1000)})\n"
        if size + len(line) > MAX_CODE_BYTES:
            break
        lines.append(line)
        size += len(line)
    return "".join(lines) + code
