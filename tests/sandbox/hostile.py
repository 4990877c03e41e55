"""The catalogue of hostile programs, as data: what was reported, the code, and the one right answer to it.

`source` names the report (a GitHub repository and issue) or says what the program is after. A text is the whole
stream; a pattern is searched for. Every program runs twice in one box, and then a healthy one must find nothing of it.
"""

import re
from dataclasses import dataclass, field
from typing import Any

from contracts.execution import Execution

# ruff: noqa: E501
# fmt: off
ANY = re.compile("")
HARD: dict[str, Any] = {"exit_code": None, "signal": 9, "stderr": ANY}  # killed: it did not hear the soft signal


@dataclass(frozen=True)
class Hostile:
    """One program and the answer it deserves."""

    name: str
    source: str
    code: str
    status: str | re.Pattern[str] = "ok"
    exit_code: int | re.Pattern[str] | None = 0
    signal: int | re.Pattern[str] | None = None  # ANY where the soft signal may come through or not
    stdout: str | re.Pattern[str] = ""
    stderr: str | re.Pattern[str] = ""
    stdin: str = ""
    limits: dict[str, float] = field(default_factory=dict)
    may_taint: bool = False  # the box may be replaced afterwards

    def misses(self, execution: Execution) -> dict[str, object]:
        """What the answer has wrong, by field."""
        fields = ("status", "exit_code", "signal", "stdout", "stderr")
        found = {name: getattr(execution, name) for name in fields if not _fits(getattr(self, name), getattr(execution, name))}
        return found | ({} if execution.attempts == 1 else {"attempts": execution.attempts, "reason": execution.reason})


def _fits(wanted: object, got: object) -> bool:
    return bool(wanted.search(str(got))) if isinstance(wanted, re.Pattern) else wanted == got


def fails(name: str, source: str, code: str, stderr: str, **fields: Any) -> Hostile:
    """A program with exit code 1 and this pattern in its stderr."""
    return Hostile(name, source, code, **{"status": "error", "exit_code": 1, "stderr": re.compile(stderr), **fields})


def hangs(name: str, source: str, code: str, **fields: Any) -> Hostile:
    """A program that runs out of wall time and says where."""
    fields = {"exit_code": 1, "stderr": re.compile("main.py(.|\n)*TimeLimitExceeded: "), **fields}
    return Hostile(name, source, code, "timeout", **{"limits": {"wall_s": 0.4}, **fields})


def dies(name: str, source: str, code: str, number: int, **fields: Any) -> Hostile:
    """A program that ends by a signal of its own making."""
    return Hostile(name, source, code, "signal", None, number, **fields)
