"""Classes, marks and window entropies of a trajectory's tokens (rStar2-Agent 5.4)."""

from collections.abc import Sequence
from dataclasses import dataclass

from contracts.events import TokenReport
from contracts.trajectory import TokenClass, TokenMark
from trainer.rollout.trajectory import Trajectory


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
    raise NotImplementedError


def entropy_metrics(pairs: Sequence[tuple[Trajectory, TokenAnalysis]]) -> dict[str, float]:
    """entropy/{mean,reasoning,code,after_ok,after_error}, tokens/{forking,reflection}_share; absent where empty."""
    raise NotImplementedError


def token_report(
    pairs: Sequence[tuple[Trajectory, TokenAnalysis]], settings: MarkSettings, *, stage: int, step: int
) -> TokenReport:
    raise NotImplementedError
