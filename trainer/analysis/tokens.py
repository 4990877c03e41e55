"""Classes, marks and window entropies of a trajectory's tokens (rStar2-Agent 5.4).

Marks are disjoint. The high-entropy tokens are the top `forking_share` by entropy of a trajectory's policy
tokens. Of those, one is REFLECTION when it is a reasoning token among the first `reflection_window` policy
tokens after a tool response; every other one is FORKING. So the two shares on the chart add up to
`forking_share` and each says something; `TokenMark.BOTH` is not used, for every reflection token would be.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import floor

from contracts.events import TokenCount, TokenReport
from contracts.trajectory import TokenClass, TokenMark
from trainer.analysis.classes import classify_turn
from trainer.rollout.trajectory import Trajectory

TOP_TOKENS = 20
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
    """Per-token lists have the length of the response; the means are over policy tokens, in nats."""

    texts: list[str]
    classes: list[TokenClass]
    marks: list[TokenMark]
    entropy: Mean
    after_ok: Mean
    after_error: Mean
    forking_tokens: int
    reflection_tokens: int


def analyze(trajectory: Trajectory, texts: list[str], settings: MarkSettings) -> TokenAnalysis:
    """`texts`: `chat.token_texts(trajectory.response_ids)`."""
    classes = classify(trajectory, texts)
    windows = _windows(trajectory, settings.reflection_window)
    after = {index for _, window in windows for index in window}
    marks = [TokenMark.NONE] * len(texts)
    for index in high_entropy(trajectory, settings.forking_share):
        is_reflection = index in after and classes[index] is TokenClass.REASONING
        marks[index] = TokenMark.REFLECTION if is_reflection else TokenMark.FORKING
    entropies = trajectory.entropies
    return TokenAnalysis(
        texts=texts,
        classes=classes,
        marks=marks,
        entropy=_mean(e for e, m in zip(entropies, trajectory.mask, strict=True) if m),
        after_ok=_mean(entropies[i] for is_error, window in windows if not is_error for i in window),
        after_error=_mean(entropies[i] for is_error, window in windows if is_error for i in window),
        forking_tokens=marks.count(TokenMark.FORKING),
        reflection_tokens=marks.count(TokenMark.REFLECTION),
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


def entropy_metrics(pairs: Sequence[tuple[Trajectory, TokenAnalysis]]) -> dict[str, float]:
    """entropy/{mean,reasoning,code,after_ok,after_error}, tokens/{forking,reflection}_share; absent where empty."""
    by_class = _entropy_by_class(pairs)
    none = Mean()
    means = {
        "entropy/mean": sum((a.entropy for _, a in pairs), none),
        "entropy/reasoning": by_class.get(TokenClass.REASONING, none),
        "entropy/code": by_class.get(TokenClass.CODE, none),
        "entropy/after_ok": sum((a.after_ok for _, a in pairs), none),
        "entropy/after_error": sum((a.after_error for _, a in pairs), none),
    }
    values = {name: mean.total / mean.count for name, mean in means.items() if mean.count}
    if policy_tokens := means["entropy/mean"].count:
        values["tokens/forking_share"] = sum(a.forking_tokens for _, a in pairs) / policy_tokens
        values["tokens/reflection_share"] = sum(a.reflection_tokens for _, a in pairs) / policy_tokens
    return values


def token_report(
    pairs: Sequence[tuple[Trajectory, TokenAnalysis]], settings: MarkSettings, *, stage: int, step: int
) -> TokenReport:
    """Entropy and count by class (tool responses are counted, they have no entropy) and the commonest marked tokens."""
    by_class = _entropy_by_class(pairs)
    counts: dict[TokenClass, int] = defaultdict(int)
    for _, analysis in pairs:
        for token_class in analysis.classes:
            counts[token_class] += 1
    return TokenReport(
        stage=stage,
        step=step,
        forking_share=settings.forking_share,
        reflection_window=settings.reflection_window,
        mean_entropy_by_class={kind: mean.total / mean.count for kind, mean in by_class.items()},
        tokens_by_class=dict(counts),
        top_forking=_top(pairs, TokenMark.FORKING),
        top_reflection=_top(pairs, TokenMark.REFLECTION),
    )


def _windows(trajectory: Trajectory, size: int) -> list[tuple[bool, list[int]]]:
    """(is error, the first `size` policy tokens after it) of each tool response that was shown; a window ends
    with its turn, so windows do not overlap."""
    starts = {turn.start: turn for turn in trajectory.turns}
    return [
        (call.status.is_error, list(range(turn.start, min(turn.end, turn.start + size))))
        for call in trajectory.tool_calls
        if call.response_end > call.response_start and (turn := starts.get(call.response_end)) is not None
    ]


def _entropy_by_class(pairs: Sequence[tuple[Trajectory, TokenAnalysis]]) -> dict[TokenClass, Mean]:
    totals: dict[TokenClass, float] = defaultdict(float)
    counts: dict[TokenClass, int] = defaultdict(int)
    for trajectory, analysis in pairs:
        for kind, entropy, mask in zip(analysis.classes, trajectory.entropies, trajectory.mask, strict=True):
            if mask:
                totals[kind] += entropy
                counts[kind] += 1
    return {kind: Mean(totals[kind], counts[kind]) for kind in counts}


def _top(pairs: Sequence[tuple[Trajectory, TokenAnalysis]], mark: TokenMark) -> list[TokenCount]:
    """Commonest first, then by mean entropy, then by text."""
    totals: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for trajectory, analysis in pairs:
        for text, token_mark, entropy in zip(analysis.texts, analysis.marks, trajectory.entropies, strict=True):
            if token_mark is mark:
                totals[text] += entropy
                counts[text] += 1
    rows = [TokenCount(text=t, count=n, mean_entropy=totals[t] / n) for t, n in counts.items()]
    return sorted(rows, key=lambda row: (-row.count, -row.mean_entropy, row.text))[:TOP_TOKENS]


def _mean(values: Iterable[float]) -> Mean:
    found = list(values)
    return Mean(sum(found), len(found))
