"""Changes to data sets: stored on upload, registered as a benchmark, archived; funnels as the journal brings them."""

from collections.abc import Sequence

from contracts.events import Funnel as FunnelEvent
from webapp.datasets.models import Funnel
from webapp.runs.models import Run
from webapp.trajectories.upsert import upsert_newest


def record_funnel(run: Run, attempt: int, payloads: Sequence[tuple[int, FunnelEvent]]) -> None:
    """Called inside ingest's transaction; sending the same events again changes nothing."""
    rows = [
        {**payload.model_dump(mode="json", exclude={"kind"}), "run_id": str(run.pk), "attempt": attempt}
        for _, payload in sorted(payloads, key=lambda item: item[0])
    ]
    upsert_newest(Funnel, ("run_id", "stage"), rows)
