"""From a trajectory to the rows that are stored: the small index and the full Parquet row."""

from dataclasses import dataclass

from contracts.scoring import Graded, Ungraded, UngradedReason
from contracts.trajectory import Decision, TrajectoryIndex, TrajectoryRow
from trainer.analysis.tokens import TokenAnalysis
from trainer.rollout.chat import Chat
from trainer.rollout.trajectory import Trajectory

PROBLEM_CHARS = 300


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
    draw: int | None = None


def build_index(
    trajectory: Trajectory, analysis: TokenAnalysis, credit: Credit, place: RowPlace, row: int
) -> TrajectoryIndex:
    """The small row: what a table shows and an event carries. `row` is its number in the shard."""
    grade = trajectory.grade or Ungraded(reason=UngradedReason.CANCELLED, detail="never graded")
    return TrajectoryIndex(
        stage=place.stage,
        stage_name=place.stage_name,
        step=place.step,
        prompt_id=trajectory.problem.id,
        sample=trajectory.sample,
        problem=trajectory.problem.text[:PROBLEM_CHARS],
        reference_answer=trajectory.problem.answer,
        answer=grade.answer if isinstance(grade, Graded) else None,
        grade=grade,
        advantage=credit.advantage,
        decision=credit.decision,
        weight=credit.weight,
        p_err=credit.p_err,
        p_format=credit.p_format,
        draw_probability=credit.draw_probability,
        draw=credit.draw,
        stop_reason=trajectory.stop_reason,
        turns=len(trajectory.turns),
        tool_calls=len(trajectory.tool_calls),
        tool_errors=trajectory.tool_errors,
        prompt_tokens=len(trajectory.prompt_ids),
        response_tokens=len(trajectory.response_ids),
        policy_tokens=sum(trajectory.mask),
        mean_entropy=analysis.entropy.value,
        forking_tokens=analysis.forking_tokens,
        reflection_tokens=analysis.reflection_tokens,
        duration_s=trajectory.duration_s,
        policy_version=trajectory.policy_version,
        shard=place.shard,
        row=row,
    )


def build_row(
    trajectory: Trajectory, analysis: TokenAnalysis, credit: Credit, place: RowPlace, row: int, chat: Chat
) -> TrajectoryRow:
    """The full row. Token texts of the response are the analysis'."""
    return TrajectoryRow(
        run=place.run,
        attempt=place.attempt,
        index=build_index(trajectory, analysis, credit, place, row),
        problem=trajectory.problem.text,
        prompt_text=chat.text(trajectory.prompt_ids),
        prompt_ids=trajectory.prompt_ids,
        response_ids=trajectory.response_ids,
        token_texts=analysis.texts,
        response_mask=trajectory.mask,
        sampling_logprobs=trajectory.logprobs,
        entropies=trajectory.entropies,
        entropy_kind=trajectory.entropy_kind,
        token_classes=analysis.classes,
        token_marks=analysis.marks,
        turns=trajectory.turns,
        tool_calls=trajectory.tool_calls,
        version_spans=trajectory.version_spans,
    )
