"""From a trajectory to the rows that are stored: the small index and the full Parquet row."""

from dataclasses import dataclass

from contracts.trajectory import Decision, TrajectoryIndex, TrajectoryRow
from trainer.analysis.tokens import TokenAnalysis
from trainer.rollout.chat import Chat
from trainer.rollout.trajectory import Trajectory


@dataclass(frozen=True, slots=True)
class RowPlace:
    """Where and when: of the run, the attempt, the stage, the step, the shard."""

    run: str
    attempt: int
    stage: int
    stage_name: str
    step: int
    shard: str


@dataclass(frozen=True, slots=True)
class Credit:
    """What the selection made of a rollout; all but the decision None where they do not apply."""

    decision: Decision
    advantage: float | None = None
    weight: float | None = None
    p_err: float | None = None
    p_format: float | None = None
    draw_probability: float | None = None


def build_index(
    trajectory: Trajectory, analysis: TokenAnalysis, credit: Credit, place: RowPlace, row: int
) -> TrajectoryIndex:
    raise NotImplementedError


def build_row(
    trajectory: Trajectory, analysis: TokenAnalysis, credit: Credit, place: RowPlace, row: int, chat: Chat
) -> TrajectoryRow:
    raise NotImplementedError
