"""From the token analyses of many trajectories to metrics and to the token report of a step."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from contracts.events import TokenCount, TokenReport, TokenWindow, WindowReport
from contracts.trajectory import EntropyKind, TokenClass, TokenMark
from trainer.analysis.tokens import MarkSettings, Mean, TokenAnalysis

TOP_TOKENS = 20
TOP_WINDOW_TOKENS = 8
MIN_COUNT = 3  # a rank by mean entropy of tokens seen once would be a list of accidents
MAX_TEXT_CHARS = 40  # of a token in the report, so that the event stays small

_Positions = Iterable[tuple[TokenAnalysis, int]]


class MixedEntropies(ValueError):
    """Entropies of the full vocabulary and bounds from the top k have no common mean."""


def entropy_metrics(analyses: Sequence[TokenAnalysis]) -> dict[str, float]:
    """entropy/*, tokens/{forking,reflection}_share of `contracts.metrics`; a name is absent where it is undefined.

    MixedEntropies where the trajectories' entropies are not all of the full vocabulary.
    """
    if find_kind(analyses) is not EntropyKind.FULL:
        raise MixedEntropies("the entropy metrics are over the full vocabulary; these are bounds from the top k")
    mean = sum((a.entropy for a in analyses), Mean())
    means = {"entropy/mean": mean}
    means |= {f"entropy/{kind.value}": value for kind, value in entropy_by_class(analyses).items()}
    means |= {f"entropy/{place.value}": _mean_at(_in_windows(analyses, place)) for place in TokenWindow}
    values = {name: m.total / m.count for name, m in means.items() if m.count}
    if mean.count:
        values["tokens/forking_share"] = sum(a.forking_tokens for a in analyses) / mean.count
        values["tokens/reflection_share"] = sum(a.reflection_tokens for a in analyses) / mean.count
    return values


def token_report(analyses: Sequence[TokenAnalysis], settings: MarkSettings, *, stage: int, step: int) -> TokenReport:
    """Counts and entropies by class and beside tool responses, the marked tokens by count and by entropy.

    Tool responses are counted, they have no entropy. Its size does not grow with the number of trajectories.
    """
    counts: dict[TokenClass, int] = defaultdict(int)
    for analysis in analyses:
        for token_class in analysis.classes:
            counts[token_class] += 1
    forking, reflection = (_tally(_marked(analyses, m)) for m in (TokenMark.FORKING, TokenMark.REFLECTION))
    return TokenReport(
        stage=stage,
        step=step,
        forking_share=settings.forking_share,
        reflection_window=settings.reflection_window,
        entropy_kind=find_kind(analyses),
        policy_tokens=sum(sum(a.mask) for a in analyses),
        forking_tokens=sum(a.forking_tokens for a in analyses),
        reflection_tokens=sum(a.reflection_tokens for a in analyses),
        mean_entropy_by_class={k: m.total / m.count for k, m in entropy_by_class(analyses).items()},
        tokens_by_class=dict(counts),
        top_forking=_by_count(forking)[:TOP_TOKENS],
        top_reflection=_by_count(reflection)[:TOP_TOKENS],
        top_forking_by_entropy=_by_entropy(forking)[:TOP_TOKENS],
        top_reflection_by_entropy=_by_entropy(reflection)[:TOP_TOKENS],
        windows={place: window for place in TokenWindow if (window := _window_report(analyses, place))},
    )


def find_kind(analyses: Sequence[TokenAnalysis]) -> EntropyKind:
    """The one kind of all; MixedEntropies where there are two. Nothing at all counts as full."""
    kinds = {a.kind for a in analyses if any(a.mask)}
    if len(kinds) > 1:
        raise MixedEntropies("some entropies are over the full vocabulary, others bounds from the top k")
    return kinds.pop() if kinds else EntropyKind.FULL


def entropy_by_class(analyses: Sequence[TokenAnalysis]) -> dict[TokenClass, Mean]:
    """Over the policy tokens of each class that has some."""
    totals: dict[TokenClass, float] = defaultdict(float)
    counts: dict[TokenClass, int] = defaultdict(int)
    for analysis in analyses:
        for kind, entropy, mask in zip(analysis.classes, analysis.entropies, analysis.mask, strict=True):
            if mask:
                totals[kind] += entropy
                counts[kind] += 1
    return {kind: Mean(totals[kind], counts[kind]) for kind in counts}


def _window_report(analyses: Sequence[TokenAnalysis], place: TokenWindow) -> WindowReport | None:
    positions = list(_in_windows(analyses, place))
    if not positions:
        return None
    marks = [analysis.marks[i] for analysis, i in positions]
    marked = _tally((a, i) for a, i in positions if a.marks[i] is not TokenMark.NONE)
    return WindowReport(
        responses=sum(p is place for a in analyses for p, _ in a.windows),
        tokens=len(positions),
        mean_entropy=sum(a.entropies[i] for a, i in positions) / len(positions),
        forking_tokens=marks.count(TokenMark.FORKING),
        reflection_tokens=marks.count(TokenMark.REFLECTION),
        top=_by_count(marked)[:TOP_WINDOW_TOKENS],
        top_by_entropy=_by_entropy(marked)[:TOP_WINDOW_TOKENS],
    )


def _in_windows(analyses: Iterable[TokenAnalysis], place: TokenWindow) -> _Positions:
    return ((a, i) for a in analyses for p, window in a.windows if p is place for i in window)


def _marked(analyses: Iterable[TokenAnalysis], mark: TokenMark) -> _Positions:
    return ((a, i) for a in analyses for i, m in enumerate(a.marks) if m is mark)


def _mean_at(positions: _Positions) -> Mean:
    values = [a.entropies[i] for a, i in positions]
    return Mean(sum(values), len(values))


def _tally(positions: _Positions) -> list[TokenCount]:
    """Each text with its count and mean entropy, in no order."""
    totals: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    for analysis, i in positions:
        text = analysis.texts[i][:MAX_TEXT_CHARS]
        totals[text] += analysis.entropies[i]
        counts[text] += 1
    return [TokenCount(text=t, count=n, mean_entropy=totals[t] / n) for t, n in counts.items()]


def _by_count(rows: list[TokenCount]) -> list[TokenCount]:
    """Commonest first, then by mean entropy, then by text."""
    return sorted(rows, key=lambda row: (-row.count, -row.mean_entropy, row.text))


def _by_entropy(rows: list[TokenCount]) -> list[TokenCount]:
    """Highest mean entropy first, of the texts seen MIN_COUNT times, or as often as the commonest one."""
    often = min(MIN_COUNT, max((row.count for row in rows), default=0))
    rows = [row for row in rows if row.count >= often]
    return sorted(rows, key=lambda row: (-row.mean_entropy, -row.count, row.text))
