"""From a stored trajectory to the blocks of its page: pure, no database, no files.

A block is what one header stands over: the problem, assistant text, a tool call, a tool response.
Positions are token positions in the response.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from statistics import fmean
from typing import Any

from contracts.trajectory import TokenClass, TokenMark, ToolCallRow, TrajectoryRow, TurnRow
from webapp.trajectories.endings import Ending, describe_ending

MAX_TEXT_CHARS = 20_000  # of one block; the rest is in the raw text
MAX_TOKENS = 8_000  # spans on one page
MAX_SPAN_TOKENS = 2_000  # spans in one block
HEAT_TOP_NATS = 2.0
CLASS_WORDS = {
    "reasoning": "reasoning",
    "after_error": "reflection after error",
    "after_ok": "reflection after ok",
    "code": "tool code",
    "comment": "code comments",
    "answer": "answer",
    "format": "format",
}


@dataclass(frozen=True, slots=True)
class TokenSpan:
    position: int
    text: str
    css: str
    title: str


@dataclass(frozen=True, slots=True)
class Block:
    kind: str  # assistant, call, response
    turn: int  # as people count, from 1
    start: int
    end: int
    text: str = ""
    hidden_chars: int = 0
    tokens: Sequence[TokenSpan] = ()
    hidden_tokens: int = 0
    mean_entropy: float | None = None
    forking: int = 0
    reflection: int = 0
    generate_s: float | None = None
    call: ToolCallRow | None = None
    ending: Ending | None = None
    is_last: bool = False

    @property
    def has_traceback(self) -> bool:
        return self.call is not None and self.call.status.is_error and '  File "' in self.text

    @property
    def count(self) -> int:
        return self.end - self.start


@dataclass(slots=True)
class Budget:
    """Token spans left on the page."""

    left: int = MAX_TOKENS


@dataclass(frozen=True, slots=True)
class ClassEntropy:
    name: str
    mean: float
    count: int


@dataclass(frozen=True, slots=True)
class _Piece:
    kind: str
    turn: TurnRow
    start: int
    end: int
    call: ToolCallRow | None = None


@dataclass(slots=True)
class _Layout:
    pieces: list[_Piece] = field(default_factory=list)

    def add(self, piece: _Piece) -> None:
        if piece.end > piece.start or piece.call is not None:
            self.pieces.append(piece)


def make_blocks(row: TrajectoryRow, *, with_tokens: bool, recipe: Any = None) -> list[Block]:
    """In the order of the response. With tokens: their spans, at most `MAX_TOKENS` on the page.

    `recipe`: the run's, for the limits its calls had.
    """
    pieces = _pieces(row)
    budget = Budget()
    last = max((i for i, p in enumerate(pieces) if p.kind == "assistant"), default=-1)
    is_answered = not any(p.kind in ("call", "response") for p in pieces[last + 1 :])
    made = [
        _make_block(row, piece, budget if with_tokens else None, is_last=is_answered and i == last)
        for i, piece in enumerate(pieces)
    ]
    return [replace(b, ending=describe_ending(b.call, recipe)) if b.kind == "response" and b.call else b for b in made]


def _pieces(row: TrajectoryRow) -> list[_Piece]:
    size = len(row.response_ids)
    layout = _Layout()
    for turn in row.turns:
        at, end = _inside(turn.start, size), _inside(turn.end, size)
        calls = sorted((c for c in row.tool_calls if c.turn == turn.turn), key=lambda c: c.call_start)
        for call in calls:
            start, stop = max(at, _inside(call.call_start, size)), _inside(call.call_end, size)
            layout.add(_Piece("assistant", turn, at, start))
            layout.add(_Piece("call", turn, start, max(start, stop), call))
            at = max(start, stop)
        if calls and _is_only_format(row, at, end):  # the end-of-turn token after a call
            last = layout.pieces.pop()
            layout.add(_Piece(last.kind, last.turn, last.start, max(last.end, end), last.call))
        else:
            layout.add(_Piece("assistant", turn, at, end))
        for call in calls:
            start, stop = _inside(call.response_start, size), _inside(call.response_end, size)
            layout.add(_Piece("response", turn, start, max(start, stop), call))
    return layout.pieces


def _inside(position: int, size: int) -> int:
    return min(max(position, 0), size)


def _is_only_format(row: TrajectoryRow, start: int, end: int) -> bool:
    return all(kind is TokenClass.FORMAT for kind in row.token_classes[start:end])


def _make_block(row: TrajectoryRow, piece: _Piece, budget: Budget | None, *, is_last: bool) -> Block:
    positions = range(piece.start, piece.end)
    if piece.kind == "call" and piece.call is not None:
        text = piece.call.code or "".join(row.token_texts[piece.start : piece.end])
    elif piece.kind == "response" and piece.call is not None:
        text = piece.call.response_text
    else:
        text = "".join(row.token_texts[i] for i in positions if row.token_classes[i] is not TokenClass.FORMAT)
    shown = cut(text)
    spans: list[TokenSpan] = []
    if budget is not None:
        take = min(len(positions), MAX_SPAN_TOKENS, budget.left)
        budget.left -= take
        spans = [_span(row, i) for i in positions[:take]]
    own = [row.entropies[i] for i in positions if row.response_mask[i]]
    marks = [row.token_marks[i] for i in positions]
    return Block(
        kind=piece.kind,
        turn=piece.turn.turn + 1,
        start=piece.start,
        end=piece.end,
        text=shown,
        hidden_chars=len(text) - len(shown),
        tokens=spans,
        hidden_tokens=len(positions) - len(spans) if budget is not None else 0,
        mean_entropy=fmean(own) if own else None,
        forking=marks.count(TokenMark.FORKING),
        reflection=marks.count(TokenMark.REFLECTION),
        generate_s=piece.turn.generate_ms / 1000 if piece.start == piece.turn.start else None,
        call=piece.call,
        is_last=is_last,
    )


def cut(text: str) -> str:
    return text if len(text) <= MAX_TEXT_CHARS else text[:MAX_TEXT_CHARS]


def _span(row: TrajectoryRow, i: int) -> TokenSpan:
    kind, mark, entropy = row.token_classes[i], row.token_marks[i], row.entropies[i]
    if not row.response_mask[i]:
        return TokenSpan(i, row.token_texts[i][:2000], "tok masked", f"{i} · tool response, not trained on")
    level = min(9, max(0, int(entropy / HEAT_TOP_NATS * 10))) if isfinite(entropy) else 0
    marked = "" if mark is TokenMark.NONE else f" {mark.value}"
    words = "" if mark is TokenMark.NONE else f" · {mark.value}"
    title = f"{i} · {entropy:.3f} nats · log-prob {row.sampling_logprobs[i]:.3f} · {kind.value}{words}"
    return TokenSpan(i, row.token_texts[i][:2000], f"tok h{level}{marked}", title)


def entropy_by_class(row: TrajectoryRow) -> list[ClassEntropy]:
    """Mean entropy over policy tokens by class; reflection tokens apart, by the status of the response before them."""
    groups: dict[str, list[float]] = {}
    responses = sorted((c.response_end, c.status.is_error) for c in row.tool_calls if c.response_end > c.response_start)
    for i, (entropy, is_policy) in enumerate(zip(row.entropies, row.response_mask, strict=True)):
        if not is_policy:
            continue
        name = row.token_classes[i].value
        if row.token_marks[i] is TokenMark.REFLECTION:
            before = [is_error for end, is_error in responses if end <= i]
            name = "after_error" if before and before[-1] else "after_ok"
        groups.setdefault(name, []).append(entropy)
    return [ClassEntropy(word, fmean(groups[n]), len(groups[n])) for n, word in CLASS_WORDS.items() if n in groups]
