"""Index rows of trajectories, as the journal brings them."""

from collections.abc import Sequence
from typing import Any

from contracts.events import Trajectories
from contracts.scoring import Graded
from contracts.trajectory import Decision, TrajectoryIndex
from webapp.runs.models import Run
from webapp.trajectories.models import Trajectory
from webapp.trajectories.upsert import upsert_newest


def record_trajectories(run: Run, attempt: int, payloads: Sequence[tuple[int, Trajectories]]) -> None:
    """Called inside ingest's transaction; sending the same events again changes nothing."""
    rows = [_to_row(run, attempt, index) for _, payload in sorted(payloads, key=_seq) for index in payload.rows]
    upsert_newest(Trajectory, ("run_id", "shard", "prompt_id", "sample"), rows)


def _seq(payload: tuple[int, Trajectories]) -> int:
    return payload[0]


def _to_row(run: Run, attempt: int, index: TrajectoryIndex) -> dict[str, Any]:
    row = index.model_dump(mode="json", exclude={"grade", "draw"})
    grade = index.grade
    graded, ungraded = (grade, None) if isinstance(grade, Graded) else (None, grade)
    return {
        **row,
        "run_id": str(run.pk),
        "attempt": attempt,
        "is_evaluation": index.decision is Decision.EVALUATION,
        "stage_name": index.stage_name[:60],
        "shard": index.shard[:400],
        "reward": graded.reward if graded else None,
        "ungraded_reason": ungraded.reason.value if ungraded else "",
        "ungraded_detail": ungraded.detail[:2000] if ungraded else "",
    }
