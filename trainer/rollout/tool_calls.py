"""From the text of an assistant turn to at most one tool call.

A call that cannot be used is still a call: it comes back with its error status and a sentence for the
model (rStar2-Agent 2.1), and is counted as a tool error. Only an unclosed call is no call: the turn was
cut, or the tag was merely mentioned. JSON is read by a JSON parser from the tag onwards, so a literal
`</tool_call>` inside the code does not cut it; `eval` and guessing repairs are deliberately absent.
"""

import json
from dataclasses import dataclass

from contracts.execution import MAX_CODE_BYTES
from contracts.trajectory import ToolStatus

OPEN_TAG = "<tool_call>"
CLOSE_TAG = "</tool_call>"
TOOL_NAMES = ("execute_python_code_with_standard_io", "python_code_with_standard_io")

_DECODER = json.JSONDecoder(strict=False)  # raw newlines and tabs inside a string are accepted


@dataclass(frozen=True, slots=True)
class ParsedCall:
    """One call. `status` OK: run `code` with `stdin`. Otherwise `error` says why it cannot be run.

    start/end: character positions in the text, tags included, end exclusive.
    """

    start: int
    end: int
    name: str = ""
    code: str = ""
    stdin: str = ""
    status: ToolStatus = ToolStatus.OK
    error: str = ""


def parse_tool_call(text: str, names: tuple[str, ...] = TOOL_NAMES) -> ParsedCall | None:
    """The first tool call of an assistant turn, or None when there is none (an unclosed one is none).

    The first open tag that a JSON object follows counts; only when there is no such tag, the first open
    tag with a close tag after it. Further calls in the turn are ignored: one call a turn.
    """
    start = _find_start(text)
    if start < 0:
        return None
    begin = _skip_space(text, start + len(OPEN_TAG))
    try:
        value, stop = _DECODER.raw_decode(text, begin)
    except (ValueError, RecursionError) as error:
        close = text.find(CLOSE_TAG, begin)
        return None if close < 0 else _invalid(start, close + len(CLOSE_TAG), f"not valid JSON: {_describe(error)}")
    close = text.find(CLOSE_TAG, stop)
    if close < 0:
        return None
    end = close + len(CLOSE_TAG)
    if _skip_space(text, stop) != close:
        return _invalid(start, end, "there is text between the JSON object and </tool_call>")
    return _check(value, start, end, names)


def _find_start(text: str) -> int:
    first = at = text.find(OPEN_TAG)
    while at >= 0:
        begin = _skip_space(text, at + len(OPEN_TAG))
        if text.startswith("{", begin):
            return at
        at = text.find(OPEN_TAG, at + 1)
    return first


def _skip_space(text: str, at: int) -> int:
    while at < len(text) and text[at] in " \t\r\n":
        at += 1
    return at


def _describe(error: ValueError | RecursionError) -> str:
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} (character {error.pos - error.doc.rfind(OPEN_TAG, 0, error.pos) - len(OPEN_TAG)})"
    return "too deeply nested" if isinstance(error, RecursionError) else str(error)


def _invalid(start: int, end: int, why: str, name: str = "") -> ParsedCall:
    return ParsedCall(start, end, name, status=ToolStatus.INVALID_CALL, error=why)


def _check(value: object, start: int, end: int, names: tuple[str, ...]) -> ParsedCall:
    if not isinstance(value, dict):
        return _invalid(start, end, "it is not a JSON object")
    name = value.get("name")
    if not isinstance(name, str) or not name:
        return _invalid(start, end, "'name' is missing or not a string")
    if name not in names:
        known = f"there is no {name[:80]!r}, the only tool is {names[0]!r}"
        return ParsedCall(start, end, name, status=ToolStatus.UNKNOWN_TOOL, error=known)
    arguments = value.get("arguments")
    if not isinstance(arguments, dict):
        return _invalid(start, end, "'arguments' is missing or not a JSON object", name)
    code, stdin = arguments.get("code"), arguments.get("input")
    if not isinstance(code, str):
        return _invalid(start, end, "argument 'code' is missing or not a string", name)
    if stdin is not None and not isinstance(stdin, str):
        return _invalid(start, end, "argument 'input' is not a string", name)
    if problem := _unsendable(code) or _unsendable(stdin or ""):
        return _invalid(start, end, problem, name)
    return ParsedCall(start, end, name, code, stdin or "")


def _unsendable(text: str) -> str:
    """Why the text cannot reach the sandbox: a lone surrogate (from \\ud800 in JSON), or its size."""
    try:
        size = len(text.encode())
    except UnicodeEncodeError:
        return "the text holds a character that is not valid Unicode"
    return f"the text is longer than {MAX_CODE_BYTES} bytes" if size > MAX_CODE_BYTES else ""
