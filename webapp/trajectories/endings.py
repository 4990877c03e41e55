"""How the program of a tool call ended, in words and numbers for its reader: pure, from its row and the recipe."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from contracts.execution import ExecutionStatus, name_limit
from contracts.trajectory import ToolCallRow, ToolStatus

_WORDS = {
    ToolStatus.OK: "ran to its end",
    ToolStatus.ERROR: "raised an exception or exited with 1",
    ToolStatus.TIMEOUT: "stopped at a time limit",
    ToolStatus.MEMORY: "stopped at the memory limit",
    ToolStatus.KILLED: "killed by a signal",
    ToolStatus.OUTPUT_LIMIT: "stopped for printing too much",
    ToolStatus.INVALID_CALL: "no valid call: nothing was run",
    ToolStatus.UNKNOWN_TOOL: "no such tool: nothing was run",
}


@dataclass(frozen=True, slots=True)
class Ending:
    """`words`: the status for a person. `notes`: what was measured and allowed, one sentence each."""

    words: str
    notes: list[str]


def describe_ending(call: ToolCallRow, recipe: Any) -> Ending:
    """The recipe is the stored one of the run, which may be of an earlier version, or no recipe at all."""
    tool = _mapping(recipe, "tool")
    limits = _mapping(tool, "limits")
    if call.status in (ToolStatus.INVALID_CALL, ToolStatus.UNKNOWN_TOOL):
        return Ending(_WORDS[call.status], [])
    notes = [_times(call), _allowed(limits)]
    if call.truncated or call.is_cut or call.status is ToolStatus.OUTPUT_LIMIT:
        notes.append(_amounts(call, tool, limits))
    return Ending(_words(call, limits), [note for note in notes if note])


def _words(call: ToolCallRow, limits: Mapping[str, Any]) -> str:
    if limit := name_limit(call.execution_status, limits):
        return f"stopped at the {limit}"
    if call.execution_status is ExecutionStatus.SIGNAL and call.signal is not None:
        return f"killed by signal {call.signal}"
    if call.status is ToolStatus.ERROR and call.exit_code not in (None, 1):
        return f"ended with exit code {call.exit_code}"
    return _WORDS[call.status]


def _times(call: ToolCallRow) -> str:
    if call.execution_status is None:  # a row of an earlier version: the header has what there is
        return ""
    queued = f"waited {call.queue_ms:,.0f} ms for a box, which no limit counts"
    return f"ran {call.exec_ms:,.0f} ms, used {call.cpu_ms:,.0f} ms of CPU with its start; {queued}"


def _allowed(limits: Mapping[str, Any]) -> str:
    parts = [_number(limits, "wall_s", "s"), _number(limits, "cpu_s", "s of CPU"), _number(limits, "memory_mb", "MB")]
    return f"allowed {', '.join(parts)}" if all(parts) else ""


def _amounts(call: ToolCallRow, tool: Mapping[str, Any], limits: Mapping[str, Any]) -> str:
    parts = [f"printed {call.stdout_bytes:,} bytes on stdout, {call.stderr_bytes:,} on stderr"]
    if call.truncated:
        parts.append(f"the sandbox kept head and tail{_of(limits, 'output_kb', 'kB of each')}")
    if call.is_cut:
        parts.append(f"the model saw what fits{_of(tool, 'max_tool_response_tokens', 'tokens', ' into ')}")
    return "; ".join(parts)


def _of(values: Mapping[str, Any], name: str, unit: str, word: str = " of ") -> str:
    number = _number(values, name, unit)
    return word + number if number else ""


def _number(values: Mapping[str, Any], name: str, unit: str) -> str:
    value = values.get(name)
    return f"{value:,g} {unit}" if isinstance(value, (int, float)) else ""


def _mapping(values: Any, name: str) -> Mapping[str, Any]:
    inner = values.get(name) if isinstance(values, Mapping) else None
    return inner if isinstance(inner, Mapping) else {}
