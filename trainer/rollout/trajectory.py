"""One trajectory inside the trainer: a list of token ids that only ever grows, with aligned masks.

`contracts.trajectory.TrajectoryRow` is how it is stored; this is how it is made and learned from.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from contracts.scoring import Grade, Graded
from contracts.trajectory import EntropyKind, StopReason, ToolCallRow, TurnRow, VersionSpan


@dataclass(frozen=True, slots=True)
class Problem:
    """A prompt: a problem with its reference answer and a stable id. `extra`: other columns, kept."""

    id: str
    text: str
    answer: str
    extra: dict[str, str] = field(default_factory=dict)


@dataclass(slots=True)
class Trajectory:
    """Grows turn by turn in the agent loop and is not changed afterwards, but for `grade`.

    `response_ids`, `mask`, `logprobs`, `entropies` have the same length. mask 1: sampled by the policy
    (the stop id included); 0: tool response, with log-probability and entropy 0.0 there.
    """

    problem: Problem
    sample: int
    prompt_ids: list[int]
    response_ids: list[int] = field(default_factory=list)
    mask: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    entropies: list[float] = field(default_factory=list)
    turns: list[TurnRow] = field(default_factory=list)
    tool_calls: list[ToolCallRow] = field(default_factory=list)
    entropy_kind: EntropyKind = EntropyKind.FULL
    policy_version: int = 0  # of the first token
    version_spans: list[VersionSpan] = field(default_factory=list)
    stop_reason: StopReason = StopReason.CANCELLED
    grade: Grade | None = None
    duration_s: float = 0.0

    def add_versions(self, start: int, spans: Sequence[VersionSpan]) -> None:
        """Of tokens that were appended at `start`; positions of `spans` count from there. A tool response between
        them and the last span becomes part of that one, and so do tokens of the same version."""
        for span in spans:
            end = start + span.end
            if self.version_spans:
                last = self.version_spans[-1]
                is_same = last.version == span.version
                until = end if is_same else start + span.start
                self.version_spans[-1] = VersionSpan(version=last.version, start=last.start, end=until)
                if is_same:
                    continue
            self.version_spans.append(VersionSpan(version=span.version, start=start + span.start, end=end))

    @property
    def reward(self) -> float | None:
        """The grader's number; None when ungraded."""
        return self.grade.reward if isinstance(self.grade, Graded) else None

    @property
    def tool_errors(self) -> int:
        return sum(call.status.is_error for call in self.tool_calls)
