"""What each token of an assistant turn is part of, told from its text.

Works on the texts of the tokens decoded alone, so a position in the joined text is a token without doubt.
"""

import io
import re
import tokenize
from bisect import bisect_right
from itertools import accumulate

from contracts.trajectory import TokenClass

OPEN_CALL, CLOSE_CALL = "<tool_call>", "</tool_call>"
_CODE_KEY = re.compile(r'"code"\s*:\s*"')
_ANSWER = re.compile(r"<answer>(.*?)(?:</answer>|\Z)", re.DOTALL)
_TAG = re.compile(r"</?(?:answer|reason|tool_call|tool_response)>|<\|[^<>|\s]*\|>")
_ESCAPES = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f"}

Span = tuple[int, int]


def token_at(starts: list[int], position: int) -> int:
    """Index of the token that holds a character; `starts` from `token_starts`."""
    return bisect_right(starts, position) - 1


def token_starts(texts: list[str]) -> list[int]:
    """Character position of each token in the joined text."""
    return list(accumulate(map(len, texts), initial=0))[:-1]


def classify_turn(texts: list[str]) -> list[TokenClass]:
    """One class a token. A token over a border belongs to the class of its first character that is no space.

    code: inside the JSON string of a call's code; comment: a Python comment in it; answer: inside the
    answer tag; format: tags, special tokens and the rest of a call; reasoning: everything else. An
    unclosed call or answer (a turn still being written, or cut) reaches to the end.
    """
    text = "".join(texts)
    kinds = [TokenClass.REASONING] * len(text)
    for match in _ANSWER.finditer(text):
        _paint(kinds, match.span(1), TokenClass.ANSWER)
    at = text.find(OPEN_CALL)
    while at >= 0:
        at = _paint_call(text, at, kinds)
    for match in _TAG.finditer(text):
        if kinds[match.start()] not in (TokenClass.CODE, TokenClass.COMMENT):
            _paint(kinds, match.span(), TokenClass.FORMAT)
    return [
        kinds[start + len(piece) - len(piece.lstrip())] if piece.strip() else _class_of_space(kinds, start)
        for piece, start in zip(texts, token_starts(texts), strict=True)
    ]


def _class_of_space(kinds: list[TokenClass], start: int) -> TokenClass:
    return kinds[start] if start < len(kinds) else TokenClass.FORMAT


def _paint(kinds: list[TokenClass], span: Span, kind: TokenClass) -> None:
    kinds[span[0] : span[1]] = [kind] * (span[1] - span[0])


def _paint_call(text: str, at: int, kinds: list[TokenClass]) -> int:
    """Paint the call whose tag opens at `at`; where the next tag opens, -1 for none."""
    begin = at + len(OPEN_CALL)
    if not text[begin:].lstrip().startswith(("{", "[", "`", "'", '"')) and text[begin:].strip():
        return text.find(OPEN_CALL, begin)  # the tag is only mentioned
    key = _CODE_KEY.search(text, begin)
    close = text.find(CLOSE_CALL, begin)
    if key is None or (0 <= close < key.start()):
        end = len(text) if close < 0 else close + len(CLOSE_CALL)
        _paint(kinds, (at, end), TokenClass.FORMAT)
        return text.find(OPEN_CALL, end)
    code, positions, code_end = _unescape(text, key.end())
    close = text.find(CLOSE_CALL, code_end)
    end = len(text) if close < 0 else close + len(CLOSE_CALL)
    _paint(kinds, (at, end), TokenClass.FORMAT)
    _paint(kinds, (key.end(), code_end), TokenClass.CODE)
    for first, last in comment_spans(code):
        _paint(kinds, (positions[first], positions[last]), TokenClass.COMMENT)
    return text.find(OPEN_CALL, end)


def _unescape(text: str, at: int) -> tuple[str, list[int], int]:
    """The JSON string that begins at `at`: its value, where each character (and the end) stands, its end."""
    value: list[str] = []
    positions: list[int] = []
    while at < len(text) and text[at] != '"':
        positions.append(at)
        if text[at] == "\\" and at + 1 < len(text):
            letter = text[at + 1]
            value.append("?" if letter == "u" else _ESCAPES.get(letter, letter))
            at += 6 if letter == "u" else 2
        else:
            value.append(text[at])
            at += 1
    at = min(at, len(text))
    return "".join(value), [*positions, at], at


def comment_spans(code: str) -> list[Span]:
    """Character spans of the Python comments; of what could be read when the code is broken."""
    line_starts = [0, *accumulate(len(line) for line in code.splitlines(keepends=True))]
    spans: list[Span] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.COMMENT:
                start = line_starts[token.start[0] - 1] + token.start[1]
                spans.append((start, start + len(token.string)))
    except (tokenize.TokenError, SyntaxError):
        return spans
    return spans
