"""One run: its tabs, the pieces of them that follow a live run, and the two verbs that change it."""

from typing import Any
from uuid import UUID

from django.contrib import messages
from django.contrib.auth.decorators import login_required
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.shortcuts import redirect, render
from django.urls import NoReverseMatch, reverse
from django.views.decorators.http import require_GET, require_POST

from contracts.curation import RULES
from contracts.events import TokenWindow
from webapp.accounts.access import has_role
from webapp.accounts.models import Role
from webapp.benchmarks.queries import evaluations_of_run
from webapp.datasets.queries import benchmark_name, benchmark_names, funnels_for_run
from webapp.pages import launching, queries, recipe_form, recipe_yaml
from webapp.pages.charts import charts_of
from webapp.runs import actions
from webapp.runs.access import get_run
from webapp.runs.models import RESUMABLE_STATES, STOPPABLE_STATES, Run, RunState, StepReport, TokenReportRow

WINDOW_WORDS = {
    TokenWindow.BEFORE_OK: "before a call that succeeded",
    TokenWindow.AFTER_OK: "after its response",
    TokenWindow.BEFORE_ERROR: "before a call that failed",
    TokenWindow.AFTER_ERROR: "after its response",
}
TABS = (
    ("overview", "Overview", "pages:run"),
    ("curation", "Curation", "pages:run_curation"),
    ("steps", "Steps", "pages:run_steps"),
    ("tokens", "Tokens", "pages:run_tokens"),
    ("timeline", "Timeline", "pages:run_timeline"),
    ("logs", "Logs", "pages:run_logs"),
    ("recipe", "Recipe", "pages:run_recipe"),
    ("checkpoints", "Checkpoints", "pages:run_checkpoints"),
    ("events", "Events", "pages:run_events"),
)

TAB_OF_STAGE = {"curation": "curate", "timeline": "rl"}


def run_context(request: HttpRequest, run: Run, tab: str) -> dict[str, Any]:
    """What every page of a run shows. Tabs of stages that a run does not have are left out."""
    may_change = has_role(request.user, run.project, Role.OPERATOR)
    state = run.run_state
    kinds = _stage_kinds(run)
    tabs = [one for one in TABS if TAB_OF_STAGE.get(one[0]) in (None, *kinds)]
    return {
        "run": run,
        "project": run.project,
        "place": "runs",
        "tab": tab,
        "tabs": [(key, label, reverse(name, args=[run.pk])) for key, label, name in tabs],
        "may_change": may_change,
        "can_stop": may_change and state in STOPPABLE_STATES,
        "can_resume": may_change and state in RESUMABLE_STATES,
        "has_begun": run.started_at is not None,
        "is_live": not state.is_terminal and state is not RunState.DRAFT,
    }


def render_run(request: HttpRequest, template: str, run: Run, tab: str, **more: Any) -> HttpResponse:
    """A page of the run with what all of them show."""
    return render(request, template, {**run_context(request, run, tab), **more})


def _stage_kinds(run: Run) -> set[str]:
    return {stage["kind"] for stage in run.recipe.get("stages", [])}


def _samples(run: Run) -> bool:
    """Whether a stage of it generates rollouts. SFT does not, nor does curation by rules alone."""
    return any(
        stage["kind"] in ("rl", "evaluate") or (stage["kind"] == "curate" and set(stage.get("checks", [])) - set(RULES))
        for stage in run.recipe.get("stages", [])
    )


def _now(run: Run) -> dict[str, Any]:
    """What the upper part of the overview shows and is asked for again when the run has changed."""
    names = benchmark_names(run.project)
    evaluations = [(e, benchmark_name(names, e.benchmark)) for e in evaluations_of_run(run.pk)]
    kinds = _stage_kinds(run)
    return {
        "tiles": queries.tiles(run),
        "ledger": queries.ledger(run) if "rl" in kinds else None,
        "stage_kinds": kinds,
        "evaluations": evaluations,
    }


def charts_context(run: Run, tab: str) -> dict[str, Any]:
    """What a template with charts needs: the charts, and the data `charts.js` draws them from."""
    revision, points = queries.points(run, since=-1)
    charts = charts_of(run.recipe.get("stages", []), tab)
    data = {"charts": [c.as_json() for c in charts], "stages": run.stages, "revision": revision, "points": points}
    return {"charts": charts, "chart_data": data}


@login_required
@require_GET
def overview(request: HttpRequest, run_id: UUID) -> HttpResponse:
    run = get_run(request.user, run_id)
    parts = {
        **_now(run),
        **charts_context(run, "overview"),
        "funnels": funnels_for_run(run),
        "has_rollouts": _samples(run),
    }
    return render_run(request, "pages/run_overview.html", run, "overview", **parts)


@login_required
@require_GET
def data(request: HttpRequest, run_id: UUID) -> JsonResponse:
    """The chart points that came after `since`; what a browser asks when it hears of a new revision."""
    run = get_run(request.user, run_id)
    text = request.GET.get("since", "")
    since = int(text) if text.lstrip("-").isdigit() and len(text) < 18 else -1
    revision, points = queries.points(run, since=since)
    return JsonResponse(
        {"revision": revision, "state": run.state, "stages": run.stages, "points": points},
        json_dumps_params={"allow_nan": False},
    )


@login_required
@require_GET
def head(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """State, attempt, heartbeat and verbs, as they are now."""
    run = get_run(request.user, run_id)
    return render(request, "pages/_run_head.html", run_context(request, run, ""))


@login_required
@require_GET
def now(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """Stage strip, tiles and evaluations, as they are now."""
    run = get_run(request.user, run_id)
    return render(request, "pages/_run_now.html", {**run_context(request, run, ""), **_now(run)})


@login_required
@require_GET
def steps(request: HttpRequest, run_id: UUID) -> HttpResponse:
    run = get_run(request.user, run_id)
    before = request.GET.get("before", "")
    rows = queries.step_rows(run, int(before) if before.isdigit() and len(before) < 9 else None)
    for row in rows:
        row["url"] = _step_url(run, row["step"])
        row["stage_name"] = run.stages[row["stage"]]["name"] if row["stage"] < len(run.stages) else ""
    older = rows[-1]["step"] if len(rows) == queries.PAGE_SIZE else None
    return render_run(request, "pages/run_steps.html", run, "steps", rows=rows, older=older)


def _step_url(run: Run, step: int) -> str:
    try:
        return reverse("trajectories:step", args=[run.pk, step])
    except NoReverseMatch:
        return ""


@login_required
@require_GET
def tokens(request: HttpRequest, run_id: UUID) -> HttpResponse:
    run = get_run(request.user, run_id)
    reported = find_report(request, TokenReportRow, run)
    row = reported["row"]
    return render_run(
        request,
        "pages/run_tokens.html",
        run,
        "tokens",
        **charts_context(run, "tokens"),
        **reported,
        report=row.report if row else None,
        classes=_classes(row.report) if row else [],
        tables=_top_tables(row.report) if row else [],
        windows=_windows(row.report) if row else [],
    )


def find_report(request: HttpRequest, model: type[StepReport], run: Run) -> dict[str, Any]:
    """The run's report on the step asked for, by default the newest one, and the steps beside it: row, step, older,
    newer; each None where there is none."""
    reports = model._default_manager.filter(run=run).order_by("stage", "step")
    numbers = list(reports.values_list("step", flat=True))
    asked = request.GET.get("step", "")
    if not numbers:
        return {"row": None, "step": None, "older": None, "newer": None}
    step = int(asked) if asked.isdigit() and int(asked) in numbers else numbers[-1]
    at = numbers.index(step)
    return {
        "row": reports.filter(step=step).last(),
        "step": step,
        "older": numbers[at - 1] if at > 0 else None,
        "newer": numbers[at + 1] if at + 1 < len(numbers) else None,
    }


def _top_tables(report: dict[str, Any]) -> list[tuple[str, list[Any], list[Any]]]:
    """(mark, by count, by entropy); reports of earlier versions have no ranking by entropy."""
    marks = ("forking", "reflection")
    return [(m, report[f"top_{m}"], report.get(f"top_{m}_by_entropy", [])) for m in marks]


def _windows(report: dict[str, Any]) -> list[dict[str, Any]]:
    found = report.get("windows", {})
    return [
        {
            "words": words,
            "is_error": place.value.endswith("error"),
            "forking": found[place]["forking_tokens"] / max(1, found[place]["tokens"]),
            "reflection": found[place]["reflection_tokens"] / max(1, found[place]["tokens"]),
            **found[place],
        }
        for place, words in WINDOW_WORDS.items()
        if place in found
    ]


def _classes(report: dict[str, Any]) -> list[dict[str, Any]]:
    means, counts = report["mean_entropy_by_class"], report["tokens_by_class"]
    top = max([v for v in means.values() if isinstance(v, int | float)], default=1.0) or 1.0
    order = sorted(means, key=lambda name: -means[name])
    return [{"name": n.replace("_", " "), "entropy": means[n], "top": top, "count": counts.get(n, 0)} for n in order]


@login_required
@require_GET
def logs(request: HttpRequest, run_id: UUID) -> HttpResponse:
    """The log; with `after` only the lines since, for the live tail."""
    run = get_run(request.user, run_id)
    get = request.GET
    level, text = get.get("level", ""), get.get("q", "")[:200].replace("\x00", "")
    cut = {k: int(get[k]) for k in ("after", "before") if get.get(k, "").isdigit() and len(get[k]) < 19}
    page = queries.log_page(run, level=level, text=text, after=cut.get("after"), before=cut.get("before"))
    template = "pages/_log_lines.html" if "after" in cut else "pages/run_logs.html"
    return render_run(request, template, run, "logs", page=page, level=level, text=text, levels=queries.LOG_LEVELS)


@login_required
@require_GET
def recipe(request: HttpRequest, run_id: UUID) -> HttpResponse:
    run = get_run(request.user, run_id)
    resolved = recipe_form.ordered(run.recipe)
    before = recipe_form.ordered(run.parent.recipe) if run.parent else None
    return render_run(
        request,
        "pages/run_recipe.html",
        run,
        "recipe",
        yaml="\n".join(line.text for line in recipe_yaml.lines(resolved, None)),
        differs=recipe_yaml.differences(before, resolved) if before else [],
    )


@login_required
@require_GET
def checkpoints(request: HttpRequest, run_id: UUID) -> HttpResponse:
    run = get_run(request.user, run_id)
    found = [(c, launching.artifact_path(c)) for c in run.checkpoints.order_by("-stage", "-step", "-created_at")[:300]]
    return render_run(request, "pages/run_checkpoints.html", run, "checkpoints", checkpoints=found)


@login_required
@require_GET
def events(request: HttpRequest, run_id: UUID) -> HttpResponse:
    run = get_run(request.user, run_id)
    return render_run(
        request,
        "pages/run_events.html",
        run,
        "events",
        history=run.history.select_related("by").order_by("-id")[:200],
        attempts=run.attempts.select_related("created_by").order_by("-number"),
    )


@login_required
@require_POST
def stop(request: HttpRequest, run_id: UUID) -> HttpResponse:
    run = get_run(request.user, run_id, Role.OPERATOR)
    return _act(request, run, actions.request_stop, "Stop requested. The run ends at its next safe point.")


@login_required
@require_POST
def resume(request: HttpRequest, run_id: UUID) -> HttpResponse:
    run = get_run(request.user, run_id, Role.OPERATOR)
    return _act(request, run, actions.resume_run, "Resuming from the newest checkpoint as a new attempt.")


def _act(request: HttpRequest, run: Run, action: Any, done: str) -> HttpResponse:
    try:
        action(run, request.user)
    except actions.ActionRefused as refusal:
        messages.error(request, str(refusal))
    else:
        messages.success(request, done)
    return redirect("pages:run", run.pk)
