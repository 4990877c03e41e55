"""`/api/v1/runs/...` for browsers and scripts: session authentication, the same access rules as the pages."""

from dataclasses import asdict
from math import isfinite
from typing import Any
from uuid import UUID

from django.http import HttpRequest
from ninja import Body, Router, Status
from ninja.errors import HttpError

from contracts.events import Number, encode_number
from webapp.accounts.access import get_project
from webapp.accounts.models import Role
from webapp.runs import actions, queries
from webapp.runs.access import get_run
from webapp.runs.recipes import RecipeInvalid
from webapp.runs.series import read_series

router = Router(tags=["runs"])


@router.get("/projects/{slug}/runs", summary="Runs of a project")
def list_runs(
    request: HttpRequest, slug: str, state: str = "", text: str = "", sort: str = "-created", page: int = 1
) -> dict[str, Any]:
    project = get_project(request.user, slug)
    found = queries.runs_page(project, state=state, text=text, sort=sort, page=page)
    rows = [_finite(asdict(row)) for row in found.rows]
    return {"runs": rows, "total": found.total, "page": found.page, "pages": found.pages}


@router.post("/projects/{slug}/runs", response={201: dict, 422: dict}, summary="Launch a run")
def launch_run(
    request: HttpRequest,
    slug: str,
    recipe: dict[str, Any] = Body(...),  # noqa: B008 - ninja's way
) -> Status:
    project = get_project(request.user, slug, Role.OPERATOR)
    try:
        run = actions.create_run(project, request.user, recipe)
    except RecipeInvalid as error:
        return Status(422, {"errors": error.errors})
    return Status(201, {"id": str(run.pk), "state": run.state})


@router.get("/runs/{uuid:run_id}/summary", summary="State, stages and tiles")
def get_summary(request: HttpRequest, run_id: UUID) -> dict[str, Any]:
    summary = queries.run_summary(get_run(request.user, run_id))
    flat = asdict(summary)
    flat.pop("recipe")
    flat["stages"] = [{**asdict(s), "share": s.share} for s in summary.stages]
    flat["tiles"] = {name: encode_number(value) for name, value in summary.tiles.items()}
    flat["row"] = {**_finite(flat["row"]), "progress": summary.row.progress}
    return flat


@router.get("/runs/{uuid:run_id}/series", summary="Metric series, bucketed for a chart")
def get_series(
    request: HttpRequest, run_id: UUID, names: str = "", points: int = 800, since: int = 0
) -> dict[str, Any]:
    """`names` comma separated, all when empty. With `since` (a revision) only what is newer."""
    run = get_run(request.user, run_id)
    wanted = [n for n in names.split(",") if n] or queries.metric_names(run)
    found = read_series(run, wanted, points=points, since=since)
    return {
        "revision": found.revision,
        "attempt": found.attempt,
        "series": {
            s.name: {
                "total": s.total,
                "stage": [p.stage for p in s.points],
                "step": [p.step for p in s.points],
                "value": [encode_number(p.value) for p in s.points],
                "attempt": [p.attempt for p in s.points],
            }
            for s in found.series
        },
    }


@router.get("/runs/{uuid:run_id}/logs", summary="Log lines in order of arrival")
def get_logs(
    request: HttpRequest, run_id: UUID, after: int = 0, before: int = 0, level: str = "", limit: int = 500
) -> dict[str, Any]:
    """The last lines, those before an id, or those after one."""
    run = get_run(request.user, run_id)
    lines = queries.logs_page(run, after=after, before=before, level=level, limit=min(max(limit, 1), 1000))
    keys = ("id", "attempt", "time", "level", "source", "text")
    return {"revision": run.revision, "lines": [{k: getattr(line, k) for k in keys} for line in lines]}


@router.post("/runs/{uuid:run_id}/stop", summary="Ask the run to stop; it is killed after the deadline")
def stop_run(request: HttpRequest, run_id: UUID) -> dict[str, Any]:
    run = get_run(request.user, run_id, Role.OPERATOR)
    return _act(actions.request_stop, run, request.user)


@router.post("/runs/{uuid:run_id}/resume", summary="Go on from the newest checkpoint")
def resume_run(request: HttpRequest, run_id: UUID) -> dict[str, Any]:
    run = get_run(request.user, run_id, Role.OPERATOR)
    return _act(actions.resume_run, run, request.user)


def _act(action: Any, run: Any, user: Any) -> dict[str, Any]:
    try:
        action(run, user)
    except (actions.ActionRefused, actions.ForbiddenMove) as error:
        raise HttpError(409, str(error)) from None
    return {"state": run.state, "state_reason": run.state_reason, "stop_deadline": run.stop_deadline}


def _finite(row: dict[str, Any]) -> dict[str, Any | Number]:
    return {k: encode_number(v) if isinstance(v, float) and not isfinite(v) else v for k, v in row.items()}
