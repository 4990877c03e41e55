from typing import Any
from uuid import UUID

from django.contrib.auth.decorators import login_required
from django.http import Http404, HttpRequest, HttpResponse
from django.shortcuts import redirect, render
from django.views.decorators.http import require_safe

from contracts.trajectory import TrajectoryRow
from webapp.runs.access import get_run
from webapp.trajectories import blocks, queries, shards
from webapp.trajectories.explain import explain
from webapp.trajectories.models import Trajectory
from webapp.trajectories.queries import StepKey

VIEWS = {"tokens": "Tokens", "rendered": "Rendered", "raw": "Raw"}


@login_required
@require_safe
def steps(request: HttpRequest, run_id: UUID) -> HttpResponse:
    run = get_run(request.user, run_id)
    before = _before(request.GET.get("before", ""))
    found = queries.steps_of_run(run, before)
    more = found[queries.STEPS_PAGE - 1] if len(found) > queries.STEPS_PAGE else None
    rows = [
        {**row, "key": StepKey(run, row["stage"], row["step"], row["is_evaluation"])}
        for row in found[: queries.STEPS_PAGE]
    ]
    context = {"run": run, "project": run.project, "place": "runs", "rows": rows, "more": more, "is_first": not before}
    return render(request, "trajectories/steps.html", context)


@login_required
@require_safe
def training_step(request: HttpRequest, run_id: UUID, step: int) -> HttpResponse:
    """RL steps are counted over the stages of a run, so the number alone names one."""
    key = queries.training_step(get_run(request.user, run_id), step)
    if key is None:
        raise Http404("nothing of this step is stored yet")
    return redirect(key.url)


@login_required
@require_safe
def step(request: HttpRequest, run_id: UUID, stage: int, step: int, is_evaluation: bool) -> HttpResponse:
    key = StepKey(get_run(request.user, run_id), stage, step, is_evaluation)
    ledger = queries.ledger_of(key)
    if ledger is None:
        raise Http404("nothing of this step is stored yet")
    groups, after = queries.groups_of(key, _text(request, "after"))
    context = {**_places(key), "ledger": ledger, "groups": groups, "after": after}
    return render(request, "trajectories/step.html", context)


@login_required
@require_safe
def group(request: HttpRequest, run_id: UUID, stage: int, step: int, is_evaluation: bool) -> HttpResponse:
    key = StepKey(get_run(request.user, run_id), stage, step, is_evaluation)
    sort = request.GET.get("sort", "sample")
    found = queries.group_of(key, _text(request, "prompt"), sort)
    context = {**_places(key), "group": found, "sort": sort, "words": queries.DECISION_WORDS}
    return render(request, "trajectories/group.html", context)


@login_required
@require_safe
def trajectory(request: HttpRequest, pk: int) -> HttpResponse:
    found = queries.trajectory_for(request.user, pk)
    key = queries.key_of(found)
    siblings = queries.group_of(key, found.prompt_id)
    previous, following = queries.neighbours(siblings, found)
    view = request.GET.get("view", "tokens")
    context: dict[str, Any] = {
        **_places(key),
        "t": found,
        "group": siblings,
        "position": queries.position_in(siblings, found),
        "previous": previous,
        "following": following,
        "view": view if view in VIEWS else "tokens",
        "views": VIEWS,
        "words": queries.DECISION_WORDS,
        "why": explain(found),
    }
    try:
        context |= _reading(_row(found), context["view"], found.run.recipe)
    except shards.ShardError as error:
        context["unreadable"] = str(error)
    return render(request, "trajectories/trajectory.html", context)


@login_required
@require_safe
def raw(request: HttpRequest, pk: int) -> HttpResponse:
    """The whole text as a download: never shown by the browser, whatever it holds."""
    found = queries.trajectory_for(request.user, pk)
    try:
        row = _row(found)
    except shards.ShardError as error:
        raise Http404(str(error)) from error
    response = HttpResponse(_raw_text(row), content_type="text/plain; charset=utf-8")
    response["Content-Disposition"] = f'attachment; filename="trajectory-{pk}.txt"'
    response["X-Content-Type-Options"] = "nosniff"
    return response


def _row(found: Trajectory) -> TrajectoryRow:
    row = shards.read_row(found.run_id, found.shard, found.row)
    if (row.index.prompt_id, row.index.sample) != (found.prompt_id, found.sample):
        raise shards.ShardError(f"row {found.row} of {found.shard} is another rollout: it was written again")
    return row


def _reading(row: TrajectoryRow, view: str, recipe: Any) -> dict[str, Any]:
    text = _raw_text(row) if view == "raw" else ""
    return {
        "row": row,
        "problem_text": blocks.cut(row.problem),
        "problem_hidden": max(0, len(row.problem) - blocks.MAX_TEXT_CHARS),
        "blocks": [] if view == "raw" else blocks.make_blocks(row, with_tokens=view == "tokens", recipe=recipe),
        "by_class": blocks.entropy_by_class(row),
        "raw_text": blocks.cut(text),
        "raw_hidden": max(0, len(text) - blocks.MAX_TEXT_CHARS),
    }


def _raw_text(row: TrajectoryRow) -> str:
    return row.prompt_text + "".join(row.token_texts)


def _places(key: StepKey) -> dict[str, Any]:
    stages = key.run.recipe.get("stages", []) if isinstance(key.run.recipe, dict) else []
    stage_name = stages[key.stage].get("name", "") if key.stage < len(stages) else ""
    return {"key": key, "run": key.run, "project": key.run.project, "place": "runs", "stage_name": stage_name}


def _text(request: HttpRequest, name: str) -> str:
    return request.GET.get(name, "").replace("\0", "")


def _before(text: str) -> tuple[int, int] | None:
    stage, _, step = text.partition(".")
    return (int(stage), int(step)) if stage.isdecimal() and step.isdecimal() else None
