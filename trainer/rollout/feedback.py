"""What the model reads of a tool call: one text in one of two styles, never longer than its tokens allow.

Why a program failed is shown before what it printed: output gives way first, its middle before its ends. The
status is never read from the text, and a failure of ours has no text at all.
"""

import re
import signal
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from contracts.execution import Execution, ExecutionStatus, name_limit
from contracts.recipe import FeedbackStyle, ToolSettings
from contracts.trajectory import ToolStatus

NO_OUTPUT = "(no output)"
RELEASED_MARK = "...(truncated)..."
CHARS_PER_TOKEN = 16  # text with more than that is cut without being counted: 64 kB must not cost 50 ms
MIN_KEPT = 4  # tokens; with less a cut text is left out altogether
MAX_CLUSTER = 32  # characters a cut moves to keep what is one character to a reader in one piece

_LONE_SURROGATE = re.compile("[\ud800-\udfff]")
# The last line of a limit's own exception: a sentence with the limit in it takes its place.
_LIMIT_RAISED = re.compile(r"(^|\n)(TimeLimitExceeded: [^\n]*|CpuLimitExceeded: [^\n]*|MemoryError)\Z")
_LIBRARY_FRAME = re.compile(
    r'^  File "(?:[^"\n]*/(?:lib/python3|site-packages/)|<frozen )[^\n]*\n(?:(?:    |  \[Previous line)[^\n]*\n)*',
    re.MULTILINE,
)
_REASONS = {
    ExecutionStatus.TIMEOUT: "worker_timeout",
    ExecutionStatus.CPU_LIMIT: "worker_timeout",
    ExecutionStatus.OUTPUT_LIMIT: "output_limit",
}
_KILLED_AT_LIMIT = "Suicide from timeout.\n"  # what the released service prints


class Tokens(Protocol):
    """The policy's tokenizer, as far as a cut needs it."""

    def tool_response_size(self, text: str) -> int:
        """Ids that `text` adds to an empty tool response."""
        ...

    def spans(self, text: str) -> list[tuple[int, int]]:
        """First and last (exclusive) character of each id of `text`."""
        ...


@dataclass(frozen=True, slots=True)
class Feedback:
    """A tool response's text, and whether something of it was left out for its length."""

    text: str
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class _Part:
    """Lines of a response. `gives` 0: stays whole; otherwise the highest gives way first.

    `total_bytes`: of what `text` is what the sandbox kept.
    """

    text: str
    gives: int = 0
    label: str = ""
    total_bytes: int = 0


def render(execution: Execution, settings: ToolSettings, tokens: Tokens) -> Feedback:
    """The text of a program's end, at most `max_tool_response_tokens` longer than an empty response."""
    if execution.status.is_ours:
        raise ValueError(f"a failure of ours ({execution.status.value}) is not for the model")
    if settings.feedback is FeedbackStyle.LABELLED:
        return _fit(_labelled(execution, settings), settings.max_tool_response_tokens, tokens, RELEASED_MARK)
    return _fit(_raw(execution, settings), settings.max_tool_response_tokens, tokens)


def render_refusal(status: ToolStatus, why: str, settings: ToolSettings, tokens: Tokens) -> Feedback:
    """The text of a call that cannot be run: `why` in the words of the style."""
    unknown = status is ToolStatus.UNKNOWN_TOOL
    if settings.feedback is FeedbackStyle.LABELLED:
        text = f"{'Error when executing tool' if unknown else 'Failed to decode tool call'}: {why}"
    else:
        text = f"{'Unknown tool' if unknown else 'Invalid tool call'}: {why}."
    return _fit([_Part(text, gives=1)], settings.max_tool_response_tokens, tokens)


def _raw(execution: Execution, settings: ToolSettings) -> list[_Part]:
    """Success: stdout, where the sandbox has put the value of a last expression. Failure: stdout and why."""
    printed = execution.stdout.rstrip("\n")
    if execution.status is ExecutionStatus.OK:
        return [_Part(printed or NO_OUTPUT, gives=1, total_bytes=execution.stdout_bytes)]
    return [_Part(printed, gives=2, total_bytes=execution.stdout_bytes), _Part(_why(execution, settings), gives=1)]


def _labelled(execution: Execution, settings: ToolSettings) -> list[_Part]:
    """Outcome, both streams and the time, as `run_tool_calls_on_server_async` of the released code writes them."""
    took = _Part(f"execution time: {execution.exec_ms / 1000:.2f}s")
    out, total = execution.stdout, execution.stdout_bytes
    if execution.status is ExecutionStatus.OK:
        err = _Part(execution.stderr, gives=2, label="stderr: ", total_bytes=execution.stderr_bytes)
        return [_Part("Tool call success"), _Part(out, gives=1, label="stdout: ", total_bytes=total), err, took]
    if execution.status is ExecutionStatus.TIMEOUT:
        out += _KILLED_AT_LIMIT
    head = _Part(f"Tool call failure\nreason: {_REASONS.get(execution.status, '')}")
    why = _Part(_why(execution, settings), gives=1, label="stderr: ")
    return [head, _Part(out, gives=2, label="stdout: ", total_bytes=total), why, took]


def _why(execution: Execution, settings: ToolSettings) -> str:
    """The traceback with the program's own frames, and what limit was reached where one was."""
    told = _LIBRARY_FRAME.sub("", f"{execution.stderr.rstrip()}\n").rstrip("\n")
    if sentence := _limit_reached(execution, settings):
        told = "\n".join(filter(None, (_LIMIT_RAISED.sub("", told), sentence)))
    told = told or f"The program ended with exit code {execution.exit_code} and no message"
    return "\n".join(told.split("\n")[-settings.traceback_lines :])


def _limit_reached(execution: Execution, settings: ToolSettings) -> str:
    if limit := name_limit(execution.status, dict(settings.limits)):
        error = "MemoryError" if execution.status is ExecutionStatus.MEMORY else "TimeoutError"
        return f"{error}: the {limit} was exceeded"
    match execution.status:
        case ExecutionStatus.OUTPUT_LIMIT:
            printed = execution.stdout_bytes + execution.stderr_bytes
            return f"OutputLimitError: the program was stopped after printing {printed} bytes"
        case ExecutionStatus.SIGNAL:
            return f"The program was killed by signal {execution.signal}{_signal_name(execution.signal)}"
    return ""


def _signal_name(number: int | None) -> str:
    try:
        return f" ({signal.Signals(number or 0).name})"
    except ValueError:  # a real-time signal has none
        return ""


def _fit(parts: Sequence[_Part], limit: int, tokens: Tokens, mark: str = "") -> Feedback:
    """The parts joined, cut until they fit. `mark` '': one of ours, which counts the bytes left out."""
    parts = [replace(part, text=_LONE_SURROGATE.sub("\ufffd", part.text)) for part in parts]
    whole = _join(parts)
    if _size(whole, limit, tokens) <= limit:
        return Feedback(whole)
    *first, last = sorted((i for i, part in enumerate(parts) if part.gives), key=lambda i: -parts[i].gives)
    for at in first:
        if text := _shorten(parts, at, limit, tokens, mark):
            return Feedback(text, is_cut=True)
        parts[at] = replace(parts[at], text="")
        if _size(_join(parts), limit, tokens) <= limit:
            return Feedback(_join(parts), is_cut=True)
    text = _shorten(parts, last, limit, tokens, mark)
    return Feedback(text or _shorten([_Part(_join(parts))], 0, limit, tokens, mark), is_cut=True)


def _join(parts: Sequence[_Part]) -> str:
    return "\n".join(part.label + part.text for part in parts if part.text)


def _size(text: str, limit: int, tokens: Tokens) -> int:
    """Tokens of the text; one more than the limit when it is too long to be worth counting."""
    return limit + 1 if len(text) > limit * CHARS_PER_TOKEN else tokens.tool_response_size(text)


def _shorten(parts: Sequence[_Part], at: int, limit: int, tokens: Tokens, mark: str) -> str:
    """The parts joined with the middle of one of them cut; '' when the others leave it no room.

    What a cut text counts beside its neighbours is only known by counting, so it is counted until it fits.
    """
    before, part, after = parts[:at], parts[at], parts[at + 1 :]
    room = limit - _size(_join([*before, *after]), limit, tokens)
    while text := _cut(part, room, tokens, mark):
        joined = _join([*before, replace(part, text=text), *after])
        over = _size(joined, limit, tokens) - limit
        if over <= 0:
            return joined
        room -= over
    return ""


def _cut(part: _Part, room: int, tokens: Tokens, mark: str) -> str:
    """Head and tail of the part's text in about `room` tokens; '' when that is too little to be of use."""
    total = max(part.total_bytes, len(part.text.encode()))
    kept = room - tokens.tool_response_size(mark or _count_mark(total))
    if kept < MIN_KEPT:
        return ""
    head = _head(part.text, kept - kept // 2, tokens)
    tail = _tail(part.text[len(head) :], kept // 2, tokens)
    return head + (mark or _count_mark(max(1, total - len((head + tail).encode())))) + tail


def _count_mark(count: int) -> str:
    return f"\n[... {count} bytes ...]\n"


def _head(text: str, count: int, tokens: Tokens) -> str:
    near, spans = _window(text, count, tokens, tail=False)
    end = spans[count][0] if len(spans) > count else len(near)  # the start: the next token may share its character
    for at in range(end, max(end - MAX_CLUSTER, -1), -1):
        if not _is_inside_character(text, at):
            return text[:at]
    return text[:end]


def _tail(text: str, count: int, tokens: Tokens) -> str:
    near, spans = _window(text, count, tokens, tail=True)
    start = len(text) - len(near) + (spans[-count - 1][1] if len(spans) > count else 0)
    for at in range(start, min(start + MAX_CLUSTER, len(text) + 1)):
        if not _is_inside_character(text, at):
            return text[at:]
    return text[start:]


def _window(text: str, count: int, tokens: Tokens, *, tail: bool) -> tuple[str, list[tuple[int, int]]]:
    """An end of the text that holds more than `count` ids, where so much of it does, and their spans."""
    for width in (CHARS_PER_TOKEN // 4, CHARS_PER_TOKEN):
        near = text[-(count + 1) * width :] if tail else text[: (count + 1) * width]
        spans = tokens.spans(near)
        if len(spans) > count:
            break
    return near, spans


def _is_inside_character(text: str, at: int) -> bool:
    """Whether a reader sees the characters around `at` as one: a letter with its marks, a joined emoji."""
    if not 0 < at < len(text):
        return False
    before, after = text[at - 1], text[at]
    is_tone = "\U0001f3fb" <= after <= "\U0001f3ff"
    return unicodedata.category(after)[0] == "M" or "\u200d" in (before, after) or is_tone or before + after == "\r\n"
