"""Classes, marks and windows of one trajectory's tokens (rStar2-Agent 5.4).

The high-entropy tokens are the top `forking_share` by entropy of a trajectory's policy tokens. The paper sees two
patterns in them, and so the marks are disjoint: REFLECTION is a reasoning token among the first `reflection_window`
policy tokens after a tool response, FORKING every other one. The two counts add up to the high-entropy tokens.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

from contracts.events import TokenWindow
from contracts.trajectory import EntropyKind, TokenClass, TokenMark, ToolCallRow, TrajectoryRow, TurnRow
from trainer.analysis.classes import classify_turn
from trainer.rollout.trajectory import Trajectory

MIN_ENTROPY = 1e-6  # nats; a token that had no alternative branches nowhere, whatever its rank


@dataclass(frozen=True, slots=True)
class MarkSettings:
    """The recipe's `forking_share` and `reflection_window`."""

    forking_share: float = 0.2
    reflection_window: int = 24


@dataclass(frozen=True, slots=True)
class Mean:
    """A sum with its count, so that means over trajectories are sums divided by counts."""

    total: float = 0.0
    count: int = 0

    @property
    def value(self) -> float | None:
        return self.total / self.count if self.count else None

    def __add__(self, other: "Mean") -> "Mean":
        return Mean(self.total + other.total, self.count + other.count)


@dataclass(frozen=True, slots=True)
class TokenAnalysis:
    """Per-token lists have the length of the response; `windows` are positions in it beside tool responses."""

    texts: list[str]
    classes: list[TokenClass]
    marks: list[TokenMark]
    entropies: list[float]
    mask: list[int]
    kind: EntropyKind
    windows: list[tuple[TokenWindow, range]]

    @property
    def entropy(self) -> Mean:
        """Over policy tokens, nats."""
        return Mean(sum(e for e, m in zip(self.entropies, self.mask, strict=True) if m), sum(self.mask))

    @property
    def forking_tokens(self) -> int:
        return self.marks.count(TokenMark.FORKING)

    @property
    def reflection_tokens(self) -> int:
        return self.marks.count(TokenMark.REFLECTION)


def analyze(trajectory: Trajectory, texts: list[str], settings: MarkSettings) -> TokenAnalysis:
    """`texts`: `chat.token_texts(trajectory.response_ids)`."""
    classes = classify(trajectory, texts)
    windows = find_windows(trajectory.turns, trajectory.tool_calls, settings.reflection_window)
    after = {i for place, window in windows if place.is_after for i in window}
    marks = [TokenMark.NONE] * len(texts)
    for index in high_entropy(trajectory, settings.forking_share):
        is_reflection = index in after and classes[index] is TokenClass.REASONING
        marks[index] = TokenMark.REFLECTION if is_reflection else TokenMark.FORKING
    return TokenAnalysis(texts, classes, marks, trajectory.entropies, trajectory.mask, trajectory.entropy_kind, windows)


def analysis_of_row(row: TrajectoryRow, reflection_window: int) -> TokenAnalysis:
    """Of a stored row: classes and marks as they were written, windows of this size."""
    windows = find_windows(row.turns, row.tool_calls, reflection_window)
    return TokenAnalysis(
        row.token_texts,
        row.token_classes,
        row.token_marks,
        row.entropies,
        row.response_mask,
        row.entropy_kind,
        windows,
    )


def classify(trajectory: Trajectory, texts: Sequence[str]) -> list[TokenClass]:
    """A class for each response token: of its turn's text, or TOOL_RESPONSE where the mask is 0."""
    classes = [TokenClass.TOOL_RESPONSE] * len(texts)
    for turn in trajectory.turns:
        classes[turn.start : turn.end] = classify_turn(list(texts[turn.start : turn.end]))
    return classes


def high_entropy(trajectory: Trajectory, share: float) -> list[int]:
    """Response positions of the top `share` of the policy tokens by entropy, rounded down; earlier wins a tie."""
    policy = [i for i, m in enumerate(trajectory.mask) if m]
    ranked = sorted(policy, key=lambda i: (-trajectory.entropies[i], i))
    top = ranked[: floor(share * len(policy) + 1e-9)]
    return sorted(i for i in top if trajectory.entropies[i] > MIN_ENTROPY)


def find_windows(turns: Sequence[TurnRow], calls: Sequence[ToolCallRow], size: int) -> list[tuple[TokenWindow, range]]:
    """Around each tool response that was shown: the last `size` policy tokens before its call, the first `size`
    after it. A window stays in its turn, so windows of one side never overlap."""
    by_number = {turn.turn: turn for turn in turns}
    by_start = {turn.start: turn for turn in turns}
    found = []
    for call in calls:
        if call.response_end <= call.response_start:
            continue
        is_error = call.status.is_error
        if (own := by_number.get(call.turn)) is not None:
            place = TokenWindow.BEFORE_ERROR if is_error else TokenWindow.BEFORE_OK
            found.append((place, range(max(own.start, call.call_start - size), call.call_start)))
        if (following := by_start.get(call.response_end)) is not None:
            place = TokenWindow.AFTER_ERROR if is_error else TokenWindow.AFTER_OK
            found.append((place, range(following.start, min(following.end, following.start + size))))
    return found
