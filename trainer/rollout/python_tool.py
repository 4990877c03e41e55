"""The Python tool: a parsed call becomes a sandbox execution, and that the text the model reads."""

from collections.abc import Sequence

from contracts.execution import MAX_CODE_BYTES, MAX_HISTORY_CELLS, ExecutionCall, ExecutionStatus
from contracts.recipe import ToolSettings
from contracts.trajectory import ToolCallRow, ToolStatus
from sandbox.client import SandboxClient, SandboxUnavailable
from trainer.rollout.agent import ToolResponse
from trainer.rollout.feedback import Tokens, render, render_refusal
from trainer.rollout.tool_calls import ParsedCall

_STATUS = {
    ExecutionStatus.OK: ToolStatus.OK,
    ExecutionStatus.ERROR: ToolStatus.ERROR,
    ExecutionStatus.TIMEOUT: ToolStatus.TIMEOUT,
    ExecutionStatus.CPU_LIMIT: ToolStatus.TIMEOUT,
    ExecutionStatus.MEMORY: ToolStatus.MEMORY,
    ExecutionStatus.OUTPUT_LIMIT: ToolStatus.OUTPUT_LIMIT,
    ExecutionStatus.SIGNAL: ToolStatus.KILLED,
}
_REPLAYED = (ToolStatus.OK, ToolStatus.ERROR)


class PythonTool:
    """One tool of one run; `SandboxUnavailable` passes through, for it is not the model's doing."""

    def __init__(self, client: SandboxClient, settings: ToolSettings, tokens: Tokens) -> None:
        self._client = client
        self._settings = settings
        self._tokens = tokens

    async def respond(
        self, call: ParsedCall, call_id: str, seed: int, earlier: Sequence[ToolCallRow] = ()
    ) -> ToolResponse:
        """Run the call, or tell the model why it cannot be run.

        `seed` seeds `random` in the program; `earlier` are the trajectory's calls so far.
        """
        settings = self._settings
        if call.status is not ToolStatus.OK:
            told = render_refusal(call.status, call.error, settings, self._tokens)
            return ToolResponse(call.status, told.text, is_cut=told.is_cut)
        request = ExecutionCall(
            id=call_id,
            code=call.code,
            stdin=call.stdin,
            limits=settings.limits,
            seed=seed % 2**32,
            history=history_of(earlier) if settings.stateful else [],
        )
        execution = await self._client.run(request)
        if execution.status.is_ours:
            raise SandboxUnavailable(execution.reason or execution.status.value)
        told = render(execution, settings, self._tokens)
        return ToolResponse(_STATUS[execution.status], told.text, execution, told.is_cut)


def history_of(earlier: Sequence[ToolCallRow]) -> list[str]:
    """The cells to replay: those that ran to their end, with or without an exception, as the released code does.

    One that a limit ended would end the replay the same way. Only the newest fit when there are very many.
    """
    kept: list[str] = []
    room = MAX_CODE_BYTES
    for row in reversed(earlier):
        if row.status not in _REPLAYED:
            continue
        room -= len(row.code.encode())
        if room < 0 or len(kept) == MAX_HISTORY_CELLS:
            break
        kept.append(row.code)
    return kept[::-1]
