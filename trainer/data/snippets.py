"""Running the generator's own programs, to show their genuine output and tracebacks in demonstrations.

Only text written by `synthetic_families` is ever run here; a policy's programs run in the sandbox and nowhere else.
"""

import contextlib
import functools
import io
import linecache
import sys
import traceback
from dataclasses import dataclass

from contracts.execution import Execution, ExecutionStatus

FILE_NAME = "main.py"


@dataclass(frozen=True)
class SnippetResult:
    ok: bool
    stdout: str
    stderr: str

    def as_execution(self) -> Execution:
        """The same as the sandbox would have answered, but for the time, which would differ at every run."""
        status = ExecutionStatus.OK if self.ok else ExecutionStatus.ERROR
        return Execution(
            id="snippet", status=status, exit_code=int(not self.ok), stdout=self.stdout, stderr=self.stderr
        )


@functools.lru_cache(maxsize=50_000)
def run_snippet(code: str) -> SnippetResult:
    """Run one of our own programs as `python main.py` would and keep what it printed or how it failed."""
    out = io.StringIO()
    linecache.cache[FILE_NAME] = (len(code), None, code.splitlines(keepends=True), FILE_NAME)
    try:
        compiled = compile(code, FILE_NAME, "exec")
        with contextlib.redirect_stdout(out):
            exec(compiled, {"__name__": "__main__"})  # noqa: S102
    except Exception as error:  # noqa: BLE001  any failure of the program is what we want to show
        frames = error.__traceback__.tb_next if error.__traceback__ else None  # without our own frame
        lines = traceback.format_exception(type(error), error, frames)
        return SnippetResult(False, out.getvalue(), "".join(lines[:-1]) + _last_line(error))
    finally:
        linecache.cache.pop(FILE_NAME, None)
    return SnippetResult(True, out.getvalue(), "")


def _last_line(error: Exception) -> str:
    """The interpreter's own last line, which unlike the traceback module's (before 3.12) says "Did you mean"."""
    err = io.StringIO()
    with contextlib.redirect_stderr(err):
        sys.__excepthook__(type(error), error, None)
    return err.getvalue().splitlines()[-1] + "\n"


def response_text(result: SnippetResult, *, error_lines: int = 1, max_chars: int = 200) -> str:
    """What the base model's corpus shows of a run: stdout, or the last lines of the traceback (0: all of it).

    In a run `trainer.rollout.feedback` writes the responses, by the recipe.
    """
    if result.ok:
        text = result.stdout.rstrip("\n") or "(no output)"
    else:
        lines = result.stderr.rstrip("\n").splitlines()
        text = "\n".join(lines[-error_lines:] if error_lines else lines)
    if len(text) <= max_chars:
        return text
    head = max_chars // 2
    return text[:head] + "..." + text[-(max_chars - head) :]
