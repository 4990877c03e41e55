"""The Python tool: a parsed call becomes a sandbox execution, and that the text the model reads.

The status is the sandbox's, never read from the text: a program may print "error" as it likes.
"""

from contracts.execution import Execution, ExecutionCall, ExecutionStatus
from contracts.recipe import ToolSettings
from contracts.trajectory import ToolStatus
from sandbox.client import SandboxClient, SandboxUnavailable
from trainer.rollout.agent import ToolResponse
from trainer.rollout.tool_calls import ParsedCall

NO_OUTPUT = "(no output)"
CUT_MARK = "\n[...]\n"

_STATUS = {
    ExecutionStatus.OK: ToolStatus.OK,
    ExecutionStatus.ERROR: ToolStatus.ERROR,
    ExecutionStatus.TIMEOUT: ToolStatus.TIMEOUT,
    ExecutionStatus.CPU_LIMIT: ToolStatus.TIMEOUT,
    ExecutionStatus.MEMORY: ToolStatus.MEMORY,
    ExecutionStatus.OUTPUT_LIMIT: ToolStatus.OUTPUT_LIMIT,
    ExecutionStatus.SIGNAL: ToolStatus.KILLED,
}


class PythonTool:
    """One tool of one run; `SandboxUnavailable` passes through, for it is not the model's doing."""

    def __init__(self, client: SandboxClient, settings: ToolSettings) -> None:
        self._client = client
        self._settings = settings

    async def respond(self, call: ParsedCall, call_id: str, seed: int) -> ToolResponse:
        """Run the call, or tell the model why it cannot be run. `seed` seeds `random` in the program."""
        limit = self._settings.max_response_chars
        if call.status is not ToolStatus.OK:
            return ToolResponse(call.status, cut_middle(call.error, limit))
        request = ExecutionCall(
            id=call_id, code=call.code, stdin=call.stdin, limits=self._settings.limits, seed=seed % 2**32
        )
        execution = await self._client.run(request)
        if execution.status.is_ours:
            raise SandboxUnavailable(execution.reason or execution.status.value)
        return ToolResponse(_STATUS[execution.status], describe(execution, self._settings), execution)


def describe(execution: Execution, settings: ToolSettings) -> str:
    """What the model reads, at most `max_response_chars` characters (not tokens, not bytes).

    Success: stdout. Failure: what was printed, then why it failed, which is never cut for the sake of output.
    """
    limit = settings.max_response_chars
    printed = execution.stdout.rstrip("\n")
    if execution.status is ExecutionStatus.OK:
        return cut_middle(printed or NO_OUTPUT, limit)
    why = cut_middle(_failure(execution, settings), limit)
    room = limit - len(why) - 1
    if not printed or room <= len(CUT_MARK):
        return why
    return f"{cut_middle(printed, room)}\n{why}"


def _failure(execution: Execution, settings: ToolSettings) -> str:
    limits = settings.limits
    match execution.status:
        case ExecutionStatus.TIMEOUT:
            return f"TimeoutError: the time limit of {limits.wall_s:g} s was exceeded"
        case ExecutionStatus.CPU_LIMIT:
            return f"TimeoutError: the CPU time limit of {limits.cpu_s:g} s was exceeded"
        case ExecutionStatus.MEMORY:
            return f"MemoryError: the memory limit of {limits.memory_mb} MB was exceeded"
        case ExecutionStatus.OUTPUT_LIMIT:
            return f"OutputLimitError: more than {limits.output_kb} kB of output"
        case ExecutionStatus.SIGNAL:
            return f"The program was killed by signal {execution.signal}"
    lines = execution.stderr.rstrip("\n").splitlines()[-settings.traceback_lines :]
    return "\n".join(lines) or f"The program ended with exit code {execution.exit_code} and no message"


def cut_middle(text: str, limit: int) -> str:
    """At most `limit` characters: head and tail around a mark."""
    if len(text) <= limit:
        return text
    kept = max(limit - len(CUT_MARK), 0)
    tail = kept // 2
    return text[: kept - tail] + CUT_MARK[: limit - kept] + (text[-tail:] if tail else "")
