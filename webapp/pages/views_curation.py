"""The curation tab of a run: its funnel, and the rows of a check, of the training set or of the held-out set."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import FileResponse, Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.urls import reverse
from django.utils.http import urlencode
from django.views.decorators.http import require_GET, require_POST

from webapp.accounts.models import Role
from webapp.datasets import actions, curated, queries
from webapp.datasets.models import Funnel
from webapp.pages.views_run import run_context
from webapp.runs.access import get_run
from webapp.runs.models import Run
from webapp.trajectories.shards import ShardError

ROWS_PAGE = 25
PATHS = {"rejected": "rejected_path", "train": "train_path", "held_out": "held_out_path"}


@login_required
@require_GET
def curation(request: HttpRequest, run_id: UUID) -> HttpResponse:
    run = get_run(request.user, run_id)
    curates = [stage for stage in run.stages if stage["kind"] == "curate"]
    funnels = [f for f in queries.funnels_for_run(run) if f.stage in {stage["index"] for stage in curates}]
    asked = request.GET.get("stage", "")
    funnel = next((f for f in funnels if str(f.stage) == asked), funnels[-1] if funnels else None)
    names = {stage["index"]: stage["name"] for stage in curates}
    context = {
        **run_context(request, run, "curation"),
        "stages": [(f, names[f.stage]) for f in funnels] if len(funnels) > 1 else [],
        "waiting": next((stage for stage in reversed(curates) if stage["started_at"]), None),
        "funnel": funnel,
        **(_rows(request, funnel, names[funnel.stage]) if funnel else {}),
    }
    return render(request, "pages/run_curation.html", context)


def _rows(request: HttpRequest, funnel: Funnel, stage_name: str) -> dict[str, Any]:
    """The page of rows that is asked for; `fault` says why there is none."""
    get = request.GET
    show = get.get("show", "") if get.get("show") in PATHS else "rejected"
    check = get.get("check", "")[:80] if show == "rejected" else ""
    text = get.get("q", "")[: curated.MAX_TEXT].strip().replace("\x00", "")
    start = int(get["start"]) if get.get("start", "").isdecimal() and len(get["start"]) < 10 else 0
    page, fault = curated.Page([], 0, 0), ""
    try:
        with curated.open_file(funnel.run_id, getattr(funnel, PATHS[show])) as stream:
            page = curated.read_page(stream, start, ROWS_PAGE, check=check, text=text)
    except ShardError as error:
        fault = str(error)
    query = {"stage": funnel.stage, "show": show, "check": check, "q": text}
    return {
        "stage_name": stage_name,
        "show": show,
        "check": check,
        "text": text,
        "fault": fault,
        "page": page,
        "end": start + len(page.rows),
        "checks": [(row, row["entered"] - row["left"]) for row in funnel.rows],
        "rejected_total": sum(funnel.refused.values()),
        "previous": urlencode({**query, "start": max(0, start - ROWS_PAGE)}) if start else "",
        "following": urlencode({**query, "start": start + ROWS_PAGE}) if start + ROWS_PAGE < page.total else "",
    }


@login_required
@require_GET
def download(request: HttpRequest, run_id: UUID, stage: int, which: str) -> HttpResponse:
    """A file as a download: never shown by the browser, whatever it holds."""
    run, funnel = _find(request, run_id, stage)
    if which not in PATHS:
        raise Http404("no such file")
    try:
        stream = curated.open_file(run.pk, getattr(funnel, PATHS[which]))
    except ShardError as error:
        raise Http404(str(error)) from error
    name = f"{which}.jsonl"
    response = FileResponse(stream, as_attachment=True, filename=name, content_type="application/octet-stream")
    response["X-Content-Type-Options"] = "nosniff"
    return response


@login_required
@require_POST
def keep(request: HttpRequest, run_id: UUID, stage: int) -> HttpResponse:
    run, funnel = _find(request, run_id, stage, Role.OPERATOR)
    try:
        kept = actions.keep_curated(funnel, name=request.POST.get("name", "").strip() or run.name, by=request.user)
    except ShardError as error:
        messages.error(request, f"Nothing was kept: {error}.")
        return redirect(reverse("pages:run_curation", args=[run.pk]))
    if not kept.is_new:
        messages.warning(request, f"The same problems are a data set already, {kept.dataset.name}: here it is.")
    return redirect("datasets:detail", kept.dataset.pk)


def _find(request: HttpRequest, run_id: UUID, stage: int, role: Role = Role.VIEWER) -> tuple[Run, Funnel]:
    run = get_run(request.user, run_id, role)
    funnel = queries.get_funnel(run, stage)
    if not funnel.version:
        raise Http404("this stage has left no files")
    return run, funnel
